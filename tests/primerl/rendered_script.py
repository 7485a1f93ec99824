"""What prime-rl's own script of a run over several machines starts: it is run with programs that only note their words.

``python -m tests.primerl.rendered_script CHECKOUT`` makes ``renderings.json`` anew with a real prime-rl.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, meta

from supervisor.primerl.spread import TEMPLATE

KEPT = Path(__file__).with_name("renderings.json")
TRAINS = """
[orchestrator]
batch_size = 64
[[orchestrator.train.source]]
name = "math"
[orchestrator.train.source.env.taskset]
id = "harbor"
[inference.vllm]
tensor_parallel_size = 4
"""
DENSE = """
max_steps = 20
seq_len = 2048
[model]
name = "Qwen/Qwen3-0.6B"
[deployment]
type = "multi_node"
num_train_nodes = 1
num_infer_nodes = 1
gpus_per_node = 8
[slurm]
job_name = "math"
[trainer]
"""
EXPERTS = """
max_steps = 20
seq_len = 2048
[model]
name = "Qwen/Qwen3-30B-A3B"
[weight_broadcast]
type = "nccl"
[deployment]
type = "multi_node"
num_train_nodes = {train}
num_infer_nodes = {infer}
num_infer_replicas = {replicas}
gpus_per_node = 8
orchestrator_on_inference = {apart}
[slurm]
[env_vars]
OWN = "of all"
[trainer.env_vars]
OWN = "of the trainer"
[trainer.log]
ranks_filter = [0, 3]
[orchestrator.eval]
interval = 5
[[orchestrator.eval.source]]
name = "hard"
[orchestrator.eval.source.env.taskset]
id = "harbor"
"""
IN_ONE_GROUP = "data_parallel_size = 4\nenable_expert_parallel = true\n"
SFT = """
max_steps = 20
[model]
name = "Qwen/Qwen3-0.6B"
[deployment]
type = "multi_node"
num_train_nodes = {train}
gpus_per_node = 8
[slurm]
"""
CONFIGS = {
    "dense, 1 and 1": ("rl", DENSE + TRAINS),
    "experts, 2 and 2": ("rl", EXPERTS.format(train=2, infer=2, replicas=1, apart="false") + TRAINS + IN_ONE_GROUP),
    "experts, 4 and 2 times 2": (
        "rl",
        EXPERTS.format(train=4, infer=2, replicas=2, apart="true") + TRAINS + IN_ONE_GROUP,
    ),
    "sft, 1": ("sft", SFT.format(train=1)),
    "sft, 2": ("sft", SFT.format(train=2)),
    "sft, 8": ("sft", SFT.format(train=8)),
}
# All that the launcher gives our template; a name that it does not give is left out. Paths become text, and of the
# router's configuration what is asked of it.
DUMP = """{%%- set found = {} -%%}
{%%- for name, value in {%s}.items() if value is defined -%%}
{%%- set _ = found.update({name: value}) -%%}{%%- endfor -%%}
{%%- for name, value in {%s}.items() if value is defined -%%}
{%%- set _ = found.update({name: value | string}) -%%}{%%- endfor -%%}
{%%- if router is defined -%%}
{%%- set _ = found.update({"router": {"type": router.type, "policy": router.policy | string}}) -%%}{%%- endif -%%}
{{ found | tojson }}"""
OBJECTS = ("config_dir", "config_path", "project_dir")
OF_SCRIPT = frozenset(
    [
        *("_", "HOME", "LC_CTYPE", "OLDPWD", "PATH", "PWD", "SHLVL", "USER"),
        *("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_PROCID"),
        *("ADMIN_URLS", "BACKEND_PORT", "CONFIG_DIR", "CONFIG_PATH", "GPUS_PER_NODE", "HOSTNAMES", "HOSTNAMES_STR"),
        *("INFERENCE_DATA_PARALLEL_RPC_PORT", "INFERENCE_DP_LOCAL", "INFERENCE_ENABLE_EXPERT_PARALLEL", "INFERENCE_TP"),
        *("INFER_URLS", "LOG_DIR", "MASTER_ADDR", "MASTER_PORT", "NODES_PER_INFER_REPLICA", "NUM_INFER_NODES"),
        *(
            "NUM_INFER_REPLICAS",
            "NUM_NODES",
            "NUM_TRAIN_NODES",
            "ORCH_ADDR",
            "ORCH_PROCID",
            "OUTPUT_DIR",
            "PROJECT_DIR",
        ),
        *("ROUTER_ARGS", "ROUTER_PORT"),
    ]
)
"""Read by nothing of prime-rl at 559b44772."""
NOTE = """#!{python}
import json, os, sys
words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
if words[:2] == ["uv", "sync"]:
    sys.exit()
for number, word in enumerate(words):
    if word.endswith("vllm-overrides.json"):
        words[number] = "overrides " + open(word).read()
