"""Strict YAML: text -> one tree per document, with every problem of every document.

Only PyYAML's scanner, parser and tag resolver are used; no Python object is ever constructed. Beyond
what PyYAML refuses, this refuses keys given twice, tags, aliases that multiply, and very deep nesting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from airflow_provider.runtime.task.errors import Report, join_path
from airflow_provider.runtime.task.nodes import (
    MAX_DEPTH,
    MAX_WEIGHT,
    MappingNode,
    Node,
    Scalar,
    SequenceNode,
    TooLargeError,
    UnusableTextError,
    checked_text,
    plain_value,
)

MAX_BYTES = 1024 * 1024
"""Largest accepted file or text."""

_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
_UNQUOTED_TEMPLATE = 'Text that starts with {{ must be in quotes: "{{ … }}"'


@dataclass(frozen=True)
class Document:
    """One YAML document that is not null; ``root`` is None when its text could not be read."""

    report: Report
    root: Node | None


def read_documents(text: str, source: str) -> list[Document]:
    """The non-null documents of ``text``; the problems of each are in its report."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        report = Report(source, 1)
        refuse_size(report)
        return [Document(report, None)]
    documents = list(_compose(text, source, number=1, first_line=1))
    if any(document.root is None for document in documents):
        # One broken document ends PyYAML's reading. A line that starts with `---` begins a document
        # wherever it stands, so the others can still be read, and their problems told in the same go.
        separate = [
            document
            for number, (first_line, part) in enumerate(_split(text), start=1)
            for document in _compose(part, source, number=number, first_line=first_line)
        ]
        if any(document.root is None for document in separate):
            documents = separate
    return [document for document in documents if not _is_null(document)]


def refuse_size(report: Report) -> None:
    """Note that there is more text than ``MAX_BYTES``."""
    report.add("", "the definition is larger than 1 MiB", "Move data out of the task definition")


def _is_null(document: Document) -> bool:
    root = document.root
    return isinstance(root, Scalar) and root.value is None and not document.report.problems


