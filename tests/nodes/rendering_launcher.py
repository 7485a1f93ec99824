"""prime-rl's launcher in front of the practice job: ``rl ... --dry-run --slurm.template-path FILE`` renders it, too.

``rendering_launcher.py LAUNCHER ENGINES [words]``. The variables have the names that the real launcher gives
(tests/primerl/renderings.json), and the values of one trainer's machine and so many engines on machines of their own.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

KEPT = Path(__file__).parents[1] / "primerl" / "renderings.json"


def main() -> int:
    launcher, engines, *words = sys.argv[1:]
    place = words.index("--slurm.template-path")
    template = Path(words.pop(place + 1))
    del words[place]
    done = subprocess.run([launcher, *words], check=False)
    if done.returncode != 0:
        return done.returncode
    said = dict(itertools.pairwise(words))
    run_dir = Path(said["--output-dir"], said["--run.dir"])
    variables = json.loads(KEPT.read_text())["dense, 1 and 1"]["variables"]
    inference = json.loads((run_dir / "configs/inference.json").read_text())
    variables |= {
        "num_train_nodes": 1, "num_infer_nodes": int(engines), "num_infer_replicas": int(engines),
        "gpus_per_node": 1, "inference_tp": 1, "router_port": inference["server"]["port"],
        "backend_port": inference["server"]["port"] + 100, "config_dir": run_dir / "configs",
        "project_dir": Path.cwd(), "train_env_names": [], "eval_env_names": [],
    }  # fmt: skip
    made = Environment(loader=FileSystemLoader(template.parent)).get_template(template.name).render(variables)
    told = json.loads(made)
    # All machines are this one, so the engine of each needs a port of its own.
    ports = {f"{{address.{number}}}:{variables['backend_port']}": number for number in range(int(engines))}
    for part in told["components"]:
        own = part["machine"] if part.get("port") == variables["backend_port"] else 0
        part["argv"] = [_move_port(word, ports, part.get("port"), own) for word in part["argv"]]
        part |= {"port": part["port"] + own} if own else {}
    (run_dir / "rl.sbatch").write_text(json.dumps(told))
    return 0


def _move_port(word: str, ports: dict[str, int], port: int | None, own: int) -> str:
    if word == str(port):
        return str(int(word) + own)
    for place, number in ports.items():
        if place in word:
            address, _, backend = place.rpartition(":")
            return word.replace(place, f"{address}:{int(backend) + number}")
    return word


if __name__ == "__main__":
    sys.exit(main())
