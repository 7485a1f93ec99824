"""The look at a real machine: this one, and folders that look like others."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from supervisor.base import proc_stat
from supervisor.config.settings import RunFile
from supervisor.preflight import installed, look, online, volumes
from supervisor.preflight.look import Needs
from supervisor.preflight.volumes import Mount
from supervisor.process import attached
from supervisor.sensors import gpu_survey

FAKE_NVML = """
class NVMLError(Exception): pass
class NVMLError_FunctionNotFound(NVMLError): pass
class Memory: total, free, used = 85899345920, 21474836480, 64424509440
class Process: pid, usedGpuMemory = {pid}, 64424509440
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index):
    if index: raise NVMLError("GPU is lost")
    return index + 1
def nvmlDeviceGetMemoryInfo(handle): return Memory
def nvmlDeviceGetCudaComputeCapability(handle): return (9, 0)
def nvmlDeviceGetName(handle): return b"NVIDIA H100"
def nvmlDeviceGetUUID(handle): return "GPU-1"
def nvmlDeviceGetComputeRunningProcesses_v3(handle): raise NVMLError_FunctionNotFound()
def nvmlDeviceGetComputeRunningProcesses_v2(handle): return [Process]
def nvmlSystemGetDriverVersion(): return "550.54.15"
def nvmlSystemGetCudaDriverVersion(): return 12040
"""


def run_file(folder: Path, **job: object) -> RunFile:
    table = {"dir": str(folder), "config": "c.toml", **job}
    return RunFile.model_validate({"run": {"id": "look", "state_dir": str(folder / "state")}, "job": table})


def fake_nvml(folder: Path, pid: int) -> dict[str, str]:
    folder = folder / str(pid)  # one folder for two of one length, within a second: Python took the first's bytecode
    folder.mkdir()
    (folder / "pynvml.py").write_text(FAKE_NVML.format(pid=pid))
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_a_look_at_this_machine_takes_less_than_a_second_and_knows_the_basics(tmp_path: Path) -> None:
    before = time.monotonic()
    found = look.site(run_file(tmp_path), None, {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "B2_KEY": "s"})
    assert time.monotonic() - before < 2  # a tenth of that, where nothing else runs
    assert found.memory_bytes
    assert found.nofile
    assert {"output", "state", "hf-cache", "tmp"} == set(found.volumes)
    assert found.hf_cache == tmp_path / ".cache/huggingface/hub"
    assert "B2_KEY" not in found.environ  # it is what the job will have
    assert not found.job_lives


# ---------------------------------------------------------------- GPUs


@pytest.mark.parametrize(
    ("held", "part"),
    [("text_of", installed), ("packages", installed), ("cached_models", volumes), ("volume_of", volumes)],
)
def test_a_volume_that_gives_no_answer_costs_its_place_and_no_more(
    held: str, part: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead network volume under HF_HOME, HOME or the interpreter: who reads there is held until it comes back."""
    dead, back, true = tmp_path / "dead", threading.Event(), getattr(part, held)

    def hold(path: Path, *rest: object) -> object:
        if path.is_relative_to(dead):
            back.wait(10)
        return true(path, *rest)

    monkeypatch.setattr(part, held, hold)
    monkeypatch.setattr(look, "FILES_S", 0.3)
    monkeypatch.setattr(look, "SILENT_S", 0.4)
    environ = {"HF_HOME": str(dead), "HOME": str(dead)}
    began = time.monotonic()
    site = look.look(Needs(environ, environ, python=dead / "bin/python", folders={"hf-cache": dead}), gpus=False)
    took = time.monotonic() - began
    back.set()
    assert took < 5
    assert site.memory_bytes
    assert bool(site.silent) == (held == "volume_of"), "what hangs is said, and not what has many files to read"
    if held == "text_of":
        assert site.hf_login is None
        assert site.netrc_wandb, "what is not known is not complained of"


def test_gpus_are_surveyed_in_a_child_with_their_tenants(tmp_path: Path) -> None:
    found = gpu_survey.survey(environ=fake_nvml(tmp_path, os.getpid()))
    assert (found.driver, found.cuda, found.problem) == ("550.54.15", "12.4", "")
    (only,) = found.gpus  # the lost one is not known
    assert (only.name, only.capability, only.pids) == ("NVIDIA H100", (9, 0), [(os.getpid(), 60 << 30)])


