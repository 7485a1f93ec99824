"""The metadata reader against pickles that want to run code, to hang, or to eat the memory."""

from __future__ import annotations

import os
import pickle
import pickletools
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.checkpoints import dcp_metadata
from supervisor.checkpoints.dcp_metadata import MAX_BYTES, MetadataError, needed_bytes
from tests.fuzz.profiles import tries

GOLDEN = (Path(__file__).parent / "golden" / "dcp_2_ranks" / ".metadata").read_bytes()
METADATA = b"ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81"
INFO = b"ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n)\x81"


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def pickled(entries: bytes, before: bytes = b"") -> bytes:
    """A minimal Metadata with ``entries`` (pairs of values) as its storage_data."""
    return b"\x80\x02" + before + METADATA + b"}" + text("storage_data") + b"}(" + entries + b"us" + b"b."


def entry(path: bytes, offset: bytes = b"K\x00", length: bytes = b"K\x0a") -> bytes:
    state = b"}(" + text("relative_path") + path + text("offset") + offset + text("length") + length + b"u"
    return b"N" + INFO + state + b"b"


def test_the_real_metadata_names_both_files_with_their_exact_sizes() -> None:
    folder = Path(__file__).parent / "golden" / "dcp_2_ranks"
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.distcp")}
    assert needed_bytes(GOLDEN) == sizes
    assert len(sizes) == 2


def test_the_same_metadata_without_memo_or_in_other_protocols_says_the_same() -> None:
    assert needed_bytes(pickletools.optimize(GOLDEN)) == needed_bytes(GOLDEN)


def test_a_hand_made_metadata_takes_the_furthest_end_per_file() -> None:
    two = entry(text("a"), b"K\x05", b"K\x05") + entry(text("a"), b"K\x00", b"K\x07") + entry(text("b/c"))
    assert needed_bytes(pickled(two)) == {"a": 10, "b/c": 10}


