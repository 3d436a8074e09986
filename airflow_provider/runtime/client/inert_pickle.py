"""Reading pickles without running anything that they name.

SkyPilot's serve service sends each field of a status as a pickle, and whoever unpickles runs what a cluster wants. Here
the opcodes are read and only plain values come out: numbers, text, bytes, containers. What a pickle names (a class, a
function) stays a name, and what it makes of that stays a record of the parts.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 16 * 1024 * 1024
"""Largest pickle that is read."""

MAX_STEPS = 300_000
"""Opcodes that are read of one pickle, and parts that its value may have."""

MAX_KEYS = 10_000
"""Keys that one dict, or members that one set, may have."""

_MAX_COMPARISONS = MAX_KEYS * MAX_KEYS // 2
"""Each key of a container may have to be compared with all others in it: a stranger chooses what their hashes are."""

_KEY_PARTS = 8
_KEY_INTEGER = (1 << 61) - 2
"""Larger integers can be made to have equal hashes, which makes a table of them slow."""

MAX_DEPTH = 100
"""How deep values may lie in one another."""


class InertPickleError(ValueError):
    """The pickle is broken, too large, or uses what plain data does not need."""


@dataclass(frozen=True)
class Symbol:
    """A class or function by name. Nothing was imported."""

    module: str
    name: str


@dataclass
class Record:
    """What an object was to be made of. Nothing was called.

    Attributes:
        kind: What was to be called; a Symbol in honest pickles.
        arguments: The positional arguments, and keyword ones as a dict at the end.
        state: The object's state, None when it has none.
        items: What was to be added to it: elements, or pairs of key and value.
    """

    kind: Plain
    arguments: tuple[Plain, ...] = ()
    state: Plain = None
    items: list[Plain] = field(default_factory=list)


Plain = Union[
    None,
    bool,
    int,
    float,
    str,
    bytes,
    Symbol,
    Record,
    "list[Plain]",
    "tuple[Plain, ...]",
    "dict[Plain, Plain]",
    "set[Plain]",
    "frozenset[Plain]",
]


def loads(data: bytes) -> Plain:
    """Return the value of a pickle, with Symbols and Records for whatever is not plain data.

    Raises:
        InertPickleError: it cannot be read, or what it holds is larger or deeper than any status.
    """
    if len(data) > MAX_BYTES:
        raise InertPickleError(f"the pickle has {len(data)} bytes, {MAX_BYTES} at most are read")
    machine = _Machine()
    try:
        for step, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if step >= MAX_STEPS:
                raise InertPickleError(f"the pickle has more than {MAX_STEPS} steps")
            machine.step(opcode.name, argument)
        value = machine.pop()
    except InertPickleError:
        raise
    except Exception as error:
        # A broken pickle meets many checks, of ours and of pickletools; none of them is worth telling apart.
        raise InertPickleError(f"the pickle is broken: {type(error).__name__}: {error}") from None
    _check(value)
    return value


class _Mark:
    pass


class _Machine:
    """The stack and the memo of the pickle language."""

    def __init__(self) -> None:
        self._stack: list[Plain | _Mark] = []
        self._memo: dict[int, Plain] = {}
        self._comparisons = 0

    def step(self, name: str, argument: object) -> None:
        if name in _VALUES:
            self._push(argument)  # type: ignore[arg-type]  # pickletools' reader of these opcodes gives plain values
        elif name in _CONSTANTS:
            self._push(_CONSTANTS[name]())
        elif name in _ACTIONS:
            _ACTIONS[name](self, argument)
        elif name not in _NOTHING:
            raise InertPickleError(f"the pickle uses {name}, which no plain data needs")

    def pop(self) -> Plain:
        value = self._stack.pop()
        if isinstance(value, _Mark):
            raise InertPickleError("the pickle's stack is broken")
        return value

    def _push(self, value: Plain) -> None:
        self._stack.append(value)

    def _to_mark(self) -> list[Plain]:
        values: list[Plain] = []
        while not isinstance(value := self._stack.pop(), _Mark):
            values.append(value)
        values.reverse()
        return values

    def _mark(self, argument: object) -> None:
        self._stack.append(_Mark())

    def _pop(self, argument: object) -> None:
        self._stack.pop()

    def _pop_mark(self, argument: object) -> None:
        self._to_mark()

    def _dup(self, argument: object) -> None:
        self._stack.append(self._stack[-1])

    def _put(self, argument: object) -> None:
        value = self._stack[-1]
        if isinstance(value, _Mark):
            raise InertPickleError("the pickle's stack is broken")
        self._memo[len(self._memo) if argument is None else int(str(argument))] = value

    def _get(self, argument: object) -> None:
        self._push(self._memo[int(str(argument))])

    def _take(self, count: int) -> tuple[Plain, ...]:
        values = [self.pop() for _ in range(count)]
        return tuple(reversed(values))

    def _append(self, argument: object) -> None:
        (value,) = self._take(1)
        self._add([value])

    def _appends(self, argument: object) -> None:
        self._add(self._to_mark())

    def _add(self, values: list[Plain]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, set):
            target.update(self._keys(values, len(target)))
        elif isinstance(target, Record):
            target.items.extend(values)
        else:
            raise InertPickleError("the pickle adds to what takes nothing")

    def _set_item(self, argument: object) -> None:
        self._set(list(self._take(2)))

    def _set_items(self, argument: object) -> None:
        self._set(self._to_mark())

    def _set(self, values: list[Plain]) -> None:
        target = self._stack[-1]
        names, given = values[::2], values[1::2]
        if isinstance(target, dict):
            target.update(zip(self._keys(names, len(target)), given, strict=True))
        elif isinstance(target, Record):
            target.items.extend(zip(names, given, strict=True))
        else:
            raise InertPickleError("the pickle adds to what takes nothing")

    def _keys(self, values: list[Plain], already: int) -> list[Plain]:
        """Return values as keys of a container that has some already, unless it might take long to put them in."""
        count = already + len(values)
        if count > MAX_KEYS:
            raise InertPickleError(f"the pickle has a container of more than {MAX_KEYS} keys")
        self._comparisons += (already + count) * len(values) // 2
        if self._comparisons > _MAX_COMPARISONS:
            raise InertPickleError("the pickle has too many large containers of keys")
        return [_key(value) for value in values]

    def _dict(self, argument: object) -> None:
        values = self._to_mark()
        self._push({})
        self._set(values)

    def _global(self, argument: object) -> None:
        module, _, name = str(argument).partition(" ")
        self._push(Symbol(module, name))

    def _stack_global(self, argument: object) -> None:
        module, name = self._take(2)
        if not (isinstance(module, str) and isinstance(name, str)):
            raise InertPickleError("the pickle names something that is no name")
        self._push(Symbol(module, name))

    def _reduce(self, argument: object) -> None:
        kind, arguments = self._take(2)
        self._make(kind, arguments)

    def _new_ex(self, argument: object) -> None:
        kind, arguments, keywords = self._take(3)
        self._make(kind, (*_tuple(arguments), keywords) if keywords else arguments)

    def _instance(self, argument: object) -> None:
        arguments = self._to_mark()
        self._global(argument)
        self._make(self.pop(), tuple(arguments))

    def _object(self, argument: object) -> None:
        kind, *arguments = self._to_mark()
        self._make(kind, tuple(arguments))

    def _make(self, kind: Plain, arguments: Plain) -> None:
        # A set of an old protocol is made by a call; so is an enumeration's member, which stays a record.
        if (
            isinstance(kind, Symbol)
            and kind in _SETS
            and isinstance(arguments, tuple)
            and len(arguments) == 1
        ):
            (elements,) = arguments
            if isinstance(elements, list):
                self._push(_SETS[kind](self._keys(elements, 0)))
                return
        self._push(Record(kind, _tuple(arguments)))

    def _build(self, argument: object) -> None:
        (state,) = self._take(1)
        target = self._stack[-1]
        if not isinstance(target, Record):
            raise InertPickleError("the pickle gives a state to what has none")
        target.state = state


_SETS: dict[Plain, Callable[..., Plain]] = {
    Symbol(module, kind.__name__): kind for module in ("builtins", "__builtin__") for kind in (set, frozenset)
}

_NOTHING = frozenset({"PROTO", "FRAME", "STOP"})

_VALUES = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "UNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
        "SHORT_BINBYTES",
        "BINBYTES",
        "BINBYTES8",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
    ]
)

_CONSTANTS: dict[str, Callable[[], Plain]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
}

_ACTIONS: dict[str, Callable[[_Machine, object], None]] = {
    "MARK": _Machine._mark,
    "POP": _Machine._pop,
    "POP_MARK": _Machine._pop_mark,
    "DUP": _Machine._dup,
    "PUT": _Machine._put,
    "BINPUT": _Machine._put,
    "LONG_BINPUT": _Machine._put,
    "MEMOIZE": _Machine._put,
    "GET": _Machine._get,
    "BINGET": _Machine._get,
    "LONG_BINGET": _Machine._get,
    "APPEND": _Machine._append,
    "APPENDS": _Machine._appends,
    "ADDITEMS": _Machine._appends,
    "SETITEM": _Machine._set_item,
    "SETITEMS": _Machine._set_items,
    "DICT": _Machine._dict,
    "LIST": lambda machine, argument: machine._push(machine._to_mark()),
    "TUPLE": lambda machine, argument: machine._push(tuple(machine._to_mark())),
    "TUPLE1": lambda machine, argument: machine._push(machine._take(1)),
    "TUPLE2": lambda machine, argument: machine._push(machine._take(2)),
    "TUPLE3": lambda machine, argument: machine._push(machine._take(3)),
    "FROZENSET": lambda machine, argument: machine._push(frozenset(machine._keys(machine._to_mark(), 0))),
    "GLOBAL": _Machine._global,
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._reduce,
    "NEWOBJ": _Machine._reduce,
    "NEWOBJ_EX": _Machine._new_ex,
    "INST": _Machine._instance,
    "OBJ": _Machine._object,
    "BUILD": _Machine._build,
}


def _tuple(arguments: Plain) -> tuple[Plain, ...]:
    if not isinstance(arguments, tuple):
        raise InertPickleError("the pickle calls something without arguments")
    return arguments


def _key(value: Plain) -> Plain:
    """Return a value that may be in a set or a key: only what hashes in a moment, and not as somebody else likes.

    Records (members of enumerations, for one) become tuples of what they are made of, or the name of their kind.
    """
    if isinstance(value, Record):
        simple = isinstance(value.kind, Symbol) and len(value.arguments) < _KEY_PARTS
        if simple and all(map(_is_simple_key, value.arguments)):
            return (value.kind, *value.arguments)
        return repr(value.kind) if isinstance(value.kind, Symbol) else "record"
    parts = value if isinstance(value, tuple) and len(value) <= _KEY_PARTS else (value,)
    if not all(map(_is_simple_key, parts)):
        raise InertPickleError(f"the pickle has a key of type {type(value).__name__}")
    return value


def _is_simple_key(value: Plain) -> bool:
    if isinstance(value, int):
        return abs(value) <= _KEY_INTEGER
    return isinstance(value, (type(None), float, str, bytes, Symbol))


def _check(value: Plain) -> None:
    """Refuse what contains itself, lies too deep, or is larger than its pickle: shared parts count each time."""
    steps = 0
    waiting: list[tuple[Plain, int]] = [(value, 0)]
    while waiting:
        part, depth = waiting.pop()
        steps += 1
        if depth > MAX_DEPTH:
            raise InertPickleError(f"the pickle's value is deeper than {MAX_DEPTH} or contains itself")
        if steps > MAX_STEPS:
            raise InertPickleError(f"the pickle's value has more than {MAX_STEPS} parts")
        waiting.extend((below, depth + 1) for below in _parts(part))


def _parts(value: Plain) -> list[Plain]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, Record):
        return [value.kind, *value.arguments, value.state, *value.items]
    return []
