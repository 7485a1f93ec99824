"""Object stores: ``open_store`` imports the backend of a URL, and with it b2sdk or botocore, only when it opens one."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from supervisor.base.errors import StoreError
from supervisor.base.retry import Retry
from supervisor.storage.backends import FORMS, backend_of

if TYPE_CHECKING:
    from supervisor.storage.base import Store


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
    """Open the store at ``url``.

    ``realm`` is B2's realm name or the URL of another B2 server, or of an S3 service; ``region`` is S3's; ``environ``
    holds the keys or names the folder of systemd credentials; ``part_size`` in bytes overrules what the server
    recommends. A bucket is reached at once: raises StoreError "permanent" (key, bucket) or "transient" (network).
    """
    backend = backend_of(url)
    if backend is None:
        raise StoreError("permanent", f"the store {url!r} is none of {FORMS}")
    from supervisor.storage.opening import Opening

    asked = Opening(url, realm, environ, streams, part_size, retry or Retry(), limit_mbit, region)
    try:
        opened: Store = import_module(f"{__name__}.{backend.scheme}").open_at(asked)
    except ImportError as error:
        if not backend.library or not (error.name or "").startswith(backend.module):
            raise
        pip = f"pip install 'rl-supervisor[{backend.scheme}]'"
        raise StoreError(
            "permanent", f"the store {url!r} needs {backend.module}, which is not installed: {pip}"
        ) from error
    return opened
