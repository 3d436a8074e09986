"""Doing something as another account of this machine, which takes root."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

OTHER, THIRD = 64011, 64012
"""Accounts that nobody has."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")


def as_account(uid: int, work: Callable[[], object]) -> object:
    """Return what ``work`` returns, as JSON makes it, when a process of the account runs it."""
    hear, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hear)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            answer = json.dumps({"returned": work()})
        except BaseException as error:
            answer = json.dumps({"raised": f"{type(error).__name__}: {error}"})
        os.write(tell, answer.encode())
        os._exit(0)
    os.close(tell)
    with open(hear, "rb") as heard:
        answer = json.loads(heard.read() or b'{"raised": "it died"}')
    os.waitpid(pid, 0)
    if "raised" in answer:
        pytest.fail(f"as account {uid}: {answer['raised']}")
    return answer["returned"]
