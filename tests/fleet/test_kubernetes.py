"""A run file as a JobSet: what it says, that its head keeps the exit contract, and that it is valid.

Against the published schema: ``JOBSET_CRD=/path/to/FILE pytest -m optin tests/fleet/test_kubernetes.py``, where FILE is
config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset (with the schema of Jobs and pods).
"""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.base.errors import ConfigError
from supervisor.cli.main import main
from supervisor.fleet.kubernetes import Cluster, make_job_set
from tests.fleet import test_sky

CRD = os.environ.get("JOBSET_CRD", "")
RUN_FILE = test_sky.RUN_FILE.replace("sober", "Sober")  # a name in Kubernetes is small


def write_run(folder: Path, url: str = "b2://bucket/runs") -> Path:
    path = folder / "otter.toml"
    path.write_text(RUN_FILE.format(url=url))
    return path


def made(folder: Path, url: str = "b2://bucket/runs", secrets: tuple[str, ...] = (), **cluster: Any) -> dict[str, Any]:
    text = make_job_set(write_run(folder, url), Cluster("ghcr.io/me/pod:1", **cluster), secrets)
    value = yaml.safe_load(text)
    assert isinstance(value, dict)
    return value


def head_of(job_set: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The Job's spec, the pod's and the container."""
    [replicated] = job_set["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    [container] = pod["containers"]
    return job, pod, container


def decide(job: Mapping[str, Any], code: int, conditions: tuple[str, ...] = ()) -> str:
    """What the Job's controller does with a pod that failed so: the first rule that matches, else it is counted."""
    for rule in job["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes and (code in codes["values"]) == (codes["operator"] == "In"):
            return str(rule["action"])
        if any(one["type"] in conditions and one["status"] == "True" for one in rule.get("onPodConditions", ())):
            return str(rule["action"])
    return "Count"


def test_each_end_of_the_head_has_its_consequence(tmp_path: Path) -> None:
    job_set = made(tmp_path)
    job, pod, _ = head_of(job_set)
    assert decide(job, 93) == "FailJob"
    assert [decide(job, code) for code in (75, 94)] == ["Ignore", "Ignore"]
    assert decide(job, 137, ("DisruptionTarget",)) == "Ignore"
    assert decide(job, 137) == decide(job, 1) == "Count"
    [rule] = job_set["spec"]["failurePolicy"]["rules"]
    assert rule["action"] == "FailJobSet" and rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] == 420
    assert job["podReplacementPolicy"] == "Failed", "a second pod begins when the first is gone"


def test_keys_are_named_and_no_value_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("B2_APPLICATION_KEY", "the-value")
    text = make_job_set(write_run(tmp_path), Cluster("i"), ["WANDB_API_KEY"])
    assert "the-value" not in text
    _, _, container = head_of(yaml.safe_load(text))
    given = {one["name"]: one.get("value") or one["valueFrom"].get("secretKeyRef") for one in container["env"]}
    label = next(one for one in container["env"] if one["name"] == "RL_SUPERVISOR_LABEL")
    assert label["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}} and given.pop(label["name"]) is None
    assert base64.b64decode(given.pop("RL_SUPERVISOR_RUN_FILE_B64")) == (tmp_path / "otter.toml").read_bytes()
    assert given == {
        "RL_SUPERVISOR_RUN": "Sober.otter_2",
        **{
            name: {"name": "sober-otter-2-4bda79-keys", "key": name}
            for name in ("B2_APPLICATION_KEY_ID", "B2_APPLICATION_KEY", "WANDB_API_KEY")
        },
    }


def test_gpus_shared_memory_claim_and_queue(tmp_path: Path) -> None:
    job_set = made(tmp_path, url="file:///data/store", claim="training:/data", queue="gpus", secret="mine")
    _, pod, container = head_of(job_set)
    assert job_set["metadata"] == {"name": "sober-otter-2-4bda79", "labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 3}}
    assert {one["name"]: one["mountPath"] for one in container["volumeMounts"]} == {"shm": "/dev/shm", "data": "/data"}
    shm, data = pod["volumes"]
    assert shm["emptyDir"] == {"medium": "Memory"} and data["persistentVolumeClaim"] == {"claimName": "training"}


@pytest.mark.parametrize(
    ("url", "cluster", "said"),
    [
        ("file:///data/store", {}, "keeps its steps where no other pod has them"),
        ("file:///elsewhere", {"claim": "a:/data"}, "keeps its steps where no other pod has them"),
        ("b2://bucket", {"gpus": 2}, "uses 3 GPUs ([gpus]), and --gpus names 2."),
        ("b2://bucket", {"claim": "training"}, "is no NAME:/PATH"),
        ("b2://bucket", {"queue": "Q\nx: y"}, "is no name in Kubernetes"),
    ],
)
def test_what_cannot_run_is_refused(tmp_path: Path, url: str, cluster: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(tmp_path, url, **cluster)
    assert said in str(caught.value)


SEVERAL = test_sky.NODES.replace(
    'folder = "/root/nodes"', 'folder = "/data/nodes"\naddress = "sober-otter-2-4bda79-head-0-0.sober-otter-2-4bda79"'
)


def make_several(folder: Path, text: str = SEVERAL, **cluster: Any) -> dict[str, Any]:
    path = test_sky.spread(write_run(folder), text)
    wanted = {"claim": "training:/data", "gpus": 8, **cluster}
    value = yaml.safe_load(make_job_set(path, Cluster("ghcr.io/me/pod:1", **wanted), ()))
    assert isinstance(value, dict)
    return value


def test_a_run_over_several_machines_has_a_head_without_gpus_and_an_agent_a_machine(tmp_path: Path) -> None:
    job_set = make_several(tmp_path, machines=3)
    spec = job_set["spec"]
    head, machines = (one["template"]["spec"] for one in spec["replicatedJobs"])
    assert (machines["completionMode"], machines["parallelism"], machines["completions"]) == ("Indexed", 3, 3)
    [daemon], [agent] = (one["template"]["spec"]["containers"] for one in (head, machines))
    assert "resources" not in daemon and agent["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert (daemon["command"][5], agent["command"][5]) == ("--foreground", "--node")
    assert daemon["env"] == agent["env"] and daemon["volumeMounts"] == agent["volumeMounts"]
    assert spec["startupPolicy"] == {"startupPolicyOrder": "InOrder"} and spec["replicatedJobs"][0]["name"] == "head"
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["head"]}
    assert [decide(head, code) for code in (93, 75, 94, 1)] == ["FailJob", "Ignore", "Ignore", "Count"]
    assert {decide(machines, code) for code in (1, 75, 137)} == {"Ignore"}, "the head decides what a lost machine means"
    by_components = make_several(tmp_path)["spec"]["replicatedJobs"][1]["template"]["spec"]
    assert by_components["completions"] == 2


@pytest.mark.parametrize(
    ("changed", "cluster", "said"),
    [
        ({}, {"claim": None}, "which the pods do not share"),
        ({"/data/nodes": "/elsewhere"}, {}, "which the pods do not share"),
        (
            {":7433": ":0"},
            {},
            'address = "sober-otter-2-4bda79-head-0-0.sober-otter-2-4bda79" and listen = "0.0.0.0:7433"',
        ),
        ({"head-0-0.sober": "head.sober"}, {}, 'address = "sober-otter-2-4bda79-head-0-0.sober-otter-2-4bda79"'),
        ({}, {"machines": 1}, "has components for 2 machines, and --machines names 1."),
        ({}, {"gpus": None}, "does not say how many GPUs"),
    ],
)
def test_a_run_over_several_machines_that_could_not_find_itself_is_refused(
    tmp_path: Path, changed: dict[str, str], cluster: dict[str, Any], said: str
) -> None:
    text = SEVERAL
    for old, new in changed.items():
        text = text.replace(old, new)
    with pytest.raises(ConfigError, match=re.escape(said)):
        make_several(tmp_path, text, **cluster)


def test_machines_are_for_runs_over_several_of_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a run on one machine"):
        made(tmp_path, machines=2)


def run_head(folder: Path, child: str) -> subprocess.Popen[bytes]:
    """The container's own command, with ``child`` in the place of what finds rl-supervisor."""
    _, _, container = head_of(made(folder))
    assert container["command"][:2] == ["bash", "-c"] and "onstart.sh" in container["command"][4]
    return subprocess.Popen([*container["command"][:4], child])


@pytest.mark.soak
@pytest.mark.parametrize("code", [0, 75, 93, 94, 1])
def test_the_head_passes_the_exit_code_on(tmp_path: Path, code: int) -> None:
    assert run_head(tmp_path, f"exit {code}").wait(20) == code


@pytest.mark.soak
@pytest.mark.parametrize(("code", "passed"), [(0, 75), (143, 75), (75, 75), (93, 93), (94, 94)])
def test_a_run_that_was_told_to_end_is_not_complete(tmp_path: Path, code: int, passed: int) -> None:
    ready = tmp_path / "ready"
    head = run_head(tmp_path, f"trap 'exit {code}' TERM; : >{ready}; while :; do sleep 0.1; done")
    deadline = time.monotonic() + 20
    while not ready.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    head.send_signal(signal.SIGTERM)
    assert head.wait(20) == passed


def test_the_command_writes_a_file_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "x.yaml"
    words = ["export", "kubernetes", str(write_run(tmp_path)), "--image", "i", "-o", str(output)]
    assert main(words) == 0
    assert yaml.safe_load(output.read_text())["kind"] == "JobSet"
    assert main(words) == 1 and "exists already" in capsys.readouterr().err


# ---------------------------------------------------------------- the schema


def complaints(value: Any, schema: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """What an API server refuses with ``fieldValidation=Strict``: unknown and missing fields, wrong types and words."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str):
            yield f"{at} is neither a number nor text"
        return
    kinds: dict[str, type | tuple[type, ...]] = {
        "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)
    }  # fmt: skip
    kind = schema.get("type")
    if kind and (not isinstance(value, kinds[kind]) or (kind == "integer" and isinstance(value, bool))):
        yield f"{at} is no {kind}: {value!r}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at} is none of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{at} does not fit {schema['pattern']}"
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from complaints(one, schema.get("items", {}), f"{at}[{number}]")
    if isinstance(value, dict):
        known, more = schema.get("properties", {}), schema.get("additionalProperties")
        yield from (f"{at} lacks {name}" for name in schema.get("required", ()) if name not in value)
        for name, one in value.items():
            if name in known:
                yield from complaints(one, known[name], f"{at}.{name}")
            elif more is not None:
                yield from complaints(one, more if isinstance(more, dict) else {}, f"{at}.{name}")
            elif known or not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{at} has no field {name}"


@pytest.mark.optin
def test_it_is_valid_by_the_published_schema_in_strict_mode(tmp_path: Path) -> None:
    if not CRD:
        pytest.skip("JOBSET_CRD names no schema")
    [version] = [one for one in yaml.safe_load(Path(CRD).read_text())["spec"]["versions"] if one["name"] == "v1alpha2"]
    schema = version["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {  # the API server's own
        "type": "object",
        "additionalProperties": {"x-kubernetes-preserve-unknown-fields": True},
    }
    full = made(
        tmp_path, "file:///data/s", ("HF_TOKEN",), claim="training:/data", queue="gpus", package="git+https://host/x"
    )
    assert list(complaints(full, schema)) == []
    assert list(complaints(made(tmp_path), schema)) == []
    assert list(complaints(make_several(tmp_path, machines=3, queue="gpus"), schema)) == []
    head_of(full)[0]["podFailurePolicy"]["rule"] = []
    assert [one for one in complaints(full, schema) if one.endswith("podFailurePolicy has no field rule")]


def test_runs_whose_ids_differ_in_what_kubernetes_leaves_out_have_job_sets_of_their_own(tmp_path: Path) -> None:
    names = set()
    for number, run_id in enumerate(("otter-2", "otter.2", "otter_2", "Otter-2", "o" * 50, "o" * 51)):
        path = tmp_path / f"{number}.toml"
        path.write_text(write_run(tmp_path).read_text().replace("Sober.otter_2", run_id))
        names.add(yaml.safe_load(make_job_set(path, Cluster("image"), ()))["metadata"]["name"])
    assert len(names) == 6 and "otter-2" in names
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{0,39}", name) for name in names)
