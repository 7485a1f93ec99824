"""The job's environment: built from a short list of harmless names, never copied from the daemon's.

RL environments run code that models wrote, so the job sees neither the store's keys, nor the pod's API key, nor what
systemd tells the daemon alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from supervisor.base.errors import ConfigError
from supervisor.base.secret_shapes import SECRET_NAME
from supervisor.jobs.base import Change
from supervisor.storage.backends import SECRETS

ALLOWED = (
    # who and where
    *("HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "HOSTNAME", "PATH", "LANG", "LANGUAGE", "LC_*"),
    *("TMPDIR", "TMP", "TEMP", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"),
    # libraries and compilers
    *("LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CC", "CXX", "MAX_JOBS", "OMP_*", "MKL_*", "OPENBLAS_*"),
    # GPUs and their networks
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "UCX_*", "FI_*", "GLOO_*", "TORCH_*", "PYTORCH_*", "TORCHINDUCTOR_*", "TRITON_*"),
    # trainer and engine
    *("VLLM_*", "PRIME_LOG_LEVEL", "PRIME_VF_LOG_LEVEL", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_*"),
    *("HF_HOME", "HF_HUB_*", "HF_DATASETS_*", "HF_ENDPOINT", "HF_XET_*"),
    # package tools and the way out
    *("UV_*", "PIP_CACHE_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy"),
)
"""Globs of names that pass without being asked for, unless the name says that the value is a secret."""

NEVER = (
    *(f"{name}*" for name in SECRETS),  # the store's keys
    # the daemon's own secrets, and what systemd says to it
    *("RL_SUPERVISOR_*", "RL_HEARTBEAT_URL", "RL_NOTIFY_URLS"),
    "OTEL_EXPORTER_OTLP_*HEADERS",
    *("CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_*", "LISTEN_*", "INVOCATION_ID"),
    *("JOURNAL_STREAM", "MAINPID", "MANAGERPID", "FDSTORE", "MEMORY_PRESSURE_*", "SYSTEMD_EXEC_PID"),
    # these keys rent and stop pods
    *("CONTAINER_API_KEY", "VAST_*", "VASTAI_*", "RUNPOD_*", "LAMBDA_API_KEY"),
)
"""Globs of names that do not pass whatever `pass_env` says."""


NOT_FOR_COMMANDS = (
    *SECRETS,
    *("RL_HEARTBEAT_URL", "RL_NOTIFY_URLS", "RL_SUPERVISOR_NANNY", "RL_SUPERVISOR_WEB_TOKEN"),
    *("CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "OTEL_EXPORTER_OTLP_"),
)
"""What the names begin with that a command of the run file does not get."""


ONE_WANDB_RUN = "all attempts are one W&B run"
_HEALTH = "the run's own page in W&B shows its health"
_MARK = "the job's processes are known by it"
_NO_CLEAN = "no start may delete what the run has written"
REASONS = {
    "NEVER_CLEAN": _NO_CLEAN,
    "NEVER_CLEAN_OUTPUT_DIR": _NO_CLEAN,
    "VLLM_WORKER_MULTIPROC_METHOD": "a forked worker of vLLM would inherit a CUDA context that is broken in it",
    "CUDA_DEVICE_ORDER": "GPU numbers are those of nvidia-smi",
    "CUDA_VISIBLE_DEVICES": "[gpus] of the run file says it",
    "SPT_NOENV": "setproctitle would wipe /proc/PID/environ, by which the job's processes are known",
    "PYTHONUNBUFFERED": "each line is in the log when it is said",
    "RL_SUPERVISOR_RUN": _MARK,
    "RL_SUPERVISOR_ATTEMPT": _MARK,
    "PRL_RUN_ID": ONE_WANDB_RUN,
    "WANDB_SHARED_RUN_ID": ONE_WANDB_RUN,
    "WANDB_RUN_ID": ONE_WANDB_RUN,
    "WANDB_RESUME": ONE_WANDB_RUN,
    "WANDB_NOTES": "W&B keeps the points of steps that a rollback left",
    "WANDB_INIT_TIMEOUT": "a start waits this long for W&B, in seconds, and then fails",
    "WANDB_FINISH_TIMEOUT": "an end waits this long for W&B, in seconds; what is left can be sent with `wandb sync`",
    "WANDB_X_STATS_OPEN_METRICS_ENDPOINTS": _HEALTH,
    "WANDB_X_STATS_OPEN_METRICS_FILTERS": _HEALTH,
    "WANDB_X_STATS_SAMPLING_INTERVAL": _HEALTH,
}
"""Why the supervisor sets a variable of the job, as clauses."""


def environment_of_commands(environ: Mapping[str, str]) -> dict[str, str]:
    """The daemon's own for a command that a person named in the run file: without the store's keys, the heartbeat's
    address, and what a service manager says to the daemon.
    """
    return {name: value for name, value in environ.items() if not name.startswith(NOT_FOR_COMMANDS)}


def set_variables(fixed: Mapping[str, str], environ: Mapping[str, str]) -> list[Change]:
    """Each variable of ``fixed``, and what the supervisor's own ``environ`` would have given the job instead."""
    return [
        Change(
            f"{name}={value}",
            REASONS.get(name, ""),
            f"{name}={environ[name]}" if environ.get(name, value) != value and not _matches_any(name, NEVER) else "",
        )
        for name, value in fixed.items()
    ]


def open_files(asked: int) -> Change:
    """[job] nofile, which is raised to where that may be."""
    return Change(
        f"{asked} open files", "[job] nofile of the run file says it; the hard limit is raised where that may be"
    )


def job_environment(
    environ: Mapping[str, str],
    pass_env: Iterable[str],
    own: Mapping[str, str],
    fixed: Mapping[str, str],
) -> dict[str, str]:
    """The job's complete environment: what is allowed of ``environ``, then ``own`` ([job] env), then ``fixed``.

    ``fixed`` is what the supervisor must have its way with. Raises ConfigError when ``own`` sets one of those, or a
    name that never passes.
    """
    asked = tuple(pass_env)
    passed = {
        name: value
        for name, value in environ.items()
        if not _matches_any(name, NEVER)
        and (_matches_any(name, asked) or (_matches_any(name, ALLOWED) and not SECRET_NAME.search(name)))
    }
    for name, value in own.items():
        if _matches_any(name, NEVER):
            raise ConfigError(
                f"[job] env sets {name}, which the job must never see (it runs code that models wrote): take it out."
            )
        if fixed.get(name, value) != value:
            raise ConfigError(f"[job] env sets {name}={value}, but the supervisor needs {fixed[name]!r}: take it out.")
    return {**with_own(passed, own), **fixed}


def with_own(environ: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """``own`` ([job] env) over ``environ``. In the value of PATH, ``$PATH`` is the one below; so in any other's."""
    return {**environ, **{name: _fill_own_value(name, value, environ.get(name, "")) for name, value in own.items()}}


def _fill_own_value(name: str, value: str, below: str) -> str:
    return re.sub(rf"\${re.escape(name)}\b|\${{{re.escape(name)}}}", lambda _: below, value) if "$" in value else value


def _matches_any(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
