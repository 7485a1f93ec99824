"""Where the store's key comes from, and what to tell a person if a key is missing or too narrow.

Keys never stand in a run file, a request, a sentence or a log: only the environment or systemd credentials hold them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from supervisor.base import secrets
from supervisor.storage.base import StoreError

KEYS = {
    "b2": ("B2_APPLICATION_KEY_ID", "B2_APPLICATION_KEY"),
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
}
"""What a store of each kind cannot be opened without: variables, and in lower case names of systemd credentials."""

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


def keys_from(environ: Mapping[str, str]) -> tuple[str, str]:
    """Key id and key: from the environment, else from systemd's credentials folder. Raises kind "permanent"."""
    return (
        _read_secret(environ, "B2_APPLICATION_KEY_ID", "b2_application_key_id"),
        _read_secret(environ, "B2_APPLICATION_KEY", "b2_application_key"),
    )


def s3_keys_from(environ: Mapping[str, str]) -> tuple[str, str, str | None]:
    """Access key id, secret key and, for a temporary key, session token; else as ``keys_from``."""
    return (
        _read_secret(environ, "AWS_ACCESS_KEY_ID", "aws_access_key_id", MAKE_AN_S3_KEY),
        _read_secret(environ, "AWS_SECRET_ACCESS_KEY", "aws_secret_access_key", MAKE_AN_S3_KEY),
        _find_in_environment(environ, "AWS_SESSION_TOKEN", "aws_session_token") or None,
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
        for key in KEYS.get(url.partition("://")[0], ())
        if not environ.get(key, "").strip() and not any(os.path.exists(place + key.lower()) for place in places)  # noqa: PTH110
    ]


def _read_secret(environ: Mapping[str, str], variable: str, credential: str, advice: str = MAKE_A_KEY) -> str:
    value = _find_in_environment(environ, variable, credential)
    if not value:
        raise StoreError(
            "permanent",
            f"{variable} is not set, and there is no systemd credential {credential}. {advice}",
        )
    if any(not 32 < ord(letter) < 127 for letter in value):
        raise StoreError("permanent", f"{variable} holds characters that no key has: copy it again, without quotes")
    return value


def _find_in_environment(environ: Mapping[str, str], variable: str, credential: str) -> str:
    value = environ.get(variable, "").strip()
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if not value and folder:
        try:
            value = (Path(folder) / credential).read_text().strip()
        except FileNotFoundError:
            value = ""
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError("permanent", f"the systemd credential {credential} cannot be read: {error}") from error
    return value
