"""Whether a file may tell this program what to do: only root and we can change it, or swap it for another.

A run file names commands, and a file of keys the environment that they run in; who can write one of them runs what he
likes as the user of the daemon. So they are judged before they are obeyed, by the owners and modes of the file and of
each folder and link on the way to it. `units/onstart.sh` has the same rule in bash for what it reads before any Python.

A file that was in order once and says the same now is still that file, whatever its mode has become: the daemon keeps
the sums of what it obeyed, so that a volume that is mounted in another way, or a careless chmod, costs no run. Nor does
this rule, where it comes to a job that already runs: what no daemon has judged yet is then obeyed once, with a warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from supervisor.base import env_file, proc_stat, secrets, socket_paths
from supervisor.base.socket_paths import login_name

VARIABLE = "RL_SUPERVISOR_TRUST_FILES"
"""With "1" every file is obeyed, even if others can write it: for volumes that show each file as writable by all."""
ACCEPTED = "accepted-files.json"
LARGEST = 1 << 20
_MOST_LINKS = 40  # as the kernel, path_resolution(7)
_MARKER = "RL_SUPERVISOR_ATTEMPT"  # in a shim's environment, with the folder of its attempt

_let_pass: dict[Path, dict[str, str]] = {}
"""By state folder: path to sum of what this process obeyed although others can change it. ``accept`` writes it down."""


def files_of(run_file: Path, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The run file and what brings keys with it, as far as it is there: NAME.env beside it, and credentials."""
    found = [run_file]
    beside = run_file.with_suffix(".env")
    found += [beside] if os.path.lexists(beside) else []
    folders = [(store, f"{run_file.stem}.*") for store in secrets.CREDSTORES]
    if given := environ.get("CREDENTIALS_DIRECTORY"):
        folders.append((Path(given), "*"))
    for folder, pattern in folders:
        with contextlib.suppress(OSError):  # a user who may not look there reads no key from it
            found += sorted(folder.glob(pattern))
    return found


def complaint(run_file: Path, state_dir: Path, text: bytes, environ: Mapping[str, str] = os.environ) -> str:
    """Why the run file or its keys are not obeyed, and what to do; "" when all are in order.

    ``text`` is what was read of the run file. ``state_dir``: beside what is in it, the sums of an earlier daemon count.
    """
    _let_pass.pop(state_dir, None)
    itself = _switched_off_by_itself(run_file) if environ.get(VARIABLE) == "1" else None
    if environ.get(VARIABLE) == "1" and itself is None:
        return ""
    wrong = [(path, problem) for path in files_of(run_file, environ) if (problem := problem_of(path))]
    if not wrong:
        return ""
    found = {str(path.absolute()): _sum_of(text if path == run_file else _read_file(path)) for path, _ in wrong}
    accepted = _read_sums(state_dir)
    unknown = [(path, why) for path, why in wrong if accepted.get(str(path.absolute())) != found[str(path.absolute())]]
    if not unknown:
        return ""
    sums = _sums_file(state_dir)
    if not os.path.lexists(sums) and not problem_of(sums) and _job_lives(state_dir):
        _let_pass[state_dir] = found
        return ""
    path, problem = unknown[0]
    return (
        f"{path} is not obeyed, since others could change it and so run what they like as {login_name(os.geteuid())}: "
        f"{problem} {_remedy_for(path)}{f' In {itself} it does not count, which others can write.' if itself else ''}"
    )


