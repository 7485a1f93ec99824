"""Read which bytes a torch distributed checkpoint (DCP) needs, from its ``.metadata`` pickle, building nothing.

A pickle is a program, and a model's own code or another machine may have written the checkpoint. So this is not an
``Unpickler`` with guards but an interpreter of its own for the few opcodes that torch writes: it imports nothing, calls
nothing, hashes nothing, and every "object" it makes is an inert pair of a name and its parts. What torch never writes
is refused, because torch itself would execute it later.

Layout (torch 2.8 to 2.13, ``torch/distributed/checkpoint/metadata.py`` and ``filesystem.py``): ``storage_data``
of a ``Metadata`` maps ``MetadataIndex`` to ``_StorageInfo(relative_path, offset, length)``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeGuard

MAX_BYTES: Final = 64 << 20  # a 32B model on 8 ranks has about 6 MiB
MAX_OPERATIONS: Final = 12_000_000  # about 10 s of one core at the worst; 8 ranks of 700 tensors need 700,000
MAX_OBJECTS: Final = 2_000_000
MAX_STACK: Final = 1_000_000
MAX_FILES: Final = 100_000

# What torch itself would import (a dtype is pickled as `torch.float32`), and the part of it that torch would call.
# A name is one identifier: protocol 4 would follow `metadata` + `os.system` through the module's own imports.
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HARMLESS_CALLS = (
    r"torch\.(Size|device)|torch\.serialization\._get_layout"
    r"|torch\.distributed\.checkpoint\.metadata\.(_MEM_FORMAT_ENCODING|[A-Z][A-Za-z]+)"
    r"|torch\.distributed\.checkpoint\.[a-z_.]+\._?Storage[A-Za-z]+"
    r"|torch\.distributed\._shard\.[a-z_.]+\.[A-Z][A-Za-z]+"
    r"|collections\.(OrderedDict|defaultdict)|pathlib(\._local)?\.(Pure)?(Posix|Windows)?Path"
    r"|(builtins|__builtin__)\.(set|frozenset|dict|list|tuple|int|str|float|bool|bytes|complex|slice)"
)
_MAY_BE_CALLED = re.compile(_HARMLESS_CALLS)
_MAY_BE_NAMED = re.compile(rf"torch\.[a-z0-9_]+|{_HARMLESS_CALLS}")
_METADATA = "torch.distributed.checkpoint.metadata.Metadata"
_STORAGE_INFO = re.compile(r"torch\.distributed\.checkpoint\.[A-Za-z0-9_.]+\._StorageInfo")


class MetadataError(ValueError):
    """The metadata cannot be read, or says things that no checkpoint of torch's says. The message is a clause."""


