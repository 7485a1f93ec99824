"""The units as they are installed: where they go, their text there, and who wrote a file that stands there already."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from supervisor.base import homes
from supervisor.base.errors import ConfigError

UNITS = Path(__file__).parent / "units"
"""The units as they are shipped: the one source of what is installed."""
SERVICE, SLICE = "rl-supervisor@.service", "rlsupervisor.slice"
SHIPPED_PROGRAM = "/opt/rl-supervisor/bin/rl-supervisor"
SHIPPED_CONFIG = "/etc/rl-supervisor"
MARK = (
    "# Put here by `rl-supervisor install` ({digest}). Changes belong in a drop-in (systemctl edit), which it keeps.\n"
)
_MARKED = re.compile(re.escape(MARK.strip()).replace(re.escape("{digest}"), "([0-9a-f]{16})"))
CREDENTIALS_SINCE = 252
"""The oldest systemd with credentials in its unit: relative names, looked for below /etc/credstore (systemd.exec(5)).

It was seen to start the unit where there are none. Older ones hand on what systemd itself was given, 250 not even that
(systemd pull request 23157); and 247 (Debian 11) was seen not to start a unit without its credential (status 243).
"""
PLAIN_PATH = re.compile(r"/[A-Za-z0-9/._+@:~-]*")

Whose = Literal["absent", "ours", "edited", "foreign"]

OF_THE_MACHINE = re.compile(
    # A user's manager starts after the network, cannot raise what the user may not, and has no credential store. System
    # call filters and capabilities would make it set no_new_privs, which breaks sudo in hooks.
    r"(Wants|After|Slice|Memory\w+|ManagedOOM\w+|OOMScoreAdjust|LoadCredential|StateDirectory\w*|LockPersonality|"
    r"RestrictRealtime|RestrictAddressFamilies|SystemCall\w+|CapabilityBoundingSet)=|#"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where things go: the machine's folders for root, the user's own (XDG) for all others."""

    units: Path
    config: Path
    state: Path
    user: bool
    share: Path
    """Man pages, and completion for bash and zsh, lie below it, where man and the shells look."""
    prefix: Path | None = None
    """Another root, as in an image or a test: files go below it, and no systemd is spoken to."""

    @property
    def systemctl(self) -> str:
        """As a person types it."""
        return "systemctl --user" if self.user else "systemctl"

    @property
    def folder_mode(self) -> int:
        """Of the folders of configuration and state."""
        return 0o700 if self.user else 0o750

    def at(self, path: Path) -> Path:
        """``path`` below the prefix."""
        return self.prefix / path.relative_to("/") if self.prefix else path


def place(prefix: Path | None = None, user: bool | None = None) -> Place:
    """Where things go for who calls (``user``: whether as another user than root).

    Raises ConfigError for a user without a home folder.
    """
    prefix = prefix.absolute() if prefix else None
    if not (os.geteuid() != 0 if user is None else user):
        config, state, share = Path(SHIPPED_CONFIG), Path("/var/lib/rl-supervisor"), Path("/usr/local/share")
        return Place(Path("/etc/systemd/system"), config, state, False, share, prefix)
    own, data = homes.config_home(), homes.data_home()
    if own is None or data is None:
        raise ConfigError(
            "There is no home folder to install a user's unit in: set HOME, or XDG_CONFIG_HOME, to a folder that this "
            "user may write, or install as root."
        )
    return Place(own / "systemd/user", own / "rl-supervisor", homes.state_home() / "rl-supervisor", True, data, prefix)


def program() -> Path:
    """The ``rl-supervisor`` that runs now, as a unit can name it. Raises ConfigError when there is none."""
    found = Path(sys.executable).with_name("rl-supervisor")
    if not os.access(found, os.X_OK):
        on_path = shutil.which("rl-supervisor")
        if on_path is None:
            raise ConfigError(
                f"There is no program rl-supervisor beside {sys.executable} and none on the PATH, so a unit would have "
                "nothing to start: install the package (pip install), then call it by its name."
            )
        found = Path(on_path).absolute()
    return found


def unit_texts(where: Place, program: Path, version: int | None = None) -> dict[str, str]:
    """Name and text of each unit, with real paths and without the mark, for systemd ``version`` (None: a new one).

    Raises ConfigError for odd paths.
    """
    for path in (program, where.config):
        if not PLAIN_PATH.fullmatch(str(path)):
            raise ConfigError(f"{path} has characters that a unit cannot name safely: install to a plain path.")
    service = (UNITS / SERVICE).read_text()
    service = service.replace(SHIPPED_PROGRAM, str(program)).replace(SHIPPED_CONFIG, str(where.config))
    if version is not None and version < CREDENTIALS_SINCE:
        service = "".join(line for line in service.splitlines(True) if not line.startswith("LoadCredential="))
    if not where.user:
        return {SERVICE: service, SLICE: (UNITS / SLICE).read_text()}
    lines = [line for line in service.splitlines() if not OF_THE_MACHINE.match(line)]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines).strip()) + "\n"
    return {SERVICE: text.replace("WantedBy=multi-user.target", "WantedBy=default.target")}


def mark_text(text: str) -> str:
    """A unit's text with the line that tells that it is ours and unchanged."""
    return MARK.format(digest=_digest_of_text(text)) + text


def whose(path: Path, name: str) -> Whose:
    """What is the file at ``path``: ours, as some version of us wrote it or as a plain copy of what is shipped; edited
    since by a person; or foreign, which it also is as a link.
    """
    if not os.path.lexists(path):
        return "absent"
    text = None if path.is_symlink() else text_of(path)
    if text is None:
        return "foreign"
    first, _, rest = text.partition("\n")
    found = _MARKED.fullmatch(first)
    if found:
        return "ours" if found[1] == _digest_of_text(rest) else "edited"
    return "ours" if text == (UNITS / name).read_text() else "foreign"


def text_of(path: Path) -> str | None:
    """None when there is no such file. Raises ConfigError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None


def _digest_of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
