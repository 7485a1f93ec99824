"""Object stores: ``open_store`` picks the backend by URL. b2sdk is imported only when a B2 store is opened."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from supervisor.storage.base import Store, StoreError
from supervisor.storage.names import name_problem
from supervisor.storage.retry import Retry

DEFAULT_STREAMS = 16


def open_store(
    url: str,
    realm: str | None,
    environ: Mapping[str, str],
    streams: int = DEFAULT_STREAMS,
    part_size: int | None = None,
    *,
    retry: Retry | None = None,
) -> Store:
    """Open ``file:///folder`` or ``b2://bucket[/prefix]``.

    ``realm`` is B2's realm name or the URL of another B2 server; ``environ`` holds the keys or names the folder of
    systemd credentials; ``part_size`` in bytes overrules what the server recommends. A B2 store is reached at once:
    raises StoreError "permanent" (key, bucket) or "transient" (network).
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        from pathlib import Path

        from supervisor.storage.file import FileStore

        folder = unquote(parts.path)
        if parts.netloc or not folder.startswith("/") or "\0" in folder:
            raise StoreError("permanent", f"the store {url!r} is no local folder: write file:///absolute/folder")
        return FileStore(Path(folder), streams=streams, part_size=part_size)
    if parts.scheme == "b2":
        from supervisor.storage.b2 import B2Store
        from supervisor.storage.keys import keys_from

        prefix = parts.path.strip("/")
        problem = name_problem(prefix) if prefix else None
        if not parts.netloc or problem or parts.query or parts.fragment:
            raise StoreError(
                "permanent",
                f"the store {url!r} cannot be used ({problem or 'write b2://bucket or b2://bucket/prefix'})",
            )
        key_id, key = keys_from(environ)
        return B2Store(
            bucket=parts.netloc,
            prefix=f"{prefix}/" if prefix else "",
            key_id=key_id,
            key=key,
            realm=realm,
            streams=streams,
            part_size=part_size,
            retry=retry or Retry(),
        )
    raise StoreError("permanent", f"the store {url!r} is neither b2://bucket[/prefix] nor file:///folder")
