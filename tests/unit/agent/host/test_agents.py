"""What an agent gets of the login that starts it."""

from __future__ import annotations

import os
import pwd

from airflow_provider.runtime.agent.host.agents import login_environment
from airflow_provider.runtime.agent.process import processes


def test_jobs_have_what_the_account_has_and_nothing_of_the_session() -> None:
    account = {
        "PATH": "/opt/cuda/bin:/bin",
        "HOME": "/users/ann",
        "LANG": "C.UTF-8",
        "https_proxy": "http://p:1",
    }
    session = {
        "SSH_AUTH_SOCK": "/tmp/ssh-x/agent.1",
        "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22",
        "XDG_RUNTIME_DIR": "/run/user/1000",
        "XDG_SESSION_ID": "3",
        "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus",
        "KRB5CCNAME": "FILE:/tmp/krb5cc_1000_x",
        "TERM": "dumb",
        "PWD": "/users/ann",
        processes.JOB_MARKER: "x",
        processes.CLUSTER_MARKER: "y",
    }
    given = login_environment({**account, **session})
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert given == {**account, "USER": me, "LOGNAME": me}


def test_a_login_that_gives_nothing_still_has_a_home_and_a_path() -> None:
    account = pwd.getpwuid(os.geteuid())
    assert login_environment({}) == {
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "PATH": os.defpath,
    }
