"""A run file as SkyPilot's managed job: what it says, that its script runs, and by choice that SkyPilot loads it.

The latter: ``SKY_PYTHON=/path/to/python pytest -m optin tests/fleet/test_sky.py`` (that Python has skypilot==0.14.1).
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.errors import ConfigError
from supervisor.cli.main import main
from supervisor.fleet.sky import make_task

SKY_PYTHON = os.environ.get("SKY_PYTHON", "")
RUN_FILE = """
[run]
id = "sober.otter_2"
[job]
dir = "/opt/prime-rl"
config = ["/root/rl.toml"]
[gpus]
inference = [0, 1]
trainer = [1, 2]
[store]
url = "{url}"
"""
LOAD = """
import json, sys, sky
task = sky.Task.from_yaml(sys.argv[1])
(wanted,) = task.resources
print("SAID " + json.dumps({
    "name": task.name, "gpus": wanted.accelerators, "recovery": wanted.job_recovery, "spot": wanted.use_spot,
    "image": wanted.image_id, "disk": wanted.disk_size, "envs": task.envs, "run": task.run,
    "secrets": [one.name for one in task._managed_secret_refs], "nodes": task.num_nodes,
}))
"""


def write_run(folder: Path, url: str = "b2://bucket/runs", more: str = "") -> Path:
    path = folder / "otter.toml"
    path.write_text(RUN_FILE.format(url=url) + more)
    return path


def read_script(task: str) -> str:
    return textwrap.dedent(task.partition("\nrun: |\n")[2])


def test_only_a_pod_that_is_unfit_is_replaced(tmp_path: Path) -> None:
    task = make_task(write_run(tmp_path), "H100", "ghcr.io/me/pod:1", None, ["WANDB_API_KEY"])
    assert "\n    max_restarts_on_errors: 0 " in task
    assert re.findall(r"recover_on_exit_codes: (.*?) ", task) == ["[94]"]
    assert '\n  accelerators: "H100:3"\n' in task  # GPU 1 is in both lists
    assert "\n  image_id: docker:ghcr.io/me/pod:1\n" in task
    assert '\nname: "sober-otter-2"\n' in task
    assert "{min_elapsed_seconds: 900, min_retries: 30}" in task


def test_keys_are_named_and_no_value_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["B2_APPLICATION_KEY_ID", "B2_APPLICATION_KEY", "WANDB_API_KEY"]
    for name in names:
        monkeypatch.setenv(name, f"the-value-of-{name}")
    task = make_task(write_run(tmp_path), "H100", "i", None, ["WANDB_API_KEY", "B2_APPLICATION_KEY"])
    assert "the-value-of" not in task
    assert re.search(r"\nsecrets:.*\n((?:  .*\n)+)run:", task)[1].split() == [f"{name}:" for name in names]  # type: ignore[index]
    assert f"launch FILE {' '.join(f'--secret {name}' for name in names)}\n" in task
    task = make_task(write_run(tmp_path, "s3://bucket/runs"), "H100", "i", None, [])
    assert "  AWS_ACCESS_KEY_ID:\n  AWS_SECRET_ACCESS_KEY:\nrun:" in task


@pytest.mark.parametrize(
    ("url", "gpu", "package", "said"),
    [
        ("file:///data", "H100", "x", "keeps its steps on one machine"),
        ("b2://bucket", "H100:2", "x", "uses 3 GPUs ([gpus]), and --gpu H100:2 names 2."),
        ("b2://bucket", "H100 SXM", "x", "--gpu H100 SXM is none of KIND and KIND:COUNT"),
        ("b2://bucket", "H100:3", None, "name an image that has it (--image)"),
    ],
)
def test_what_cannot_run_is_refused(tmp_path: Path, url: str, gpu: str, package: str | None, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_task(write_run(tmp_path, url), gpu, None, package, [])
    assert said in str(caught.value)


def test_a_run_file_without_gpus_needs_their_number(tmp_path: Path) -> None:
    path = tmp_path / "otter.toml"
    path.write_text(re.sub(r"\[gpus\].*(?=\[store\])", "", RUN_FILE, flags=re.DOTALL).format(url="b2://bucket"))
    with pytest.raises(ConfigError, match=r"does not say how many GPUs the run uses \(\[gpus\]\): --gpu H100:COUNT"):
        make_task(path, "H100", "i", None, [])
    assert '"H100:8"' in make_task(path, "H100:8", "i", None, [])


def test_its_script_hands_over_to_our_own_start_script_and_passes_the_exit_code_on(tmp_path: Path) -> None:
    task = make_task(write_run(tmp_path), "H100", "i", None, [])
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "RL_SUPERVISOR_VENV": str(tmp_path / "none"),
        "RL_SUPERVISOR_ETC": str(tmp_path / "etc"),
        "RL_SUPERVISOR_RUN": "otter",
        "RL_SUPERVISOR_RUN_FILE_B64": "%%%",
    }
    done = subprocess.run(
        ["bash", "-c", read_script(task)], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 93
    assert "RL_SUPERVISOR_RUN_FILE_B64 could not be written" in done.stderr


def test_its_script_stays_as_long_as_the_run(tmp_path: Path) -> None:
    """Or SkyPilot would take a run that has just begun for one that is done."""
    stands_in = {"bin/rl-supervisor": "", "bin/python": f"echo {tmp_path}", "units/onstart.sh": 'echo "given: $*"'}
    for name, text in stands_in.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/bash\n{text}\n")
        file.chmod(0o755)
    script = read_script(make_task(write_run(tmp_path), "H100", "i", None, []))
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path), "RL_SUPERVISOR_VENV": "/none"}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "given: --foreground\n"


NODES = """
[job.plain]
start = []
resume = ["{step}"]
markers = ["x"]
[nodes]
folder = "/root/nodes"
listen = "0.0.0.0:7433"
[[nodes.components]]
role = "trainer"
start = ["train"]
[[nodes.components]]
role = "inference"
machine = 1
start = ["serve"]
"""


def spread(path: Path, nodes: str = NODES) -> Path:
    """The run file becomes one of a command over two machines."""
    text = path.read_text().replace("[job]\n", '[job]\nkind = "command"\n')
    path.write_text(text.replace("[gpus]\ninference = [0, 1]\ntrainer = [1, 2]\n", "") + nodes)
    return path


def write_several(folder: Path) -> Path:
    return spread(write_run(folder))


@pytest.mark.parametrize(
    ("rank", "given"),
    [("0", {"given: --foreground ", "given: --node 10.0.0.1:7433"}), ("1", {"given: --node 10.0.0.1:7433"})],
)
def test_over_several_machines_each_node_starts_its_agent_and_the_first_the_daemon(
    tmp_path: Path, rank: str, given: set[str]
) -> None:
    task = make_task(write_several(tmp_path), "H100:8", "i", None, [], 3)
    assert "\nnum_nodes: 3\nresources:\n" in task and "  RL_SUPERVISOR_NODE_TOKEN:\n" in task
    onstart = 'echo "given: $1 ${RL_SUPERVISOR_HEAD:-}" | sed "s/--foreground .*/--foreground /"'
    stands_in = {"bin/rl-supervisor": "", "bin/python": f"echo {tmp_path}", "units/onstart.sh": onstart}
    for name, text in stands_in.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/bash\n{text}\n")
        file.chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path), "RL_SUPERVISOR_VENV": "/none"}
    env |= {"SKYPILOT_NODE_RANK": rank, "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3"}
    done = subprocess.run(
        ["bash", "-c", read_script(task)], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert set(done.stdout.splitlines()) == given, done.stderr


def test_several_machines_need_a_port_that_is_known(tmp_path: Path) -> None:
    path = write_several(tmp_path)
    path.write_text(path.read_text().replace(":7433", ":0"))
    with pytest.raises(ConfigError, match=r"Set \[nodes\] listen"):
        make_task(path, "H100:8", "i", None, [])
    assert "num_nodes: 2\n" in make_task(write_several(tmp_path), "H100:8", "i", None, [])


def test_the_command_writes_a_file_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = write_run(tmp_path), tmp_path / "task.yaml"
    words = ["export", "sky", str(path), "--gpu", "H100", "--package", "git+https://host/x", "-o", str(output)]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith(f"{output} is written.")
    encoded = re.search(r'RL_SUPERVISOR_RUN_FILE_B64: "(.*)"', output.read_text())[1]  # type: ignore[index]
    assert base64.b64decode(encoded) == path.read_bytes()
    before = output.read_text()
    assert main(words) == 1
    assert "exists already and is left as it is" in capsys.readouterr().err
    assert output.read_text() == before


COPIED = """
import json
from jsonschema import ValidationError, validate
from sky import check, clouds
from sky.utils import schemas
def takes(cloud):
    try:
        validate({cloud: {"remote_identity": "NO_UPLOAD"}}, schemas.get_config_schema())
    except ValidationError:
        return False
    return True
