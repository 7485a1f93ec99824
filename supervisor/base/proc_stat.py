"""What /proc tells of a process and of the machine, as far as one is told from later ones by it.

The shim imports this file, which therefore imports nothing. psutil's start time is of the wall clock, which is no
identity once the clock is set.
"""
# ruff: noqa: PTH123
# (pathlib would cost a third of the shim's start-up time)

from __future__ import annotations


def boot_id() -> str:
    """The kernel's name for this boot, "" where it is hidden."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def is_this_boot(recorded: str) -> bool:
    """Was ``recorded`` the name of this boot? Also where one of the two is hidden: that proves no reboot."""
    return not recorded or boot_id() in ("", recorded)


def forks() -> int | None:
    """Processes and threads that the machine has made since boot (proc(5), /proc/stat); None where that is hidden."""
    try:
        with open("/proc/stat", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("processes "):
                    return int(line.split()[1]) or None  # some sandboxes always say 0
    except (OSError, ValueError, IndexError):
        pass
    return None


def read_stat(path: str) -> tuple[str, list[str]] | None:
    """Name and the fields after it (state first) of ``/proc/PID/stat`` or a thread's, see proc(5).

    None when it is gone, or hidden from this user. Raises OSError where that is unknown: no descriptor is left.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            text = file.read(2048).decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    head, _, tail = text.rpartition(")")  # the name may hold brackets and blanks itself
    fields = tail.split()
    return (head.partition("(")[2], fields) if len(fields) > 19 else None


def stat_fields(pid: int) -> tuple[str, list[str]] | None:
    """The same of a process."""
    return read_stat(f"/proc/{pid}/stat")


def start_ticks(pid: int) -> int | None:
    """Kernel start time of ``pid`` in clock ticks since boot (field 22 of its stat), None when it is gone."""
    found = stat_fields(pid)
    return int(found[1][19]) if found else None