def test_a_gpu_that_shares_the_processors_memory_is_there(tmp_path: Path) -> None:
    """GB10 (DGX Spark): nvmlDeviceGetMemoryInfo answers that it is not supported. A lost one is left out still."""
    environ = fake_nvml(tmp_path, os.getpid())
    fake = Path(environ["PYTHONPATH"], "pynvml.py")
    fake.write_text(
        fake.read_text().replace("class Memory", "class NVMLError_NotSupported(NVMLError): pass\nclass Memory")
        + "class NVMLError_NoPermission(NVMLError): pass\n"
        "def nvmlDeviceGetHandleByIndex(index): return index + 1\n"
        "def nvmlDeviceGetMemoryInfo(handle): raise NVMLError_NotSupported() if handle == 1 else NVMLError('lost')\n"
    )
    (only,) = look.look(Needs({}, environ)).gpus or ()
    assert (only.index, only.name, only.total_bytes) == (0, "NVIDIA H100", 0)


def test_a_tenant_is_named_and_a_number_that_is_nobody_here_is_hidden(tmp_path: Path) -> None:
    needs = Needs({}, fake_nvml(tmp_path, os.getpid()))
    (gpu,) = look.look(needs).gpus or ()
    assert gpu.processes
    assert f"pid {os.getpid()} of user" in gpu.processes[0].name
    (gpu,) = look.look(Needs({}, fake_nvml(tmp_path, 1 << 22))).gpus or ()
    assert gpu.processes
    assert (gpu.processes[0].pid, gpu.processes[0].name) == (0, "")