print("SAID " + json.dumps({
    "copied": sorted(check.get_cloud_credential_file_mounts([clouds.GCP()])),
    "can be kept": [cloud for cloud in ("aws", "vast", "nebius", "runpod", "lambda", "primeintellect") if takes(cloud)],
}))
"""


@pytest.mark.optin
@pytest.mark.skipif(not SKY_PYTHON, reason="SKY_PYTHON names no interpreter with skypilot==0.14.1")
def test_skypilot_copies_keys_of_other_clouds_to_each_pod_so_it_is_no_place_of_the_fleet(tmp_path: Path) -> None:
    for name in (".runpod/config.toml", ".lambda_cloud/lambda_keys"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("a key")
    said = ask_skypilot(tmp_path, COPIED)
    assert said["copied"] == ["~/.lambda_cloud/lambda_keys", "~/.runpod/config.toml"]
    assert said["can be kept"] == ["aws", "vast", "nebius"]


def ask_skypilot(home: Path, script: str, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [SKY_PYTHON, "-c", script, *words],
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    (said,) = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert isinstance(said, dict)
    return said


@pytest.mark.optin
@pytest.mark.skipif(not SKY_PYTHON, reason="SKY_PYTHON names no interpreter with skypilot==0.14.1")
def test_skypilot_loads_it(tmp_path: Path) -> None:
    path = write_run(tmp_path, more="[disk]\ncapacity_gb = 400\n")
    yaml = tmp_path / "task.yaml"
    yaml.write_text(make_task(path, "H100", "ghcr.io/me/pod:1", "git+https://host/x", ["WANDB_API_KEY"]))
    said = ask_skypilot(tmp_path, LOAD, str(yaml))
    assert (said["name"], said["gpus"], said["spot"], said["disk"]) == ("sober-otter-2", {"H100": 3}, True, 400)
    assert said["recovery"] == {"strategy": None, "max_restarts_on_errors": 0, "recover_on_exit_codes": [94]}
    assert list(said["image"].values()) == ["docker:ghcr.io/me/pod:1"]
    assert said["secrets"] == ["B2_APPLICATION_KEY_ID", "B2_APPLICATION_KEY", "WANDB_API_KEY"]
    assert base64.b64decode(said["envs"]["RL_SUPERVISOR_RUN_FILE_B64"]) == path.read_bytes()
    assert said["envs"]["RL_SUPERVISOR_PACKAGE"] == "git+https://host/x"
    assert said["run"] == read_script(yaml.read_text())


@pytest.mark.optin
@pytest.mark.skipif(not SKY_PYTHON, reason="SKY_PYTHON names no interpreter with skypilot==0.14.1")
def test_skypilot_loads_a_task_of_several_nodes(tmp_path: Path) -> None:
    yaml = tmp_path / "task.yaml"
    yaml.write_text(make_task(write_several(tmp_path), "H100:8", "ghcr.io/me/pod:1", None, [], 3))
    said = ask_skypilot(tmp_path, LOAD, str(yaml))
    assert (said["nodes"], said["gpus"]) == (3, {"H100": 8})
    assert said["secrets"] == ["B2_APPLICATION_KEY_ID", "B2_APPLICATION_KEY", "RL_SUPERVISOR_NODE_TOKEN"]
    assert said["run"] == read_script(yaml.read_text())
