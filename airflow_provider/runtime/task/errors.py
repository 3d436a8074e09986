"""What is wrong with a task definition: one record for each problem, one exception for all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Problem:
    """One thing to correct.

    Attributes:
        source: the file, or the name that the caller gave to the text or the dictionaries.
        document: position of the YAML document (or dictionary) in the source, from 1.
        line: line in the source, from 1; None for dictionaries and where no line fits.
        path: the field, for example ``resources.any_of[1].cpus``; empty for a whole document.
        value: the offending value in short; None where there is none, and always for secrets.
        message: what is wrong.
        remedy: what to write instead.
    """

    source: str
    document: int
    line: int | None
    path: str
    value: str | None
    message: str
    remedy: str

    def __str__(self) -> str:
        place = f"{self.source}, document {self.document}"
        if self.line is not None:
            place += f", line {self.line}"
        field = self.path if self.value is None else f"{self.path or 'value'} = {self.value}"
        end = "" if self.remedy.endswith("?") else "."
        return ": ".join(part for part in (place, field, f"{self.message}. {self.remedy}{end}") if part)


class TaskValidationError(ValueError):
    """A task definition is wrong; ``problems`` lists everything that is, in the order of the source."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        heading = "1 problem" if count == 1 else f"{count} problems"
        return "\n".join(
            [f"The task definition has {heading}:", *(f"  - {problem}" for problem in self.problems)]
        )


class Report:
    """Collects the problems of one document; the same problem, met along two ways, is kept once."""

    def __init__(self, source: str, document: int) -> None:
        self.source = source
        self.document = document
        self.problems: list[Problem] = []
        self._known: set[Problem] = set()

    def add(
        self,
        path: str,
        message: str,
        remedy: str,
        *,
        line: int | None = None,
        value: str | None = None,
    ) -> None:
        """Note one problem; ``value`` is shown shortened and must not be given for secrets."""
        problem = Problem(
            source=self.source,
            document=self.document,
            line=line,
            path=path,
            value=None if value is None else shortened(value),
            message=message,
            remedy=remedy,
        )
        if problem not in self._known:
            self._known.add(problem)
            self.problems.append(problem)

    def raise_if_any(self) -> None:
        """Raise ``TaskValidationError`` when a problem was noted."""
        if self.problems:
            raise TaskValidationError(self.problems)


def shortened(text: str) -> str:
    """``text``, cut so that a message stays readable."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def join_path(path: str, key: str) -> str:
    """The path of ``key`` below ``path``: ``a.b`` for plain keys, ``a["/b c"]`` for others.

    Below a field named after secrets only plain keys are shown: in ``TOKEN=value`` the key is the secret.
    """
    shown = shortened(key)
    if not re.fullmatch(r"[\w-]+", shown):
        return f"{path}[…]" if "secret" in path.lower() else f'{path}["{shown}"]'
    return f"{path}.{shown}" if path else shown
