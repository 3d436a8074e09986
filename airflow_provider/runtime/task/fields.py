"""Typed access to one field of a definition: right type, or a problem with its line, value and remedy."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider.runtime.task.errors import Report, join_path
from airflow_provider.runtime.task.nodes import MappingNode, Node, Scalar, SequenceNode


@dataclass(frozen=True)
class Field:
    """A node with its path. ``hidden`` keeps the value out of every message (secrets)."""

    report: Report
    node: Node
    path: str
    line: int | None
    hidden: bool = False

    @property
    def is_null(self) -> bool:
        """Whether the field is an explicit null, which everywhere means "not set"."""
        return isinstance(self.node, Scalar) and self.node.value is None

    @property
    def is_mapping(self) -> bool:
        """Whether the field holds a mapping."""
        return isinstance(self.node, MappingNode)

    @property
    def is_list(self) -> bool:
        """Whether the field holds a list."""
        return isinstance(self.node, SequenceNode)

    @property
    def is_empty(self) -> bool:
        """Whether the field is null, an empty list or an empty mapping."""
        match self.node:
            case MappingNode():
                return not self.node.entries
            case SequenceNode():
                return not self.node.items
        return self.is_null

    def problem(self, message: str, remedy: str) -> None:
        """Note a problem with this field, with its value."""
        self.report.add(self.path, message, remedy, line=self.line, value=self._shown())

    def misplaced(self, message: str, remedy: str) -> None:
        """Note that the field itself is wrong; what it holds does not matter, and may be a secret."""
        self.report.add(self.path, message, remedy, line=self.line)

    def scalar(self) -> Scalar | None:
        """The scalar, whatever its type; a problem for lists and mappings."""
        if isinstance(self.node, Scalar):
            return self.node
        self.problem("must be a single value", "Write one value; text that starts with { or [ needs quotes")
        return None

    def text(self) -> str | None:
        """Non-empty text; a problem otherwise."""
        value = self.text_or_empty()
        if value is not None and not value.strip():
            self.problem("must not be empty", "Give a value, or remove the field")
            return None
        return value

    def text_or_empty(self) -> str | None:
        """Text, possibly empty; a problem for anything else."""
        match self.node:
            case Scalar(value=str() as value):
                return value
            case Scalar(value=None):
                self.problem("must be text, not null", "Give a value, or remove the field")
            case Scalar():
                self.problem("must be text", f'Put it in quotes: "{self._text_for_remedy()}"')
            case _:
                self.problem("must be text", "Write one text; text that starts with { or [ needs quotes")
        return None

    def integer(self, minimum: int, maximum: int | None = None) -> int | None:
        """A whole number within the bounds; booleans, text and fractions are problems."""
        value = self.node.value if isinstance(self.node, Scalar) else None
        in_range = f"from {minimum} to {maximum}" if maximum is not None else f"of at least {minimum}"
        if isinstance(value, bool) or not isinstance(value, int):
            self.problem(f"must be a whole number {in_range}", "Write plain digits, without quotes")
            return None
        if value < minimum or (maximum is not None and value > maximum):
            self.problem(f"must be a whole number {in_range}", "Change the number")
            return None
        return value

    def positive_number(self) -> float | None:
        """A number above 0; booleans and text are problems."""
        value = self.node.value if isinstance(self.node, Scalar) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            self.problem("must be a number above 0", "Write plain digits, without quotes")
            return None
        return float(value)

    def boolean(self) -> bool | None:
        """A boolean; text such as ``"true"`` is a problem."""
        if isinstance(self.node, Scalar) and isinstance(self.node.value, bool):
            return self.node.value
        self.problem("must be true or false", "Write true or false, without quotes")
        return None

    def choice(self, *choices: str) -> str | None:
        """One of the given lower-case words, in any case; a problem otherwise."""
        value = self.node.value if isinstance(self.node, Scalar) else None
        if isinstance(value, str) and value.lower() in choices:
            return value.lower()
        self.problem("is not one of the accepted values", f"Use one of: {', '.join(choices)}")
        return None

    def mapping(self, remedy: str = "Write key: value pairs below it, indented") -> dict[str, Field] | None:
        """The fields of a mapping by key; a problem for anything else."""
        if not isinstance(self.node, MappingNode):
            self.problem("must be a mapping", remedy)
            return None
        return {
            key.text: Field(self.report, value, join_path(self.path, key.text), key.line, self.hidden)
            for key, value in self.node.entries
        }

    def items(self, remedy: str = "Write a list: one '- item' a line, or [a, b]") -> list[Field] | None:
        """The fields of a list; a problem for anything else."""
        if not isinstance(self.node, SequenceNode):
            self.problem("must be a list", remedy)
            return None
        return [
            Field(self.report, item, f"{self.path}[{index}]", item.line, self.hidden)
            for index, item in enumerate(self.node.items)
        ]

    def _text_for_remedy(self) -> str:
        return self.node.text if isinstance(self.node, Scalar) and not self.hidden else "…"

    def _shown(self) -> str | None:
        if self.hidden:
            return None
        match self.node:
            case Scalar(value=str() as value):
                return repr(value)
            case Scalar(text=text):
                return text or "null"
            case SequenceNode():
                return "a list"
        return "a mapping"