def accept(run_file: Path, state_dir: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Keep the sums of the files that are in order now. Whatever keeps it from being written costs only that.

    Returns a warning when a file was obeyed that is not: its sum is kept as well, and it never is with other words.
    """
    before = _read_sums(state_dir)
    once = _let_pass.pop(state_dir, {})
    sums = {**before, **once}
    for path in files_of(run_file, environ):
        data = _read_file(path)
        if data is not None and not problem_of(path):  # judged after it was read, and whatever VARIABLE says
            sums[str(path.absolute())] = _sum_of(data)
    if sums != before:
        _keep_sums(_sums_file(state_dir), sums)
    passed = next((one for one in files_of(run_file, environ) if str(one.absolute()) in once), None)
    if passed is None:
        return ""
    return (
        f"{passed} is obeyed this once, since a job of this run lives that began before files were judged, although "
        f"others could change it and so run what they like as {login_name(os.geteuid())}: {problem_of(passed)} A "
        f"daemon that finds it changed ends with 93. {_remedy_for(passed)}"
    )


def _remedy_for(path: Path) -> str:
    return (
        f"Where a volume shows every file so (a network volume, FUSE), copy it to where only you write: "
        f"`install -D -m 600 {path} /etc/rl-supervisor/{path.name}`; or, if you trust all users who can write "
        f"there, set {VARIABLE}=1 in the environment."
    )


def _switched_off_by_itself(run_file: Path) -> Path | None:
    """The .env beside the run file, where it brings ``VARIABLE`` and others can write it: it cannot vouch for itself.

    systemd reads it before the file is judged.
    """
    found = env_file.beside(run_file)
    return found.path if VARIABLE in found.values and problem_of(found.path) else None


def _keep_sums(target: Path, sums: Mapping[str, str]) -> None:
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, json.dumps(sums, indent=1).encode())
        finally:
            os.close(fd)
        fresh.replace(target)


def problem_of(path: Path) -> str:
    """Who else can change or swap ``path``, as a sentence with its remedy; "" when only root and we can.

    A path that cannot be followed is no problem of ours: reading it fails, and that is told better.
    """
    try:
        for place, found, last in _way_to(path):
            if said := _problem_of(place, found, last=last):
                return said
    except OSError:
        return ""
    return ""


def _way_to(path: Path) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Every folder, link and at last the file that are met on the way to ``path``, as the kernel walks it."""
    left = list(reversed(path.absolute().parts[1:]))
    at, links = Path("/"), 0
    yield at, at.lstat(), False
    while left:
        word = left.pop()
        if word in ("", "."):
            continue
        if word == "..":
            at = at.parent
            continue
        at /= word
        found = at.lstat()
        yield at, found, not left and not stat.S_ISLNK(found.st_mode)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MOST_LINKS:
                return
            target = at.readlink()
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            at = Path("/") if target.is_absolute() else at.parent


def _problem_of(place: Path, found: os.stat_result, *, last: bool) -> str:
    what = "folder" if stat.S_ISDIR(found.st_mode) else "file"
    if found.st_uid not in _trusted_users():
        return (
            f"the {what} {place} belongs to {login_name(found.st_uid)}, who is neither root nor the one who runs this: "
            f"`chown {login_name(os.geteuid())} {place}`."
        )
    mode = found.st_mode
    if stat.S_ISLNK(mode) or (not last and mode & stat.S_ISVTX):
        return ""  # a link has no mode; what lies in a sticky folder is its owner's, who is judged himself
    if mode & 0o002:
        return f"all users can write the {what} {place} (mode {stat.S_IMODE(mode):04o}): `chmod go-w {place}`."
    if mode & 0o020 and not _is_private_group(found):
        group = next((words[0] for words in _rows("/etc/group") if words[2:3] == [str(found.st_gid)]), found.st_gid)
        return (
            f"all of group {group} can write the {what} {place} (mode {stat.S_IMODE(mode):04o}): `chmod g-w {place}`."
        )
    return ""


def _trusted_users() -> set[int]:
    """The users we trust: root, ourselves, and the person who ran sudo, who may do as root anyway."""
    ours = {0, os.geteuid()}
    by = os.environ.get("SUDO_UID", "")
    return ours | {int(by)} if os.geteuid() == 0 and by.isascii() and by.isdigit() else ours


def _is_private_group(found: os.stat_result) -> bool:
    """Is it the group of one user alone? Debian and its like give each user one, and a umask of 002.

    Looked up in the files, not by NSS: a directory service that hangs must not hold up a start.
    """
    if found.st_gid == 0:
        return True
    name = next((words[0] for words in _rows("/etc/passwd") if words[2:3] == [str(found.st_uid)]), None)
    others = [words for words in _rows("/etc/passwd") if words[3:4] == [str(found.st_gid)] and words[0] != name]
    group = next((words for words in _rows("/etc/group") if words[2:3] == [str(found.st_gid)]), None)
    if name is None or group is None or len(group) < 4 or others:
        return False
    return group[0] == name and set(filter(None, group[3].split(","))) <= {name}


def _rows(path: str) -> list[list[str]]:
    try:
        return [line.split(":") for line in Path(path).read_text(errors="replace").splitlines()]
    except OSError:
        return []


# ---------------------------------------------------------------- what was obeyed before


def _sums_file(state_dir: Path) -> Path:
    """Where the sums are kept: in the state folder; where others can write that, beside the sockets.

    Those are gone with the machine or the container, and so is every job.
    """
    if not problem_of(state_dir):
        return state_dir / ACCEPTED
    return socket_paths.socket_dir() / f"{_sum_of(os.fsencode(state_dir.absolute()))[:16]}-{ACCEPTED}"


def _job_lives(state_dir: Path) -> bool:
    """Does a job of this state folder live? Its shim's environment names the folder of its attempt.

    A record that others could have written says nothing; what the kernel tells of the process does.
    """
    for record in sorted(state_dir.glob("attempts/[0-9]*/*.shim.json"), reverse=True):
        marker = f"{_MARKER}={record.parent.absolute()}".encode()
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            told = json.loads(_read_file(record) or b"")
            process = Path(f"/proc/{int(told['shim_pid'])}")
            status = (process / "status").read_text(errors="replace")
            users = next((line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")), ["-1"])
            mine = set(map(int, users)) <= {0, os.geteuid()}  # all four: not a stranger's who became root by a program
            if mine and marker in (process / "environ").read_bytes().split(b"\0"):
                return bool(proc_stat.start_ticks(int(process.name)) == told["shim_start_ticks"])
    return False


def _read_sums(state_dir: Path) -> Mapping[str, str]:
    """Path to SHA-256 of what was in order once; nothing where others could have written that down."""
    path = _sums_file(state_dir)
    data = _read_file(path)
    if data is None or problem_of(path):
        return {}
    try:
        told = json.loads(data)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in told.items()} if isinstance(told, dict) else {}


def _read_file(path: Path) -> bytes | None:
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(LARGEST)
    except OSError:
        return None


def _sum_of(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()
