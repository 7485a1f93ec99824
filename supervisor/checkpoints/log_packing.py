"""A log as it goes into the store: compressed, and within its limits."""

from __future__ import annotations

import zlib

from supervisor.base.errors import StoreError

SERIES = "series.jsonl"  # its name among the logs of an attempt
LOG_LIMIT = 512 << 10  # bytes of one, compressed
UNPACKED_LIMIT = 4 << 20
GZIP = 31  # zlib's window bits for a gzip header


def pack(text: str) -> bytes:
    """Compressed, reproducibly: equal texts give equal bytes."""
    packer = zlib.compressobj(6, zlib.DEFLATED, GZIP)
    return packer.compress(text.encode("utf-8", "replace")) + packer.flush()


def unpack(data: bytes) -> str:
    """The text again. Raises kind "damaged"; what would unpack to more than 4 MiB is cut there."""
    try:
        return zlib.decompressobj(GZIP).decompress(data, UNPACKED_LIMIT).decode("utf-8", "replace")
    except zlib.error as error:
        raise StoreError("damaged", f"a log in the store is damaged: it cannot be unpacked ({error})") from error
