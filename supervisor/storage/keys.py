"""Which keys of a store are missing, what they must be able to do, and what to tell a person about that.

Keys never stand in a run file, a request, a sentence or a log: only the environment or systemd credentials hold them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from supervisor.base import secrets
from supervisor.storage.backends import keys_of

NEEDED = ("listFiles", "readFiles", "writeFiles", "deleteFiles")
"""Capabilities that publishing, restoring and pruning need together; listBuckets as well for a key of all buckets."""

MAKE_A_KEY = (
    f"Make an application key for this bucket with {', '.join(NEEDED)} (to look and to restore listFiles and readFiles "
    "are enough; a key of all buckets needs listBuckets besides) and set B2_APPLICATION_KEY_ID and B2_APPLICATION_KEY "
    "(or the systemd credentials b2_application_key_id and b2_application_key)"
)
MAKE_AN_S3_KEY = (
    "Make an access key that may list this bucket and its unfinished uploads, and read, write and delete its objects "
    "(to look and to restore, list and read), and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the systemd "
    "credentials aws_access_key_id and aws_secret_access_key)"
)


def find_missing_keys(
    url: str, name: str, environ: Mapping[str, str], stores: Iterable[Path] | None = None
) -> list[str]:
    """Which keys of the store at ``url`` the run ``name`` has nowhere: neither in ``environ``, nor as a credential in
    the folder that it names, nor in ``stores``, where systemd finds them (None: all that it looks in).
    """
    folder = environ.get("CREDENTIALS_DIRECTORY")
    places = [f"{folder}/"] if folder else []
    places += [f"{store}/{name}." for store in (secrets.CREDSTORES if stores is None else stores)]
    return [
        key
        for key in keys_of(url)
        if not environ.get(key, "").strip() and not any(os.path.exists(place + key.lower()) for place in places)  # noqa: PTH110
    ]