def test_a_driver_that_hangs_costs_its_patience_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("import time\ntime.sleep(60)\n")
    found = gpu_survey.survey(0.5, {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert "no answer in 0.5 s" in found.problem
    assert not found.none


def test_no_driver_is_no_gpu_but_an_answer_that_is_not_understood_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(
        "class NVMLError_LibraryNotFound(Exception): pass\n"
        "def nvmlInit(): raise NVMLError_LibraryNotFound('NVML Shared Library Not Found')\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert gpu_survey.survey(environ=environ).none != any(Path("/dev").glob("nvidia[0-9]*"))
    (tmp_path / "pynvml.py").write_text("print('odd')\nraise SystemExit\n")
    assert look.look(Needs({}, environ)).gpus is None


# ---------------------------------------------------------------- ports and attempts


def test_who_listens_on_a_port_is_told_and_a_free_port_is_not_mentioned() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        held = look.find_other_listeners([port, 1], {})
        assert list(held) == [port]
        assert f"pid {os.getpid()}" in held[port]
        assert (
            look.find_other_listeners([port], {}, lambda: {(os.getpid(), proc_stat.start_ticks(os.getpid()) or 0)})
            == {}
        )
    assert look.find_other_listeners([port], {}) == {}


def write_record(state: Path, attempt: int, pid: int, ticks: int) -> None:
    folder = state / "attempts" / f"{attempt:04d}"
    folder.mkdir(parents=True)
    record = {
        "shim_pid": pid,
        "shim_start_ticks": ticks,
        "child_pid": pid,
        "child_start_ticks": ticks,
        "boot_id": proc_stat.boot_id(),
        "started_wall": 1.0,
        "how": "fork",
        "unit": None,
        "init_start_ticks": proc_stat.start_ticks(1),
    }
    (folder / "rl.shim.json").write_text(json.dumps(record))


def test_an_attempt_lives_while_its_process_does_and_a_recycled_number_is_not_it(tmp_path: Path) -> None:
    ticks = proc_stat.start_ticks(os.getpid()) or 0
    assert not look.lives(tmp_path)
    write_record(tmp_path, 1, os.getpid(), ticks + 1)
    assert not look.lives(tmp_path)
    write_record(tmp_path, 2, os.getpid(), ticks)
    assert look.lives(tmp_path)


def test_a_job_that_a_person_started_and_we_watch_lives_too(tmp_path: Path) -> None:
    attached.write_record(
        tmp_path / "attempts/0001", "job", (os.getpid(), proc_stat.start_ticks(os.getpid()) or 0), "python"
    )
    assert look.lives(tmp_path)


# ---------------------------------------------------------------- limits


def test_open_files_are_told_as_the_job_will_have_them() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert look.open_files(1024)[0] >= min(soft, 1024)
    if hard != resource.RLIM_INFINITY:
        asked = hard + 1
        assert look.open_files(asked) in ((hard, hard), (asked, asked))  # the second where we may raise it


def test_processes_are_counted_or_unlimited() -> None:
    found = look.processes()
    assert found is not None
    assert 0 < found[0] <= look.UNLIMITED


# ---------------------------------------------------------------- volumes and caches

MOUNTS = """\
22 1 0:20 / / rw,relatime - overlay overlay rw
23 22 0:21 / /dev/shm rw - tmpfs shm rw
24 22 8:1 /vol {here}/work\\040space rw shared:1 master:2 - ext4 /dev/sda1 rw
damaged line
"""


def test_a_folder_is_found_on_the_deepest_mount_above_it(tmp_path: Path) -> None:
    (tmp_path / "work space").mkdir()
    (tmp_path / "mountinfo").write_text(MOUNTS.format(here=tmp_path))
    mounts = volumes.mounts(tmp_path / "mountinfo")
    assert mounts[0] == Mount(Path("/"), "overlay")
    deep = volumes.volume_of(tmp_path / "work space/not/yet/there", mounts)
    assert deep is not None
    assert (deep.mount, deep.kind) == (str(tmp_path / "work space"), "ext4")
    assert deep.total_bytes > deep.free_bytes >= 0
    other = volumes.volume_of(tmp_path, mounts)
    assert other is not None
    assert other.kind == "overlay"


def test_what_a_container_was_given_is_neither_its_own_nor_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volumes, "PERSISTENT_BYTES", 1)
    mounts = [
        Mount(Path("/"), "overlay"),
        Mount(Path("/usr"), "ext4"),
        Mount(Path("/dev/shm"), "tmpfs"),
        Mount(tmp_path, "nfs4"),
        Mount(tmp_path / "gone", "nfs4"),
    ]
    assert [one.mount for one in volumes.list_given_volumes(mounts)] == [str(tmp_path)]


def test_the_model_that_main_names_is_the_one_in_the_cache(tmp_path: Path) -> None:
    model = tmp_path / "models--Qwen--Qwen3-8B"
    for commit in ("aaa", "bbb"):
        (model / "snapshots" / commit).mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs/main").write_text("aaa\n")
    (tmp_path / "datasets--x--y/snapshots/1").mkdir(parents=True)
    (tmp_path / "models--half--done/blobs").mkdir(parents=True)
    assert volumes.cached_models(tmp_path) == {"Qwen/Qwen3-8B": model / "snapshots/aaa"}
    assert volumes.cached_models(tmp_path / "nowhere") == {}


def test_a_login_for_wandb_counts_for_the_host_that_is_used(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password x\n")
    home = {"HOME": str(tmp_path)}
    assert look.has_wandb_login(home)
    assert not look.has_wandb_login({**home, "WANDB_BASE_URL": "https://wandb.example.org:8080/x"})
    assert not look.has_wandb_login({"HOME": str(tmp_path / "else")})


def test_a_login_for_a_wandb_of_ones_own_is_one(tmp_path: Path) -> None:
    """`wandb login --host` writes the host into W&B's settings, and sets no variable."""
    home = {"HOME": str(tmp_path)}
    (tmp_path / "_netrc").write_text("machine wandb.corp.example\n  login user\n  password x\n")
    assert not look.has_wandb_login(home)  # no W&B asks there
    (tmp_path / ".config/wandb").mkdir(parents=True)
    (tmp_path / ".config/wandb/settings").write_text("[default]\nbase_url = https://wandb.corp.example\n")
    assert look.has_wandb_login(home)
    assert not look.has_wandb_login({**home, "WANDB_BASE_URL": "https://api.wandb.ai"})
    (tmp_path / "settings").write_text("[default]\napi_key = x\n")
    assert look.has_wandb_login({"HOME": "/nowhere", "WANDB_CONFIG_DIR": str(tmp_path)})


@pytest.mark.parametrize(
    "environ",
    [{"HF_HOME": "~/hf"}, {"HF_HOME": "$HOME/hf"}, {"HF_TOKEN_PATH": "~/hf/token"}, {"XDG_CACHE_HOME": "xdg"}],
)
def test_a_login_for_the_hub_is_found_where_the_hubs_own_program_writes_it(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """Each variable may begin with ~ or hold another one (huggingface_hub, constants.py)."""
    given = {"HOME": str(tmp_path), **environ}
    assert not look.has_hf_login(given, tmp_path)
    for folder in (tmp_path / "hf", tmp_path / "xdg/huggingface"):
        folder.mkdir(parents=True)
        (folder / "token").write_text("hf_secret\n")
    assert look.has_hf_login(given, tmp_path)
    assert online.token_of(given, tmp_path) == "hf_secret"


def test_providers_are_known_by_their_variables() -> None:
    assert look.provider({"RUNPOD_POD_ID": "abc"}) == "runpod"
    assert look.provider({"VAST_CONTAINERLABEL": "C.1"}) == "vast"
    assert look.provider({"PATH": "/bin"}) == ""


# ---------------------------------------------------------------- what is installed


def make_environment(folder: Path) -> Path:
    """A virtual environment by its files; its interpreter need not run."""
    sites = folder / ".venv/lib/python3.12/site-packages"
    sites.mkdir(parents=True)
    (folder / ".venv/pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    return sites


def test_torch_is_read_from_its_text(tmp_path: Path) -> None:
    sites = make_environment(tmp_path)
    (sites / "torch").mkdir()
    (sites / "torch/version.py").write_text(
        "from typing import Optional\n__version__ = '2.8.0+cu128'\ncuda: Optional[str] = '12.8'\nhip = None\n"
    )
    found = installed.packages(tmp_path / ".venv/bin/python")
    assert installed.torch(found) == ("2.8.0+cu128", "12.8")
    (sites / "torch/version.py").write_text("__version__ = '2.8.0+cpu'\ncuda: Optional[str] = None\n")
    assert installed.torch(found) == ("2.8.0+cpu", "")


def test_modules_are_found_as_packages_files_editable_folders_and_by_finders(tmp_path: Path) -> None:
    sites = make_environment(tmp_path)
    (sites / "plain_env").mkdir()
    (sites / "one_file.py").write_text("")
    (sites / "compiled.cpython-312-x86_64-linux-gnu.so").write_text("")
    (tmp_path / "src/edited").mkdir(parents=True)
    (sites / "edited.pth").write_text(f"import _virtualenv\n{tmp_path / 'src'}\n")
    (sites / "__editable___mapped_1_0_finder.py").write_text(
        "MAPPING: dict[str, str] = {'mapped_env': '/x/mapped_env'}"
    )
    (sites / "Some_Env-0.1.1.dist-info").mkdir()
    found = installed.packages(tmp_path / ".venv/bin/python", {"PYTHONPATH": str(tmp_path / "more")})
    assert found.whole
    for module in ("plain_env", "one_file", "compiled", "edited", "mapped_env"):
        assert found.has(module), module
    assert not found.has("beside")
    assert found.versions() == {"some_env": "0.1.1"}
    (tmp_path / "more/beside").mkdir(parents=True)
    assert found.has("beside")


def test_where_nothing_is_installed_yet_the_lock_file_says_what_will_be(tmp_path: Path) -> None:
    lock = '[[package]]\nname = "transformers"\nversion = "4.56.1"\n[[package]]\nname = "other"\nversion = "1"\n'
    (tmp_path / "uv.lock").write_text(lock)
    there = look.site(None, None, {"HOME": str(tmp_path)}, checkout=tmp_path, gpus=False)
    assert there.versions == {"transformers": "4.56.1"}
    sites = make_environment(tmp_path)
    (sites / "transformers-5.1.0.dist-info").mkdir()
    there = look.site(None, None, {"HOME": str(tmp_path)}, checkout=tmp_path, gpus=False)
    assert there.versions["transformers"] == "5.1.0"


def test_an_environment_that_also_looks_elsewhere_or_is_not_there_is_not_whole(tmp_path: Path) -> None:
    sites = make_environment(tmp_path)
    (tmp_path / ".venv/pyvenv.cfg").write_text("include-system-site-packages = true\n")
    assert not installed.packages(tmp_path / ".venv/bin/python").whole
    assert not installed.packages(tmp_path / "none/bin/python").whole
    (tmp_path / ".venv/pyvenv.cfg").write_text("include-system-site-packages = false\n")
    assert installed.packages(tmp_path / ".venv/bin/python").whole
    (sites / "_some_editable.pth").write_text("import _some_editable_loader\n")
    assert not installed.packages(tmp_path / ".venv/bin/python").whole
    assert installed.packages(Path(sys.executable)).has("pydantic")