def _split(text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines(keepends=True)
    starts = [0]
    for index, line in enumerate(lines):
        if index and re.match(r"---(\s|$)", line) and not _only_preamble(lines[starts[-1] : index]):
            starts.append(index)
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield start + 1, "".join(lines[start:end])


def _only_preamble(lines: list[str]) -> bool:
    return all(not line.strip("\ufeff \t\r\n") or line.startswith(("#", "%")) for line in lines)


def _compose(text: str, source: str, *, number: int, first_line: int) -> Iterator[Document]:
    """Compose the documents of ``text``; the one that cannot be read is the last."""
    report = Report(source, number)
    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError as error:
        _add_yaml_error(report, error, text, first_line)
        yield Document(report, None)
        return
    try:
        while True:
            composer = _Composer(loader, report, first_line)
            root = composer.document()
            if root is None:
                return
            yield Document(report, root)
            report = Report(source, report.document + 1)
    except yaml.YAMLError as error:
        _add_yaml_error(report, error, text, first_line)
    except (ValueError, OverflowError, RecursionError) as error:
        # PyYAML lets these out for escapes beyond Unicode and for absurd version numbers.
        message = str(error) if isinstance(error, TooLargeError) else "the text cannot be read as YAML"
        report.add("", message, "Write the document flat and plain", line=loader.line + first_line)
    yield Document(report, None)


def _add_yaml_error(report: Report, error: yaml.YAMLError, text: str, first_line: int) -> None:
    message, remedy, line = "the text cannot be read as YAML", "Correct the YAML syntax", first_line
    if isinstance(error, yaml.reader.ReaderError):
        line += text.count("\n", 0, error.position)
        message = f"character U+{error.character:04X} is not allowed in YAML"
        escape = "" if error.character == 0 else ", or write it as an escape within double quotes"
        remedy = f"Remove it{escape}"
    elif isinstance(error, yaml.MarkedYAMLError):
        # The mark of the problem is where reading stopped. At the end of the text that says nothing; what
        # was open there begins at the mark of the context.
        mark = error.problem_mark or error.context_mark
        if error.context_mark is not None and mark is not None and mark.index >= len(text):
            mark = error.context_mark
        line += min(mark.line if mark is not None else 0, text.rstrip().count("\n"))
        detail = ", ".join(part for part in (error.context, error.problem) if part)
        # What stands in quotes may be the user's text, and that may be a secret; `<…>` are token names.
        message = re.sub(r"'[^<'][^']+'", "'…'", detail) or message
        # Tabs that matter end in different complaints.
        if r"'\t'" in detail or _has_tab_indent(text, line - first_line):
            message = "a tab character is used for indentation"
            remedy = "Indent with spaces"
    report.add("", message, remedy, line=line)


def _has_tab_indent(text: str, index: int) -> bool:
    lines = text.splitlines()
    return 0 <= index < len(lines) and re.match(r"\s*\t", lines[index]) is not None


class _Composer:
    """Turns the parser's events of one document into a tree."""

    def __init__(self, loader: yaml.SafeLoader, report: Report, first_line: int) -> None:
        self._loader = loader
        self._report = report
        self._first_line = first_line
        self._anchors: dict[str, Node | None] = {}
        self._merged_entries = 0

    def document(self) -> Node | None:
        """The next document; None at the end of the text."""
        if self._loader.check_event(yaml.StreamStartEvent):
            self._next()
        if self._loader.check_event(yaml.StreamEndEvent):
            return None
        self._next()  # document start
        root = self._node("", 0)
        self._next()  # document end
        return root

    def _node(self, path: str, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise TooLargeError(f"more than {MAX_DEPTH} levels of nesting")
        event = self._next()
        line = self._line(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path, line)
        if not isinstance(event, (yaml.ScalarEvent, yaml.SequenceStartEvent, yaml.MappingStartEvent)):
            raise yaml.YAMLError("unexpected end")
        anchor = event.anchor
        if anchor is not None:
            if anchor in self._anchors:
                self._report.add(path, "an anchor of this name exists already", "Rename it", line=line)
            self._anchors[anchor] = None  # an alias inside its own anchor finds this
        node: Node
        match event:
            case yaml.ScalarEvent():
                node = self._scalar(event, path, line)
            case yaml.SequenceStartEvent():
                self._check_tag(event.tag, ("seq",), path, line)
                node = self._sequence(path, depth, line)
            case yaml.MappingStartEvent():
                self._check_tag(event.tag, ("map", "set"), path, line)
                node = self._mapping(path, depth, line)
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _alias(self, event: yaml.AliasEvent, path: str, line: int) -> Node:
        node = self._anchors.get(event.anchor or "")
        if node is not None:
            return node
        # The name of the alias is not shown: it may be a secret that lacks its quotes.
        if event.anchor in self._anchors:
            self._report.add(path, "an alias inside its own anchor", "Write the value out", line=line)
        else:
            remedy = "Text that starts with * must be in quotes"
            self._report.add(path, "an alias (*name) without its anchor (&name)", remedy, line=line)
        return Scalar(line, "", None)

    def _scalar(self, event: yaml.ScalarEvent, path: str, line: int) -> Scalar:
        tag = event.tag
        if tag is None or tag == "!":
            resolve = self._loader.resolve
            tag = resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
        else:
            self._check_tag(tag, ("str", "int", "float", "bool", "null"), path, line)
        try:
            text = checked_text(event.value)
        except UnusableTextError as error:
            self._report.add(path, f"the value contains {error}", "Remove it", line=line)
            return Scalar(line, "", "")
        return Scalar(line, text, plain_value(text, tag.removeprefix(_TAG)))

    def _sequence(self, path: str, depth: int, line: int) -> SequenceNode:
        items: list[Node] = []
        weight = 1
        while not self._loader.check_event(yaml.SequenceEndEvent):
            item = self._node(f"{path}[{len(items)}]", depth + 1)
            items.append(item)
            weight = self._within_limit(weight + item.weight)
        self._next()
        return SequenceNode(line, tuple(items), weight)

    def _mapping(self, path: str, depth: int, line: int) -> MappingNode:
        entries: dict[str, tuple[Scalar, Node]] = {}
        repeated: list[tuple[Scalar, int | None]] = []
        merged: dict[str, tuple[Scalar, Node]] = {}
        weight = 1
        while not self._loader.check_event(yaml.MappingEndEvent):
            event = self._peek()
            is_merge = isinstance(event, yaml.ScalarEvent) and event.value == _MERGE and event.implicit[0]
            key = self._node(path, depth + 1)
            value_path = join_path(path, key.text) if isinstance(key, Scalar) and not is_merge else path
            value = self._node(value_path, depth + 1)
            weight = self._within_limit(weight + key.weight + value.weight)
            if not isinstance(key, Scalar):
                self._report.add(
                    path, "a list or mapping is used as a key", _UNQUOTED_TEMPLATE, line=key.line
                )
            elif is_merge and not merged:
                merged = self._merged(value, path, line)
                weight = self._within_limit(weight + sum(entry.weight for _, entry in merged.values()))
            elif is_merge or key.text in entries:
                repeated.append((key, entries[key.text][0].line if key.text in entries else None))
            if isinstance(key, Scalar) and not is_merge:
                entries[key.text] = (key, value)
        self._next()
        return MappingNode(line, tuple({**merged, **entries}.values()), tuple(repeated), weight)

    def _merged(self, value: Node, path: str, line: int) -> dict[str, tuple[Scalar, Node]]:
        """The entries that `<<` brings in; of a list, the first mapping that has a key wins."""
        mappings = value.items if isinstance(value, SequenceNode) else (value,)
        merged: dict[str, tuple[Scalar, Node]] = {}
        for mapping in mappings:
            if not isinstance(mapping, MappingNode):
                self._report.add(
                    path, "<< takes a mapping or a list of mappings", "Write <<: *anchor", line=line
                )
                continue
            self._merged_entries += len(mapping.entries)
            if self._merged_entries > MAX_WEIGHT:
                raise TooLargeError("merge keys make the document too large")
            for key, node in mapping.entries:
                merged.setdefault(key.text, (key, node))
        return merged

    def _check_tag(self, tag: str | None, allowed: tuple[str, ...], path: str, line: int) -> None:
        if tag is not None and tag != "!" and tag not in {_TAG + name for name in allowed}:
            self._report.add(
                path,
                "YAML tags are not supported here",
                "Remove the tag; text that starts with ! must be in quotes",
                line=line,
            )

    def _within_limit(self, weight: int) -> int:
        if weight > MAX_WEIGHT:
            raise TooLargeError("the document is too large once its aliases are expanded")
        return weight

    def _line(self, event: yaml.Event) -> int:
        mark = event.start_mark
        return self._first_line + (mark.line if mark is not None else 0)

    def _next(self) -> yaml.Event:
        event: yaml.Event = self._loader.get_event()  # type: ignore[no-untyped-call]
        return event

    def _peek(self) -> yaml.Event:
        event: yaml.Event = self._loader.peek_event()  # type: ignore[no-untyped-call]
        return event
