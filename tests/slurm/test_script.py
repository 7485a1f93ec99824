"""The batch script of a run: what it asks for, where that comes from, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.base.errors import ConfigError
from supervisor.cli.main import main
from supervisor.config.run_file import load
from supervisor.slurm.script import make_script

RUN_FILE = """
[run]
id = "otter"
[job]
kind = "{kind}"
dir = "{folder}"
config = ["rl.toml"]
[gpus]
inference = [0, 1]
trainer = [1, 2]
[store]
url = "file:///shared/store"
"""
THEIRS = """
[slurm]
partition = "theirs"
account = "lab"
time = "2-00:00:00"
exclude = "bad1,bad2"
"""
GOLDEN = """\
#!/bin/bash
# Made by: rl-supervisor slurm script run.toml. What it asks for stands in [slurm] of that file.
#SBATCH --job-name=otter
#SBATCH --account=lab
#SBATCH --partition=ours
#SBATCH --time=24:00:00
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:3
#SBATCH --exclude=bad1,bad2
#SBATCH --output={folder}/run.slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@420
#SBATCH --requeue
#SBATCH --mem=0
set -u
program=(/env/bin/python -P -m supervisor.cli.main) run={folder}/run.toml
module load cuda
told='' sent=''
trap 'told=--told' TERM
for try in 1 2 3; do
  srun --nodes=1 --ntasks=1 --kill-on-bad-exit=1 "${{program[@]}}" slurm step "$run" &
  step=$!
  while [[ -d /proc/$step ]]; do
    # The daemon publishes and leaves. It may not have begun yet when the signal comes.
    if [[ -n $told && -z $sent ]] && "${{program[@]}}" slurm tell "$run"; then sent=1; fi
    sleep 1
  done
  wait "$step"
  code=$?
  # Where nanny and daemon were killed, the next ones look after what lives here, without the queue.
  [[ $code -gt 128 && -z $told ]] || break
done
trap '' TERM # what requeues this job ends this script as well, and must not be ended halfway
${{told:+timeout 30}} "${{program[@]}}" slurm ended "$run" --code "$code" $told
end=$?
# The file system that holds the program hangs. A job that runs into its wall time would not come back.
if [[ $end -eq 124 ]]; then scontrol requeue "$SLURM_JOB_ID"; [[ $code -ne 94 ]] || scontrol release "$SLURM_JOB_ID"; fi
exit "$end"
"""
PROGRAM = ["/env/bin/python", "-P", "-m", "supervisor.cli.main"]


def write_run(folder: Path, ours: str = "", theirs: str = THEIRS, kind: str = "rl") -> Path:
    (folder / "rl.toml").write_text(theirs)
    path = folder / "run.toml"
    path.write_text(RUN_FILE.format(folder=folder, kind=kind) + ours)
    return path


def script_of(path: Path) -> str:
    return make_script(path, load(path), {}, PROGRAM)


def test_the_run_file_comes_first_and_the_trainers_own_words_fill_in(tmp_path: Path) -> None:
    ours = '[slurm]\npartition = "ours"\ntime = "24:00:00"\noptions = ["--mem=0"]\nsetup = ["module load cuda"]\n'
    assert script_of(write_run(tmp_path, ours)) == GOLDEN.format(folder=tmp_path)


def test_nothing_is_asked_that_nobody_named(tmp_path: Path) -> None:
    text = script_of(write_run(tmp_path, "[slurm]\nrequeue = false\ngpus_per_node = 0\n", theirs=""))
    asked = [line.removeprefix("#SBATCH --").partition("=")[0] for line in text.splitlines() if "#SBATCH" in line]
    assert asked == ["job-name", "nodes", "ntasks-per-node", "output", "open-mode", "signal", "no-requeue"]


@pytest.mark.parametrize("shell", ["bash", "shellcheck"])
def test_the_script_is_sound_bash(tmp_path: Path, shell: str) -> None:
    folder = tmp_path / "a folder's $name"
    folder.mkdir()
    text = script_of(write_run(folder))
    # SC2086: $told is one word or none; SC2034: `try` only counts; SC2016: the folder's name.
    check = [str(Path(sys.executable).with_name("shellcheck")), "--exclude=SC2086,SC2034,SC2016", "-"]
    words = ["bash", "-n"] if shell == "bash" else check
    done = subprocess.run(words, input=text, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


SEVERAL = """
[slurm]
nodes = 2
spares = 1
[nodes]
folder = "/shared/nodes"
"""
COMPONENTS = """
[job.plain]
start = ["train"]
resume = ["train", "{step}"]
[[nodes.components]]
role = "trainer"
start = ["train"]
[[nodes.components]]
role = "inference"
machine = 1
start = ["serve"]
"""


def test_a_run_over_several_machines_has_an_agent_on_each_and_the_daemon_on_the_first(tmp_path: Path) -> None:
    path = write_run(tmp_path, SEVERAL)
    path.write_text(path.read_text().replace("[gpus]\ninference = [0, 1]\ntrainer = [1, 2]\n", ""))
    text = script_of(path)
    assert "#SBATCH --nodes=3\n" in text
    assert "#SBATCH --gres=gpu:8\n" in text
    (tmp_path / "rl.toml").write_text("[deployment]\ngpus_per_node = 4\n")
    assert "#SBATCH --gres=gpu:4\n" in script_of(path)
    assert "#SBATCH --no-kill\n" in text
    assert "#SBATCH --exclusive\n" in text
    agents, daemon = (line for line in text.splitlines() if "srun " in line)
    assert 'until srun --nodes=1 --ntasks=1 --nodelist="$host" --overlap' in agents
    assert '"${program[@]}" node "$run" --name "$host" --rank "$rank"; do sleep 20; done) &' in text
    assert daemon.strip().startswith("srun --nodes=1 --ntasks=1 --kill-on-bad-exit=1 --relative=0 --overlap")
    check = [str(Path(sys.executable).with_name("shellcheck")), "--exclude=SC2086,SC2034,SC2016", "-"]
    done = subprocess.run(check, input=text, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_components_of_a_command_have_to_fit(tmp_path: Path) -> None:
    path = write_run(tmp_path, SEVERAL.replace("nodes = 2", "nodes = 1") + COMPONENTS, kind="command")
    with pytest.raises(ConfigError, match=r"The run of .* needs 2 machines at least, and \[slurm\] nodes is 1"):
        script_of(path)


@pytest.mark.parametrize(
    ("theirs", "wanted"),
    [
        ("[inference]\n[deployment]\nnum_train_nodes = 2\n", 3),
        ("[inference]\n[deployment]\nnum_train_nodes = 2\nnum_infer_nodes = 2\nnum_infer_replicas = 3\n", 8),
        ("[deployment]\nnum_train_nodes = 4\nnum_infer_nodes = 0\n", 4),
    ],
)
def test_prime_rls_deployment_has_to_fit(tmp_path: Path, theirs: str, wanted: int) -> None:
    path = write_run(tmp_path, SEVERAL.replace("nodes = 2", f"nodes = {wanted - 1}"), theirs=theirs)
    with pytest.raises(ConfigError, match=f"needs {wanted} machines at least"):
        script_of(path)


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ("[slurm]\nnodes = 2\n", "and has no [nodes], which says what runs on which"),
        ('[slurm]\noptions = ["--requeue"]\n', "is said by a setting of [slurm]"),
        ('[slurm]\noptions = ["--mem 0"]\n', "does not fit the pattern"),
        ('[slurm]\npartition = "a\\n#SBATCH --uid=0"\n', "does not fit the pattern"),
        ('[slurm]\nsetup = ["a\\nb"]\n', "each line is an entry of its own"),
        ('[slurm]\ntime = "a day"\n', "does not fit the pattern"),
    ],
)
def test_what_cannot_go_to_a_cluster_is_refused(tmp_path: Path, ours: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        script_of(write_run(tmp_path, ours))
    assert said in str(caught.value)


def test_a_run_without_a_store_that_all_machines_reach_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    path.write_text(path.read_text().partition("[store]")[0])
    with pytest.raises(ConfigError, match="the store tells which one writes"):
        script_of(path)


def test_the_gpus_of_an_unknown_trainer_have_to_be_named(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    text = path.read_text()
    path.write_text(text.partition("[gpus]")[0] + "[store]" + text.partition("[store]")[2])
    with pytest.raises(ConfigError, match=r"Set \[slurm\] gpus_per_node in"):
        script_of(path)


# ---------------------------------------------------------------- the script itself, with stand-ins

SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
PROGRAM_STANDS_IN = """#!/bin/bash
echo "$2 ${*:4}" >>"$BOX/calls"
case $2 in
  step)
    code=$(sed -n "$(grep -c ^step "$BOX/calls")p" "$BOX/codes")
    [[ $code == stays ]] || exit "$code"
    trap 'exit 0' TERM
    echo $$ >"$BOX/pid"
    while :; do sleep 0.1; done ;;
  tell) kill -TERM "$(cat "$BOX/pid")" 2>/dev/null ;;
  ended) [[ -e $BOX/hangs ]] && exit 124; exit 7 ;;
