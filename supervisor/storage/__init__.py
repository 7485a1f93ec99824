"""Object stores: ``open_store`` picks the backend by URL. b2sdk or botocore are imported only when one is opened."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from supervisor.base.retry import Retry
from supervisor.storage.base import Store, StoreError
from supervisor.storage.names import name_problem


def open_store(
    url: str,
    realm: str | None,
    environ: Mapping[str, str],
    streams: int = 16,
    part_size: int | None = None,
    *,
    retry: Retry | None = None,
    limit_mbit: float | None = None,
    region: str | None = None,
) -> Store:
    """Open ``file:///folder``, ``b2://bucket[/prefix]`` or ``s3://bucket[/prefix]``.

    ``realm`` is B2's realm name or the URL of another B2 server, or of an S3 service; ``region`` is S3's; ``environ``
    holds the keys or names the folder of systemd credentials; ``part_size`` in bytes overrules what the server
    recommends. A bucket is reached at once: raises StoreError "permanent" (key, bucket) or "transient" (network).
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        from pathlib import Path

        from supervisor.storage.file import FileStore

        folder = unquote(parts.path)
        if parts.netloc or not folder.startswith("/") or "\0" in folder:
            raise StoreError("permanent", f"the store {url!r} is no local folder: write file:///absolute/folder")
        return FileStore(Path(folder), streams=streams, part_size=part_size)
    if parts.scheme not in ("b2", "s3"):
        raise StoreError(
            "permanent", f"the store {url!r} is none of b2://bucket[/prefix], s3://bucket[/prefix] and file:///folder"
        )
    prefix = parts.path.strip("/")
    problem = name_problem(prefix) if prefix else None
    if not parts.netloc or problem or parts.query or parts.fragment:
        form = f"write {parts.scheme}://bucket or {parts.scheme}://bucket/prefix"
        raise StoreError("permanent", f"the store {url!r} cannot be used ({problem or form})")
    prefix = f"{prefix}/" if prefix else ""
    if parts.scheme == "b2":
        from supervisor.storage.b2 import B2Store
        from supervisor.storage.b2client import B2Client
        from supervisor.storage.keys import keys_from

        key_id, key = keys_from(environ)
        b2 = B2Client(
            bucket=parts.netloc,
            prefix=prefix,
            key_id=key_id,
            key=key,
            realm=realm,
            streams=streams,
            retry=retry or Retry(),
            limit_bytes_per_s=limit_mbit * 1e6 / 8 if limit_mbit else None,
        )
        return B2Store(client=b2, streams=streams, part_size=part_size)
    try:
        from supervisor.storage.s3 import S3Store
        from supervisor.storage.s3client import S3Client, region_of
    except ImportError as error:
        if not (error.name or "").startswith("botocore"):
            raise
        raise StoreError(
            "permanent", f"the store {url!r} needs botocore, which is not installed: pip install 'rl-supervisor[s3]'"
        ) from error
    from supervisor.storage.keys import s3_keys_from

    key_id, secret, token = s3_keys_from(environ)
    s3 = S3Client(
        bucket=parts.netloc,
        endpoint=realm,
        region=region_of(realm, region, environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")),
        key_id=key_id,
        secret=secret,
        token=token,
        streams=streams,
        retry=retry or Retry(),
    )
    return S3Store(client=s3, prefix=prefix, streams=streams, part_size=part_size)
