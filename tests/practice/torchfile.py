"""Bytes that torch can load, written without torch: the zip container of `torch.save`, and pickles that name torch's
classes.

Checked against torch 2.13: `torch.load` and `torch.distributed.checkpoint.load` read them (tests/practice, opt-in).
The shape of each pickle was taken from files that torch itself had written, with pickletools.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import types
import zipfile
from typing import Any

ARCHIVE_TIME = (1980, 1, 1, 0, 0, 0)


class Global:
    """Stands for a class or function of a module that is not here. Pickles as a bare reference to it."""

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name


class Call:
    """Pickles as: call `function` with `arguments` when loading, then set `state` if there is one."""

    def __init__(self, function: Global, arguments: tuple[Any, ...], state: Any = None) -> None:
        self.function = function
        self.arguments = arguments
        self.state = state


class New(Call):
    """Pickles as: make an instance of a class without calling it, then set `state`: what a dataclass pickles to."""

    def __init__(self, cls: Global, state: Any) -> None:
        super().__init__(cls, (), state)


class Persistent:
    """Pickles as a persistent id: how torch.save refers to a tensor's storage."""

    def __init__(self, identity: tuple[Any, ...]) -> None:
        self.identity = identity


def pickle_bytes(thing: Any, protocol: int = 2) -> bytes:
    """The pickle of plain values, containers and the stand-ins above. Protocol 2 is torch.save's, 4 `.metadata`'s."""
    parts: list[bytes] = [pickle.PROTO + bytes([protocol])]
    _add_opcodes(thing, protocol, parts)
    return b"".join([*parts, pickle.STOP])


def _add_opcodes(thing: Any, protocol: int, parts: list[bytes]) -> None:
    match thing:
        case None:
            parts.append(pickle.NONE)
        case bool():
            parts.append(pickle.NEWTRUE if thing else pickle.NEWFALSE)
        case int():
            data = thing.to_bytes(thing.bit_length() // 8 + 1, "little", signed=True)
            parts.append(pickle.LONG1 + bytes([len(data)]) + data)
        case float():
            parts.append(pickle.BINFLOAT + struct.pack(">d", thing))
        case str():
            text = thing.encode()
            parts.append(pickle.BINUNICODE + struct.pack("<I", len(text)) + text)
        case tuple():
            parts.append(pickle.MARK)
            for part in thing:
                _add_opcodes(part, protocol, parts)
            parts.append(pickle.TUPLE)
        case list():
            parts += [pickle.EMPTY_LIST, pickle.MARK]
            for part in thing:
                _add_opcodes(part, protocol, parts)
            parts.append(pickle.APPENDS)
        case dict():
            parts += [pickle.EMPTY_DICT, pickle.MARK]
            for key, value in thing.items():
                _add_opcodes(key, protocol, parts)
                _add_opcodes(value, protocol, parts)
            parts.append(pickle.SETITEMS)
        case Global():
            if protocol >= 4:
                _add_opcodes(thing.module, protocol, parts)
                _add_opcodes(thing.name, protocol, parts)
                parts.append(pickle.STACK_GLOBAL)
            else:
                parts.append(pickle.GLOBAL + f"{thing.module}\n{thing.name}\n".encode())
        case Call():
            _add_opcodes(thing.function, protocol, parts)
            _add_opcodes(thing.arguments, protocol, parts)
            parts.append(pickle.NEWOBJ if isinstance(thing, New) else pickle.REDUCE)
            if thing.state is not None:
                _add_opcodes(thing.state, protocol, parts)
                parts.append(pickle.BUILD)
        case Persistent():
            _add_opcodes(thing.identity, protocol, parts)
            parts.append(pickle.BINPERSID)
        case _:
            raise TypeError(f"No pickle opcodes for {type(thing).__name__}")


def archive(data_pickle: bytes, storages: list[bytes] | None = None, root: str = "archive") -> bytes:
    """The zip that `torch.save` writes, stored without compression and with fixed times: the same content gives the
    same bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as container:

        def put(name: str, data: bytes) -> None:
            container.writestr(zipfile.ZipInfo(f"{root}/{name}", ARCHIVE_TIME), data)

        put("data.pkl", data_pickle)
        put("byteorder", sys.byteorder.encode())
        for number, storage in enumerate(storages or []):
            put(f"data/{number}", storage)
        put("version", b"3\n")
    return stream.getvalue()


def torch_save_bytes(thing: Any, root: str = "archive") -> bytes:
    """`torch.save(thing)` for a thing without tensors."""
    return archive(pickle_bytes(thing), root=root)


def safetensors(size: int, step: int) -> bytes:
    """A safetensors file with one bfloat16 tensor of about `size` bytes."""
    numbers = max(1, size // 2)
    header = {"weight": {"dtype": "BF16", "shape": [numbers], "data_offsets": [0, 2 * numbers]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + struct.pack("<H", step % 16000) * numbers


def model_bin(size: int, step: int) -> bytes:
    """A `pytorch_model.bin` with one float32 tensor of about `size` bytes."""
    numbers = max(1, size // 4)
    return tensor_save_bytes(struct.pack("<f", step) * numbers, numbers, 1)


def tensor_save_bytes(data: bytes, rows: int, columns: int) -> bytes:
    """`torch.save` of a float32 tensor of shape (rows, columns)."""
    storage = Persistent(("storage", Global("torch", "FloatStorage"), "0", "cpu", rows * columns))
    hooks = Call(Global("collections", "OrderedDict"), ())
    tensor = Call(
        Global("torch._utils", "_rebuild_tensor_v2"), (storage, 0, (rows, columns), (columns, 1), False, hooks)
    )
    return archive(pickle_bytes(tensor), [data])


class Inert:
    """What any class in a pickle becomes when this module reads it: it holds the state, and runs nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __call__(self, *arguments: Any) -> Inert:
        return Inert(*arguments)


class Reader(pickle.Unpickler):
    """Reads a pickle without importing or running anything: every class is Inert."""

    def find_class(self, module: str, name: str) -> Any:
        return types.new_class(name, (Inert,))

    def persistent_load(self, identity: Any) -> Any:
        return identity


def read_pickle(data: bytes) -> Any:
    return Reader(io.BytesIO(data)).load()


def read_archive(data: bytes) -> Any:
    """What `torch.load` reads, with stand-ins for classes. Raises zipfile.BadZipFile on a truncated file."""
    with zipfile.ZipFile(io.BytesIO(data)) as container:
        name = next(entry for entry in container.namelist() if entry.endswith("/data.pkl"))
        return read_pickle(container.read(name))
