"""A machine that you own, reached by ``ssh``: one host, one pod at a time, no price.

What is started there lies in ``~/.rl-supervisor-fleet/LABEL``: ``env`` (secrets, 0600), ``boot.sh``, ``log``, ``pid``.
A process is known by the label in its environment, not by its number alone. Scripts go over standard input: nothing
secret stands on a command line, here or there.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from supervisor.effects.claiming import LABEL as MARK
from supervisor.fleet.places.base import LABEL, ErrorKind, Instance, Offer, Order, Phase, PlaceError, Want

FOLDER = ".rl-supervisor-fleet"
TIMEOUT_S = 60.0
LOG_BYTES = 16 << 10
_NO_CONNECTION = 255  # ssh's own exit code
_ALIVE = f"""alive() {{ p=$(cat "$1/pid" 2>/dev/null) && tr '\\0' '\\n' <"/proc/$p/environ" 2>/dev/null |
  grep -qx "{MARK}=${{1##*/}}"; }}
"""
_LIST = f"""{_ALIVE}cd ~/{FOLDER} 2>/dev/null || exit 0
for d in */; do d=${{d%/}}; if alive "$d"; then echo "$d running"; else echo "$d ended"; fi; done
"""


class Ssh:
    """One host. ``command`` is ``ssh`` with its options; ``host`` as ``~/.ssh/config`` knows it."""

    def __init__(self, host: str, command: Sequence[str] = ("ssh",)) -> None:
        self.name = f"ssh/{host}"
        self._host = host
        self._command = [*command, "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", host, "bash -s"]

    def list_instances(self) -> list[Instance]:
        """All pods that were started there and not destroyed."""
        found = []
        for line in self._run(_LIST, "away").splitlines():
            label, _, word = line.partition(" ")
            if LABEL.fullmatch(label):
                phase: Phase = "running" if word == "running" else "stopped"
                found.append(Instance(label, label, phase, 0.0, machine=self._host, says=word))
        return found

    def find_offers(self, want: Want) -> list[Offer]:
        """The host, where no pod runs on it. What GPUs it has is for ``rl-supervisor check`` there to say."""
        if any(one.phase == "running" for one in self.list_instances()):
            return []
        return [Offer(self._host, want.gpu, want.gpus, 0.0, spot=False, machine=self._host)]

    def create(self, offer: Offer, order: Order) -> str:
        """Start ``order.onstart`` with its environment. It goes on when the connection ends."""
        env = {**order.env, MARK: order.label}
        exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in env.items())
        script = f"""{_ALIVE}umask 077; set -e; d=~/{FOLDER}/{order.label}; mkdir -p "$d"
if alive "$d"; then exit 0; fi
cat > "$d/env" <<'END_OF_ENV'
{exports}
END_OF_ENV
cat > "$d/boot.sh" <<'END_OF_BOOT'
{order.onstart}
END_OF_BOOT
echo 'export RL_SUPERVISOR_ETC="$0/etc"' >> "$d/env"
cd; setsid bash -c '. "$0/env"; echo $$ > "$0/pid"; exec bash "$0/boot.sh" --foreground' "$d" \\
  </dev/null >"$d/log" 2>&1 &
for _ in 1 2 3 4 5 6 7 8 9 10; do alive "$d" && exit 0; sleep 0.5; done
"""
        self._run(script, "unsure")
        return order.label

    def raise_bid(self, instance: Instance, bid: float) -> None:
        """There is none."""
        raise PlaceError("refused", f"{self._host} is no spot machine: it takes no bid.")

    def destroy(self, instance: Instance) -> None:
        """Ask it to stop, which publishes what is whole; what has ended is forgotten.

        The controller asks again until the pod is listed no more.
        """
        script = f"""{_ALIVE}cd ~/{FOLDER} 2>/dev/null || exit 0; d={shlex.quote(instance.label)}
if alive "$d"; then kill -TERM "$(cat "$d/pid")"; else rm -rf -- "$d"; fi
"""
        self._run(script, "unsure")

    def read_log(self, instance: Instance) -> str:
        """The end of what it printed."""
        return self._run(f"tail -c {LOG_BYTES} ~/{FOLDER}/{shlex.quote(instance.label)}/log 2>/dev/null\n", "away")

    def read_credit(self) -> float | None:
        """It costs nothing here."""
        return None

    def _run(self, script: str, otherwise: ErrorKind) -> str:
        try:
            done = subprocess.run(
                self._command,
                input=script,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise PlaceError(otherwise, f"{self._host} did not answer over ssh within {TIMEOUT_S:.0f} s.") from None
        except OSError as error:
            raise PlaceError("refused", f"ssh cannot be started: {error.strerror}. Install an ssh client.") from None
        if done.returncode == 0:
            return done.stdout
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1][:200]
        if done.returncode == _NO_CONNECTION:
            kind: ErrorKind = "key" if "Permission denied" in why else otherwise
            raise PlaceError(kind, f"{self._host} cannot be reached over ssh: {why}. Try: ssh {self._host} true")
        raise PlaceError(otherwise, f"{self._host} ended with code {done.returncode} over ssh: {why}")
