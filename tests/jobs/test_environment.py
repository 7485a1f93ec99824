"""What of the daemon's environment the job sees."""

from __future__ import annotations

import pytest

from supervisor.base.errors import ConfigError
from supervisor.jobs.environment import job_environment

DEFAULT_PASS = ["WANDB_*", "HF_*", "HUGGING_FACE_HUB_TOKEN", "PRIME_API_KEY", "OPENAI_API_KEY"]


@pytest.mark.parametrize(
    "name",
    [
        "B2_APPLICATION_KEY",
        "B2_APPLICATION_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "RL_SUPERVISOR_TOKEN",
        "RL_SUPERVISOR_CONVICTED",
        "RL_HEARTBEAT_URL",
        "CREDENTIALS_DIRECTORY",
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "LISTEN_FDS",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "CONTAINER_API_KEY",
        "VAST_API_KEY",
        "RUNPOD_API_KEY",
    ],
)
def test_the_daemons_own_never_passes_whatever_pass_env_says(name: str) -> None:
    env = job_environment({name: "secret", "PATH": "/bin"}, ["*", name], {}, {})
    assert env == {"PATH": "/bin"}
    with pytest.raises(ConfigError, match=f"env sets {name}, which the job must never see"):
        job_environment({}, [], {name: "x"}, {})


def test_harmless_names_pass_and_all_else_only_when_asked_for() -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/root",
        "LC_ALL": "C",
        "CUDA_HOME": "/usr/local/cuda",
        "NCCL_P2P_DISABLE": "1",
        "HF_HOME": "/data/hf",
        "HF_TOKEN": "hf_secret",
        "WANDB_API_KEY": "w",
        "UV_INDEX_CORP_PASSWORD": "p",
        "VLLM_API_KEY": "v",
        "MY_DATABASE": "x",
        "LD_PRELOAD": "/evil.so",
        "PYTHONPATH": "/x",
    }
    plain = {"PATH", "HOME", "LC_ALL", "CUDA_HOME", "NCCL_P2P_DISABLE", "HF_HOME"}
    assert set(job_environment(environ, [], {}, {})) == plain
    assert set(job_environment(environ, DEFAULT_PASS, {}, {})) == plain | {"HF_TOKEN", "WANDB_API_KEY"}
    assert "MY_DATABASE" in job_environment(environ, ["MY_*"], {}, {})
    assert "UV_INDEX_CORP_PASSWORD" in job_environment(environ, ["UV_INDEX_*"], {}, {})


def test_the_persons_own_goes_over_the_daemons_but_not_over_what_must_be() -> None:
    env = job_environment({"CUDA_HOME": "/a"}, [], {"CUDA_HOME": "/b", "SPT_NOENV": "1"}, {"SPT_NOENV": "1"})
    assert env == {"CUDA_HOME": "/b", "SPT_NOENV": "1"}
    with pytest.raises(
        ConfigError, match="env sets CUDA_DEVICE_ORDER=FASTEST_FIRST, but the supervisor needs 'PCI_BUS_ID'"
    ):
        job_environment({}, [], {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})


def test_a_variable_can_be_put_in_front_of_what_each_pod_has() -> None:
    own = {"PATH": "/x:$PATH", "LD_LIBRARY_PATH": "${LD_LIBRARY_PATH}:/cuda", "OTHER": "$PATH $OTHERS", "B": "$B/x"}
    env = job_environment({"PATH": "/usr/bin", "B": "never asked for"}, [], own, {})
    assert env == {"PATH": "/x:/usr/bin", "LD_LIBRARY_PATH": ":/cuda", "OTHER": "$PATH $OTHERS", "B": "/x"}