told = {{"machine": int(os.environ["SLURM_PROCID"]), "argv": words, "env": dict(os.environ)}}
open({notes!r} + "/" + str(os.getpid()), "w").write(json.dumps(told))
"""
SRUN = """#!/bin/bash
body=$(cat)
case $body in *pkill*) exit 0 ;; esac
for ((rank = 0; rank < SLURM_JOB_NUM_NODES; rank++)); do
  # The script ends as soon as one part has; these all end at once.
  SLURM_PROCID=$rank bash -s <<<"wait() { builtin wait; }; $body" >/dev/null 2>&1
done
"""


def launch(checkout: Path, kind: str, config: str, folder: Path, template: Path | None) -> str:
    """What the real launcher's dry run renders."""
    (folder / "run.toml").write_text(config)
    words = [str(checkout / ".venv/bin" / kind), "@", str(folder / "run.toml"), "--dry-run"]
    words += ["--output-dir", str(folder / "out"), "--run.name", "demo", "--run.dir", "demo"]
    words += ["--slurm.project-dir", str(folder), *(["--slurm.template-path", str(template)] if template else [])]
    done = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "out/demo" / f"{kind}.sbatch").read_text()


def run_script(script: str, folder: Path) -> list[dict[str, Any]]:
    """Run it for machines called n0, n1 ...; what was started where, with its words and variables."""
    count = int(re.findall(r"#SBATCH --nodes=(\d+)", script)[0])
    hosts = " ".join(f"n{number}" for number in range(count))
    programs, notes = folder / "programs", folder / "notes"
    for path in (programs, notes, folder / ".venv/bin"):
        path.mkdir(parents=True)
    (folder / ".venv/bin/activate").touch()
    told = NOTE.format(python=sys.executable, notes=str(notes))
    texts = {"uv": told, "vllm-router": told, "srun": SRUN, "scontrol": f"#!/bin/sh\nprintf '%s\\n' {hosts}\n"}
    # What may be found on a real machine, and must neither be asked nor obeyed here.
    texts |= dict.fromkeys(("pkill", "rm", "sleep", "ibv_devinfo", "nvidia-smi"), "#!/bin/sh\n")
    texts["hostname"] = '#!/bin/sh\necho "n$SLURM_PROCID more"\n'
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (folder / "script").write_text(script)
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "USER": "me", "PRL_RUN_ID": "w4nd8"}
    env |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": str(count), "SLURM_JOB_NODELIST": "n[0-9]"}
    subprocess.run(["/bin/bash", str(folder / "script")], cwd=folder, env=env, check=True, capture_output=True)
    return [json.loads(path.read_text()) for path in notes.iterdir()]


def render_variables(checkout: Path, kind: str, config: str, folder: Path) -> dict[str, Any]:
    """What the launcher gives a template, as far as ours asks for it."""
    asked = meta.find_undeclared_variables(Environment().parse(TEMPLATE.read_text()))
    names = ", ".join(f'"{name}": {name}' for name in sorted(asked - {"router", *OBJECTS}))
    (folder / "dump.j2").write_text(DUMP % (names, ", ".join(f'"{name}": {name}' for name in OBJECTS)))
    return dict(json.loads(launch(checkout, kind, config, folder, folder / "dump.j2")))


def look_at_launcher(checkout: Path, name: str) -> dict[str, Any]:
    """One case: what the launcher gives a template, and what its own script starts."""
    kind, config = CONFIGS[name]
    with tempfile.TemporaryDirectory() as at:
        theirs, ours = Path(at, "theirs"), Path(at, "ours")
        theirs.mkdir()
        ours.mkdir()
        started = run_script(launch(checkout, kind, config, theirs, None), theirs)
        found = {"variables": render_variables(checkout, kind, config, ours), "started": started}
        text = json.dumps(found).replace(str(theirs), "/shared").replace(str(ours), "/shared")
    return dict(json.loads(text))


def forget_script(started: Mapping[str, Any]) -> dict[str, Any]:
    """Without the variables that only the script itself reads, and what its machine gave it."""
    env = {name: value for name, value in started["env"].items() if name not in OF_SCRIPT}
    return {"machine": started["machine"], "argv": _spell_overrides(started["argv"]), "env": env}


def _spell_overrides(argv: Sequence[str]) -> list[str]:
    """A rank's own settings of vLLM, which the script hands on in a file, as words."""
    found: list[str] = []
    for word in argv:
        if not word.startswith("overrides "):
            found.append(word)
            continue
        assert found[-2:] == ["--vllm", "@"]
        del found[-2:]
        for name, value in json.loads(word.removeprefix("overrides ")).items():
            found += [f"--vllm.{name.replace('_', '-')}", str(value)]
    return found


def sort_started(found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """In an order that does not depend on which was noted first."""
    return sorted(map(dict, found), key=lambda one: (one["machine"], one["argv"]))


def main(checkout: Path) -> None:
    """Write the file anew."""
    found = {}
    for name in CONFIGS:
        case = look_at_launcher(checkout, name)
        found[name] = {**case, "started": sort_started(map(forget_script, case["started"]))}
    KEPT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
