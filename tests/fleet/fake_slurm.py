"""Slurm's commands as a fleet asks them: programs in a folder, and each job a line as ``squeue`` 22.05 prints it."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.slurm.submit import OVER

FIELDS = ("id", "state", "start", "count", "nodes", "reason", "comment")
AWAY = "Unable to contact slurm controller (connect failure)"
HEAD = """#!/bin/bash
cd "${0%/*}/.." || exit 9
echo "${0##*/} $*" >>asked
[[ -e away ]] && { echo "${0##*/}: error: $(cat away)" >&2; exit 1; }
fault=; [[ -e fail.${0##*/} ]] && { fault=$(<"fail.${0##*/}"); rm "fail.${0##*/}"; }
case $fault in silence) exec sleep 30 ;; nonsense) echo "slurm is upgraded today"; exit 0 ;; esac
made='Socket timed out on send/recv operation'
"""
COMMANDS = {
    "squeue": """[[ $SLURM_TIME_FORMAT == %s && $* == *'--format=%A|%T|%S|%D|%N|%r|%k'* ]] || exit 3
[[ -n $fault ]] && { echo "slurm_load_jobs error: $fault" >&2; exit 1; }
for job in jobs/*; do [[ -e $job ]] && echo "$(<"$job")"; done; exit 0
""",
    "sbatch": """case $fault in '' | late | lost) ;;
  *) echo "sbatch: error: Batch job submission failed: $fault" >&2; exit 1 ;; esac
number=$(($(cat count 2>/dev/null) + 1)); echo $number >count
for word in "$@"; do [[ $word == --comment=* ]] && comment=${word#--comment=}; done
cat >"script.$number"; env >"env.$number"
echo "$number|PENDING|N/A|1||None|${comment:-(null)}" >"jobs/$number"
[[ $fault == late ]] && exec sleep 30
[[ $fault == lost ]] && { echo "sbatch: error: Batch job submission failed: $made" >&2; exit 1; }
echo "$number"
""",
    "scancel": """[[ $fault == server ]] && { echo "scancel: error: Kill job error on job id $1: $made" >&2; exit 1; }
over='[|](BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|TIMEOUT)[|]'
if ! grep -qE "$over" "jobs/$1" 2>/dev/null; then sed -i "s/^$1|[A-Z_]*|/$1|CANCELLED|/" "jobs/$1"; fi
[[ $fault == late ]] && exec sleep 30
exit 0
""",
    "scontrol": """[[ -e jobs/$3 ]] || { echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; }
echo "JobId=$3 JobName=otter"; echo "   StdOut=$PWD/log.$3"; echo "   Power="
""",
}


class FakeSlurm:
    """``environ`` finds the commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        (folder / "jobs").mkdir()
        for name, text in COMMANDS.items():
            program = folder / "bin" / name
            program.write_text(HEAD + text)
            program.chmod(0o755)
        self.environ = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder)}

    # ------------------------------------------------------------ what the cluster does

    def change(self, number: str, **fields: str) -> None:
        file = self.folder / "jobs" / number
        known = dict(zip(FIELDS, file.read_text().rstrip("\n").split("|", 6), strict=True))
        file.write_text("|".join({**known, **fields}.values()) + "\n")

    def start(self, number: str, *nodes: str) -> None:
        listed = nodes[0] if len(nodes) == 1 else f"n[{nodes[0][1:]}-{nodes[-1][1:]}]"
        self.change(number, state="RUNNING", start="1795814507", count=str(len(nodes)), nodes=listed, reason="None")

    def requeue(self, number: str) -> None:
        """Not before two minutes; on its old machine if that is free."""
        self.change(number, state="PENDING", start="1795814665", count="1", nodes="", reason="BeginTime")

    def forget(self, number: str) -> None:
        """MinJobAge after its end."""
        (self.folder / "jobs" / number).unlink()

    def fail(self, command: str, how: str) -> None:
        """Its next call."""
        (self.folder / f"fail.{command}").write_text(how)

    def be_away(self, is_so: bool = True, why: str = AWAY) -> None:
        file = self.folder / "away"
        if is_so:
            file.write_text(why)
        else:
            file.unlink()

    # ------------------------------------------------------------ what is seen of it

    def jobs(self) -> dict[str, str]:
        """Number -> state."""
        files = sorted((self.folder / "jobs").iterdir(), key=lambda file: int(file.name))
        return {file.name: file.read_text().split("|")[1] for file in files}

    def living(self) -> list[str]:
        return [number for number, state in self.jobs().items() if state not in OVER]

    def label(self, number: str) -> str:
        return (self.folder / "jobs" / number).read_text().rstrip("\n").split("|", 6)[6]

    def script(self, number: str) -> str:
        return (self.folder / f"script.{number}").read_text()

    def environment(self, number: str) -> dict[str, str]:
        lines = (self.folder / f"env.{number}").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def asked(self, command: str) -> int:
        return sum(line.startswith(f"{command} ") for line in (self.folder / "asked").read_text().splitlines())