esac
"""


def run_script(folder: Path, codes: str, *, told: bool = False) -> tuple[int, list[str]]:
    """How the script ends, and how it called the program. ``told``: it gets SIGTERM before the daemon is up."""
    for name, text in (
        ("srun", SRUN),
        ("program", PROGRAM_STANDS_IN),
        ("scontrol", '#!/bin/bash\necho "$*" >>"$BOX/calls"\n'),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "codes").write_text(codes)
    path = write_run(folder)
    text = make_script(path, load(path), {}, [str(folder / "program")])
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "BOX": str(folder), "SLURM_JOB_ID": "17"}
    script = subprocess.Popen(["bash", "-c", text], env=env)
    if told:
        deadline = time.monotonic() + 20
        while not (folder / "calls").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        script.send_signal(signal.SIGTERM)
    code = script.wait(60)
    return code, (folder / "calls").read_text().splitlines()


def test_the_daemons_code_decides_what_follows(tmp_path: Path) -> None:
    assert run_script(tmp_path, "94\n") == (7, ["step ", "ended --code 94"])


@pytest.mark.soak
def test_killed_nanny_and_daemon_are_replaced_twice_at_most(tmp_path: Path) -> None:
    assert run_script(tmp_path, "137\n0\n") == (7, ["step ", "step ", "ended --code 0"])
    (tmp_path / "calls").unlink()
    assert run_script(tmp_path, "137\n137\n137\n") == (7, [*["step "] * 3, "ended --code 137"])


def test_a_signal_reaches_a_daemon_that_has_hardly_begun(tmp_path: Path) -> None:
    code, calls = run_script(tmp_path, "stays\n", told=True)
    assert code == 7 and calls[0] == "step " and calls[-1] == "ended --code 0 --told"
    assert {*calls[1:-1]} == {"tell "}


def test_a_program_that_cannot_be_loaded_any_more_does_not_end_the_chain(tmp_path: Path) -> None:
    (tmp_path / "hangs").touch()
    assert run_script(tmp_path, "stays\n", told=True)[1][-1] == "requeue 17"


def test_it_is_printed_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path)
    assert main(["slurm", "script", str(path)]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n")
