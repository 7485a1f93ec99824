"""The few words a daemon says to systemd (sd_notify(3)), without a dependency and without systemd being there."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping, MutableMapping

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
TURN_S = 1.0  # how long READY, RELOADING and STOPPING wait for room: who is never told READY ends the service


class Notifier:
    """What the daemon tells its service manager, by datagrams to ``$NOTIFY_SOCKET`` (``address`` "": nothing).

    The socket's queue holds ten (net.unix.max_dgram_qlen). A ping or a sentence that finds no room is lost: another
    follows. A beginning or an end is said once, and waits. No method raises; none waits for longer than ``TURN_S``.
    """

    def __init__(
        self, address: str = "", watchdog_s: float | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        self.watchdog_s = watchdog_s
        """systemd wants a ping at least this often, in seconds; None when it does not watch."""
        self.variables: Mapping[str, str] = dict(variables or {})
        """What was taken out of the environment: a program that goes on in this process is given it again."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        wait = struct.pack("@ll", int(TURN_S), int(TURN_S % 1 * 1e6))  # a timeval
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)

    def tell_ready(self, status: str = "") -> None:
        """The service is up."""
        self._send("READY=1", status)

    def status(self, sentence: str) -> None:
        """What `systemctl status` shows."""
        self._send("", sentence, socket.MSG_DONTWAIT)

    def ping(self) -> None:
        """The watchdog's ping: only the loop that does the work may send it."""
        self._send("WATCHDOG=1", "", socket.MSG_DONTWAIT)

    def tell_reloading(self, status: str = "") -> None:
        """A reload begins; ``tell_ready`` ends it (Type=notify-reload of systemd 253 wants the monotonic time)."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_us}", status)

    def tell_stopping(self, status: str = "") -> None:
        """The service goes down."""
        self._send("STOPPING=1", status)

    def _send(self, words: str, status: str, flags: int = 0) -> None:
        if not self._address:
            return
        one_line = " ".join(status.split())
        message = "\n".join(part for part in (words, f"STATUS={one_line}" if one_line else "") if part)
        try:
            self._socket.sendto(message.encode("utf-8", "replace"), flags, self._address)
        except OSError:
            return


def notifier(env: MutableMapping[str, str] = os.environ) -> Notifier:
    """The service manager of this process. Takes its variables out of ``env``: no child may speak for the daemon."""
    taken = {name: env.pop(name) for name in VARIABLES if name in env}
    address = taken.get("NOTIFY_SOCKET", "")
    microseconds, pid = taken.get("WATCHDOG_USEC", ""), taken.get("WATCHDOG_PID", "")
    if not address.startswith(("/", "@")):  # empty, or vsock: which only a container manager on another machine uses
        return Notifier(variables=taken)
    watched = microseconds.isdigit() and int(microseconds) > 0 and pid in ("", str(os.getpid()))
    return Notifier(address, int(microseconds) / 1e6 if watched else None, taken)