class _Global:
    """A name that the pickle mentions. Never imported."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class _Object:
    """An inert instance: the name of its class, and its state when that is of interest."""

    __slots__ = ("name", "state")

    def __init__(self, name: str, state: object = None) -> None:
        self.name = name
        self.state = state


class _Extent(NamedTuple):
    """What one entry of storage_data needs: bytes up to ``end`` in the file ``path``."""

    path: str
    end: int


class _Pairs:
    """A dictionary as its pairs, because hashing what a stranger wrote can take for ever."""

    __slots__ = ("flat",)

    def __init__(self) -> None:
        self.flat: list[object] = []  # key, value, key, value

    def get(self, wanted: str) -> object:
        """The value last stored under the text ``wanted``, or None."""
        for index in range(len(self.flat) - 2, -1, -2):
            if isinstance(self.flat[index], str) and self.flat[index] == wanted:
                return self.flat[index + 1]
        return None


class _Sign:
    """A value of which only the kind matters. Nothing that we look for lies in a list, tuple or set."""

    __slots__ = ()


_MARK, _LIST, _TUPLE = _Sign(), _Sign(), _Sign()
_KEPT = re.compile(rf"{re.escape(_METADATA)}|{_STORAGE_INFO.pattern}")


class _Machine:
    """Runs one pickle of protocol 2 to 5 over inert values."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[object] = []
        self.names: dict[str, _Global] = {}
        self.objects = 0
        self.shared: dict[str, _Object] = {}  # one stand-in for all instances of a class of no interest

    def run(self) -> object:
        """The value the pickle builds. Raises MetadataError for anything but a well-formed, expected pickle."""
        operations, data = _OPERATIONS, self.data
        try:
            for _ in range(MAX_OPERATIONS):
                code = data[self.at]
                self.at += 1
                if code == _STOP:
                    return self.stack[-1]
                operation = operations[code]
                if operation is None:
                    raise MetadataError(f"byte {self.at - 1} is pickle operation {code:#04x}, which torch never writes")
                operation(self)
        except MetadataError:
            raise
        except (IndexError, KeyError, struct.error) as error:
            raise MetadataError(f"it ends too early or is damaged near byte {self.at}") from error
        except (UnicodeDecodeError, TypeError, AttributeError) as error:
            raise MetadataError(f"it is damaged near byte {self.at}") from error
        raise MetadataError(f"it needs more than {MAX_OPERATIONS:,} operations")

    # -- reading arguments

    def take(self, size: int) -> bytes:
        start, end = self.at, self.at + size
        if end > len(self.data):
            raise MetadataError(f"it ends too early: byte {start} announces {size:,} more")
        self.at = end
        return self.data[start:end]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + 1000)
        if end < 0:
            raise MetadataError(f"it is damaged near byte {self.at}")
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    # -- the stack

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if self.marks and self.marks[-1] >= len(self.stack) - 1:
            raise MetadataError(f"it is damaged near byte {self.at}")
        return self.stack.pop()

    def since_mark(self) -> list[object]:
        start = self.marks.pop()
        values = self.stack[start + 1 :]
        del self.stack[start:]
        return values

    def count(self) -> None:
        self.objects += 1
        if self.objects > MAX_OBJECTS or len(self.stack) > MAX_STACK:
            raise MetadataError(f"it builds more than {MAX_OBJECTS:,} objects")

    # -- operations

    def skip_frame(self) -> None:
        self.take(8)

    def protocol(self) -> None:
        version = self.number(1)
        if not 2 <= version <= 5:
            raise MetadataError(f"it is of pickle protocol {version}; torch writes 2 to 5")

    def mark(self) -> None:
        self.count()
        self.marks.append(len(self.stack))
        self.stack.append(_MARK)

    def text(self, width: int) -> None:
        self.stack.append(self.take(self.number(width)).decode("utf-8", "surrogatepass"))

    def blob(self, width: int) -> None:
        self.stack.append(self.take(self.number(width)))

    def integer(self, width: int) -> None:
        self.stack.append(self.number(width))

    def signed_integer(self) -> None:
        self.stack.append(int.from_bytes(self.take(4), "little", signed=True))

    def long(self, width: int) -> None:
        size = self.number(width)
        if size > 64:  # sizes and offsets fit 8 bytes; anything longer only costs time
            raise MetadataError(f"byte {self.at} announces a number of {size:,} bytes")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def floating_number(self) -> None:
        self.stack.append(struct.unpack(">d", self.take(8))[0])

    def new_list(self) -> None:
        self.stack.append(_LIST)

    def new_pairs(self) -> None:
        self.count()
        self.stack.append(_Pairs())

    def tuple_of(self, size: int) -> None:
        for _ in range(size):
            self.pop()
        self.stack.append(_TUPLE)

    def tuple_marked(self) -> None:
        self.since_mark()
        self.stack.append(_TUPLE)

    def append(self) -> None:
        self.pop()
        self.list_below()

    def extend(self) -> None:
        self.since_mark()
        self.list_below()

    def list_below(self) -> None:
        if self.stack[-1] is not _LIST:
            raise MetadataError(f"it appends to what is no list near byte {self.at}")

    def set_item(self) -> None:
        value = self.pop()
        key = self.pop()
        self.pairs_below().flat.extend((key, value))

    def set_items(self) -> None:
        values = self.since_mark()
        if len(values) % 2:
            raise MetadataError(f"it is damaged near byte {self.at}")
        self.pairs_below().flat.extend(values)

    def pairs_below(self) -> _Pairs:
        below = self.stack[-1]
        if not isinstance(below, _Pairs):
            raise MetadataError(f"it sets items of what is no dictionary near byte {self.at}")
        return below

    def memoize(self) -> None:
        self.memo.append(self.stack[-1])

    def put(self, width: int) -> None:
        index = self.number(width)
        if index > len(self.memo):  # picklers count; a jump would only cost memory
            raise MetadataError(f"it is damaged near byte {self.at}")
        self.memo[index : index + 1] = [self.stack[-1]]

    def get(self, width: int) -> None:
        self.stack.append(self.memo[self.number(width)])

    def drop(self) -> None:
        self.pop()

    def global_lines(self) -> None:
        module, name = self.line(), self.line()
        self.name(module, name)

    def global_stack(self) -> None:
        name, module = self.pop(), self.pop()
        self.name(module, name)

    def name(self, module: object, name: object) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise MetadataError(f"it is damaged near byte {self.at}")
        full = f"{module}.{name}"
        if full not in self.names:
            if not _IDENTIFIER.fullmatch(name) or not _MAY_BE_NAMED.fullmatch(full):
                raise MetadataError(f"it names {full[:80]!r}, which no checkpoint needs; do not load it with torch")
            self.names[full] = _Global(full)
        self.stack.append(self.names[full])

    def new_object(self) -> None:
        arguments, called = self.pop(), self.pop()
        if isinstance(arguments, _Pairs):  # NEWOBJ_EX: class, arguments, keywords
            called = self.pop()
        self.instance(called)

    def reduce(self) -> None:
        self.pop()
        self.instance(self.pop())

    def instance(self, called: object) -> None:
        if not isinstance(called, _Global):
            raise MetadataError(f"it calls what is no class near byte {self.at}")
        if not _MAY_BE_CALLED.fullmatch(called.name):
            raise MetadataError(f"it calls {called.name[:80]!r}, which no checkpoint needs; do not load it with torch")
        self.count()
        if called.name in {"collections.OrderedDict", "collections.defaultdict", "builtins.dict"}:
            self.stack.append(_Pairs())
        elif _KEPT.fullmatch(called.name):
            self.stack.append(_Object(called.name))
        else:
            self.stack.append(self.shared.setdefault(called.name, _Object(called.name)))

    def build(self) -> None:
        state = self.pop()
        target = self.stack[-1]
        if not isinstance(target, _Object):
            raise MetadataError(f"it gives a state to what is no instance near byte {self.at}")
        if target.name == _METADATA:
            target.state = state
            return
        if _STORAGE_INFO.fullmatch(target.name):
            target.state = _extent_of(state)
        if isinstance(state, _Pairs):
            state.flat.clear()  # an instance's own dictionary, read or of no interest: 9 of 10 bytes of memory