EVIL: dict[str, bytes] = {
    "os.system by protocol 0": b"cos\nsystem\n(S'touch HACKED'\ntR.",
    "os.system by protocol 2": b"\x80\x02cos\nsystem\n" + text("touch HACKED") + b"\x85R.",
    "posix.system inside a sound metadata": pickled(
        entry(text("a")), b"cposix\nsystem\n" + text("touch HACKED") + b"\x85R0"
    ),
    "builtins.eval": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
    "builtins.getattr": b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.",
    "a dotted name through torch's imports": b"\x80\x04"
    + text("torch.distributed.checkpoint.metadata")
    + text("os.system")
    + b"\x93.",
    "torch.load": b"\x80\x02ctorch\nload\n" + text("x") + b"\x85R.",
    "torch.hub": b"\x80\x02ctorch.hub\nload\n.",
    "a process class of torch": b"\x80\x02"
    b"ctorch.distributed.elastic.multiprocessing.subprocess_handler\nSubprocessHandler\n)R.",
    "a function called through NEWOBJ": b"\x80\x02ctorch\ncompile\n)\x81.",
    "INST": b"\x80\x02(S'x'\nios\nsystem\n.",
    "OBJ": b"\x80\x02(cos\nsystem\n" + text("x") + b"o.",
    "extension code": b"\x80\x02\x82\x01.",
    "persistent id": b"\x80\x02Pfile\n.",
    "binary persistent id": b"\x80\x02K\x01Q.",
    "out of band buffer": b"\x80\x05\x97.",
    "a state for a class": b"\x80\x02ctorch\nSize\n}b.",
    "a state for a number": b"\x80\x02K\x01}b.",
    "protocol 99": b"\x80\x63N.",
    "a text that announces exabytes": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x0f.",
    "bytes that announce 2 GiB": b"\x80\x02B\xff\xff\xff\x7f.",
    "bytes that announce exabytes": b"\x80\x04\x8e" + b"\xff" * 8 + b".",
    "a bytearray": b"\x80\x05\x96" + b"\xff" * 8 + b".",
    "a number of 2 GiB": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a number with a negative length": b"\x80\x02\x8b\xff\xff\xff\xff.",
    "a number of 100,000 bytes": b"\x80\x02\x8b\xa0\x86\x01\x00" + b"\x7f" * 100_000 + b".",
    "a decimal number of a million digits": b"\x80\x02I" + b"9" * 1_000_000 + b"\n.",
    "a memo index of 2 billion": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "a frame that is longer than the file": b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
    "nothing": b"",
    "only a stop": b".",
    "marks and nothing else": b"\x80\x02" + b"(" * 3_000_000 + b".",
    "a pop from below the mark": b"\x80\x02N(0.",
    "a tuple from below the mark": b"\x80\x02N(\x85.",
    "a mark that is not there": b"\x80\x02Nt.",
    "no Metadata": b"\x80\x02}.",
    "a Metadata without state": b"\x80\x02" + METADATA + b".",
    "a Metadata of which the state is a number": b"\x80\x02" + METADATA + b"K\x01b.",
    "no stored data": pickled(b""),
    "stored data that is a list": b"\x80\x02" + METADATA + b"}" + text("storage_data") + b"]sb.",
    "an entry that is a number": pickled(b"NK\x01"),
    "an entry without path": pickled(entry(b"N")),
    "an entry with an empty path": pickled(entry(text(""))),
    "an entry with a negative offset": pickled(entry(text("a"), b"J\xff\xff\xff\xff")),
    "an entry with a length that is true": pickled(entry(text("a"), length=b"\x88")),
    "an entry with a length of 2**63": pickled(entry(text("a"), length=b"\x8a\x09" + b"\x00" * 7 + b"\x80\x00")),
    "an odd number of items": b"\x80\x02}(Nu.",
    "items of a list": b"\x80\x02](NNu.",
    "an append to a dictionary": b"\x80\x02}Na.",
    "text that is not UTF-8": b"\x80\x02X\x01\x00\x00\x00\xff.",
    "a module name that never ends": b"\x80\x02c" + b"a" * 100_000,
    "more bytes than we read": b"\x80\x02" + b"N0" * (MAX_BYTES // 2) + b".",
}


@pytest.mark.parametrize("name", EVIL)
def test_it_is_refused_with_a_clause_and_nothing_happens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = time.monotonic()
    with pytest.raises(MetadataError) as caught:
        needed_bytes(EVIL[name])
    assert str(caught.value).startswith(("it ", "its ", "byte ", "one of its "))
    assert len(str(caught.value)) < 300
    assert list(tmp_path.iterdir()) == []
    assert time.monotonic() - before < 20


def test_what_names_foreign_code_is_said_to_be_dangerous() -> None:
    with pytest.raises(MetadataError, match=r"it names 'posix\.system', which no checkpoint needs; do not load it"):
        needed_bytes(pickle.dumps(_Evil()))


class _Evil:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch HACKED",)


def nested(depth: int, wrap: bytes) -> bytes:
    return b"\x80\x02)" + wrap * depth + b"0N."


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: nested(200_000, b"\x85"), id="200,000 nested tuples"),
        pytest.param(lambda: nested(1_000_000, b"\x85"), id="a million nested tuples", marks=pytest.mark.soak),
        pytest.param(lambda: b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".", id="200,000 nested lists"),
        pytest.param(
            lambda: b"\x80\x02" + b"]" * 900_000 + b"a" * 899_999 + b".",
            id="900,000 nested lists",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            lambda: b"\x80\x02}" + b")q\x00" + b"h\x00\x86q\x00" * 200 + b"Ns.",
            id="a tuple of 2**200 leaves as a key, which takes for ever to hash",
        ),
        pytest.param(
            lambda: (
                b"\x80\x02}("
                + b"".join(b"\x8a\x0a" + (n * (2**61 - 1)).to_bytes(10, "little") + b"N" for n in range(200_000))
                + b"u."
            ),
            id="200,000 keys with one hash",
        ),
        pytest.param(
            lambda: b"\x80\x02" + text("x" * 1_000_000) + b"q\x00" + b"h\x00" * 200_000 + b".",
            id="200,000 times a long text",
        ),
        pytest.param(
            lambda: b"\x80\x02" + text("x" * 1_000_000) + b"q\x00" + b"h\x00" * 900_000 + b".",
            id="900,000 times a long text",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            lambda: b"\x80\x02" + b"}" * 3_000_000 + b".", id="three million dictionaries", marks=pytest.mark.soak
        ),
        pytest.param(
            lambda: b"\x80\x02" + b"Nq\x00" * 2_000_000 + b".", id="two million memo entries", marks=pytest.mark.soak
        ),
        pytest.param(
            lambda: b"\x80\x02" + b"N0" * 8_000_000 + b".", id="16 million operations", marks=pytest.mark.soak
        ),
    ],
)
def test_a_bomb_costs_seconds_at_most_and_little_memory(make: Callable[[], bytes]) -> None:
    bomb = make()
    before, peak = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MetadataError):
        needed_bytes(bomb)
    assert time.monotonic() - before < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 500 * 1024  # KiB


@pytest.mark.parametrize(
    ("limit", "bomb"),
    [
        ("MAX_STACK", b"}" * 102),
        ("MAX_OBJECTS", b"}0" * 101),
        ("MAX_OPERATIONS", b"N0" * 51),
    ],
)
def test_what_is_too_much_is_refused_as_soon_as_it_is(limit: str, bomb: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert getattr(dcp_metadata, limit) <= 12_000_000
    monkeypatch.setattr(dcp_metadata, limit, 100)
    with pytest.raises(MetadataError, match="more than"):
        needed_bytes(b"\x80\x02" + bomb + b".")


@given(st.binary(max_size=300))
@tries(400)
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    for start in (b"", b"\x80\x02", b"\x80\x02" + METADATA + b"}"):
        with pytest.raises(MetadataError):
            needed_bytes(start + data)
