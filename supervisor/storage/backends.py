"""The backends, a row each, and what has to be known of a store while none is opened: its URL, its keys.

A backend is the file beside this one with the name of its scheme; ``open_at`` in it opens a store.
"""

from __future__ import annotations

import re

from supervisor.base.records import dataclass


@dataclass(frozen=True)
class Backend:
    """One kind of store."""

    scheme: str
    """Of its URL, and the name of its file."""
    form: str
    """Its URL behind the scheme, as people are shown it."""
    pattern: str
    """A regular expression of the same."""
    keys: tuple[str, ...] = ()
    """Variables that a store cannot be opened without; in lower case, names of systemd credentials."""
    secrets: tuple[str, ...] = ()
    """What the names of its variables begin with: neither the job nor a command of the run file ever gets them."""
    takes: tuple[str, ...] = ()
    """Settings of [store] that work with some backends only (``endpoint``, ``region``, ``limit_mbit``)."""
    library: str = ""
    """What pip installs for it besides, as the extra of rl-supervisor with the scheme's name does."""
    names: str = ""
    """What the names of its buckets are like."""

    @property
    def module(self) -> str:
        """The module that its library brings."""
        return re.split("[<>=]", self.library, maxsplit=1)[0]


BUCKET = "bucket[/prefix]"
BACKENDS = (
    Backend(
        "b2",
        BUCKET,
        r"[A-Za-z0-9-]{6,63}(/.*)?",
        keys=("B2_APPLICATION_KEY_ID", "B2_APPLICATION_KEY"),
        secrets=("B2_", "BACKBLAZE_"),
        takes=("limit_mbit",),
        names="6 to 63 letters, digits and dashes",
    ),
    Backend(
        "s3",
        BUCKET,
        r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?",
        keys=("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        secrets=("AWS_",),
        takes=("endpoint", "region"),
        library="botocore>=1.37,<2",
        names="3 to 63 small letters, digits, dots and dashes",
    ),
    Backend("file", "/folder", r"/.+"),
)
SECRETS = tuple(name for backend in BACKENDS for name in backend.secrets)
FORMS = " and ".join(", ".join(f"{one.scheme}://{one.form}" for one in BACKENDS).rsplit(", ", 1))


def backend_of(url: str) -> Backend | None:
    """The backend of a URL, by its scheme."""
    return next((backend for backend in BACKENDS if url.startswith(f"{backend.scheme}://")), None)


def url_problem(url: str) -> str:
    """Why this is no URL of a store; "" where it is one."""
    fits = any(re.fullmatch(f"{backend.scheme}://{backend.pattern}", url) for backend in BACKENDS)
    if fits:
        return ""
    backend = backend_of(url)
    if backend is not None and backend.names:
        return f"{url!r} names no bucket of {backend.scheme}: such a name has {backend.names}"
    return f"{url!r} is none of {FORMS}"


def keys_of(url: str) -> tuple[str, ...]:
    """The variables that the store at ``url`` cannot be opened without."""
    backend = backend_of(url)
    return backend.keys if backend else ()