_Operation = Callable[[_Machine], None]
_STOP = ord(".")


def _build_constant(value: object) -> _Operation:
    return lambda machine: machine.push(value)


def _table_of_classes() -> list[_Operation | None]:
    machine = _Machine
    known: dict[int, _Operation] = {
        0x80: machine.protocol,
        0x95: machine.skip_frame,
        ord("("): machine.mark,
        ord("0"): machine.drop,
        ord("N"): _build_constant(None),
        0x88: _build_constant(True),
        0x89: _build_constant(False),
        ord("K"): lambda m: m.integer(1),
        ord("M"): lambda m: m.integer(2),
        ord("J"): machine.signed_integer,
        0x8A: lambda m: m.long(1),
        0x8B: lambda m: m.long(4),
        ord("G"): machine.floating_number,
        0x8C: lambda m: m.text(1),
        ord("X"): lambda m: m.text(4),
        0x8D: lambda m: m.text(8),
        ord("C"): lambda m: m.blob(1),
        ord("B"): lambda m: m.blob(4),
        0x8E: lambda m: m.blob(8),
        ord(")"): lambda m: m.push(_TUPLE),
        0x85: lambda m: m.tuple_of(1),
        0x86: lambda m: m.tuple_of(2),
        0x87: lambda m: m.tuple_of(3),
        ord("t"): machine.tuple_marked,
        ord("]"): machine.new_list,
        ord("a"): machine.append,
        ord("e"): machine.extend,
        ord("}"): machine.new_pairs,
        ord("s"): machine.set_item,
        ord("u"): machine.set_items,
        0x8F: machine.new_list,
        0x90: machine.extend,
        0x91: machine.tuple_marked,
        0x94: machine.memoize,
        ord("q"): lambda m: m.put(1),
        ord("r"): lambda m: m.put(4),
        ord("h"): lambda m: m.get(1),
        ord("j"): lambda m: m.get(4),
        ord("c"): machine.global_lines,
        0x93: machine.global_stack,
        0x81: machine.new_object,
        0x92: machine.new_object,
        ord("R"): machine.reduce,
        ord("b"): machine.build,
    }
    return [known.get(code) for code in range(256)]


_OPERATIONS = _table_of_classes()


def needed_bytes(data: bytes) -> Mapping[str, int]:
    """Bytes each data file must at least hold: ``{relative_path: max(offset + length)}``.

    ``data`` is the whole ``.metadata`` file. Raises MetadataError when it is damaged, too large, hostile, or names
    no data at all. Takes time and memory in proportion to its size, whatever is in it.
    """
    if len(data) > MAX_BYTES:
        raise MetadataError(f"it has {len(data):,} bytes, more than the {MAX_BYTES:,} we read")
    metadata = _Machine(data).run()
    if not isinstance(metadata, _Object) or metadata.name != _METADATA or not isinstance(metadata.state, _Pairs):
        raise MetadataError("it holds no torch Metadata")
    storage = metadata.state.get("storage_data")
    if not isinstance(storage, _Pairs) or not storage.flat:
        raise MetadataError("it names no stored data")
    needed: dict[str, int] = {}
    for info in storage.flat[1::2]:
        if not isinstance(info, _Object) or not isinstance(info.state, _Extent):
            raise MetadataError("its storage_data holds what is no _StorageInfo")
        needed[info.state.path] = max(needed.get(info.state.path, 0), info.state.end)
    if len(needed) > MAX_FILES:
        raise MetadataError(f"it names {len(needed):,} files, more than the {MAX_FILES:,} we look at")
    return needed


def _extent_of(state: object) -> _Extent:
    if not isinstance(state, _Pairs):
        raise MetadataError("one of its entries has no state")
    path, offset, length = (state.get(name) for name in ("relative_path", "offset", "length"))
    if not isinstance(path, str) or not 0 < len(path) < 4096:
        raise MetadataError("one of its entries names no file")
    if not _is_size(offset) or not _is_size(length):
        raise MetadataError(f"its entry for {path[:80]!r} has no sensible offset and length")
    return _Extent(path, offset + length)


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
