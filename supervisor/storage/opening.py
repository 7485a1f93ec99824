"""What a backend is given to open a store: settings of [store], and the environment that holds its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from supervisor.base.retry import Retry
from supervisor.storage.base import StoreError
from supervisor.storage.names import name_problem


@dataclass(frozen=True)
class Opening:
    """As ``storage.open_store`` was called."""

    url: str
    service: str | None
    environ: Mapping[str, str]
    streams: int
    part_size: int | None
    retry: Retry
    limit_mbit: float | None
    region: str | None

    def read_bucket(self) -> tuple[str, str]:
        """The bucket of SCHEME://bucket[/prefix], and the prefix: empty, or ending in '/'. Raises kind "permanent"."""
        parts = urlsplit(self.url)
        prefix = parts.path.strip("/")
        problem = name_problem(prefix) if prefix else None
        if not parts.netloc or problem or parts.query or parts.fragment:
            form = f"write {parts.scheme}://bucket or {parts.scheme}://bucket/prefix"
            raise StoreError("permanent", f"the store {self.url!r} cannot be used ({problem or form})")
        return parts.netloc, f"{prefix}/" if prefix else ""

    def read_key(self, variable: str, advice: str) -> str:
        """A key: from the environment, else from systemd's credentials folder. Raises kind "permanent"."""
        value = self.find_key(variable)
        if not value:
            told = f"{variable} is not set, and there is no systemd credential {variable.lower()}. {advice}"
            raise StoreError("permanent", told)
        if any(not 32 < ord(letter) < 127 for letter in value):
            raise StoreError("permanent", f"{variable} holds characters that no key has: copy it again, without quotes")
        return value

    def find_key(self, variable: str) -> str:
        """The same for one that may be missing: then ""."""
        value = self.environ.get(variable, "").strip()
        folder = self.environ.get("CREDENTIALS_DIRECTORY")
        if not value and folder:
            try:
                value = (Path(folder) / variable.lower()).read_text().strip()
            except FileNotFoundError:
                value = ""
            except (OSError, UnicodeDecodeError) as error:
                told = f"the systemd credential {variable.lower()} cannot be read: {error}"
                raise StoreError("permanent", told) from error
        return value
