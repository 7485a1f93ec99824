"""What an offer promised, held against the host: plain lies are told, and odd but sound hosts are left alone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.base.promised import Promised, read_promised
from supervisor.checkpoints import link_speed
from supervisor.checkpoints.catalogue import list_steps
from supervisor.checkpoints.publish import publish
from supervisor.config.settings import RunFile
from supervisor.preflight import host_check
from supervisor.preflight.host_check import find_lies, is_another_gpu
from supervisor.storage import open_store
from tests.b2server import B2Server, Fault
from tests.checkpoints_store.conftest import Step, quiet

NVML = """
class NVMLError(Exception): pass
class NVMLError_LibraryNotFound(NVMLError): pass
class NVMLError_LibRmVersionMismatch(NVMLError): pass
class NVMLError_FunctionNotFound(NVMLError): pass
class NVMLError_NotSupported(NVMLError): pass
class NVMLError_NoPermission(NVMLError): pass
NAMES, ERROR = {names!r}, {error!r}
class Memory: total, free, used = 80 << 30, 80 << 30, 0
def nvmlInit():
    if ERROR: raise globals()[ERROR]("Driver/library version mismatch")
def nvmlDeviceGetCount(): return len(NAMES)
def nvmlDeviceGetHandleByIndex(index): return index + 1
def nvmlDeviceGetMemoryInfo(handle):
    if not NAMES[handle - 1]: raise NVMLError("GPU is lost")
    return Memory
def nvmlDeviceGetCudaComputeCapability(handle): return (9, 0)
def nvmlDeviceGetName(handle): return NAMES[handle - 1]
def nvmlDeviceGetUUID(handle): return "GPU-%d" % handle
def nvmlDeviceGetComputeRunningProcesses_v3(handle): return []
def nvmlSystemGetDriverVersion(): return "550.54.15"
def nvmlSystemGetCudaDriverVersion(): return 12040
"""
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def run_file(tmp_path: Path) -> RunFile:
    table = {"dir": str(tmp_path), "config": "c.toml", "output_dir": str(tmp_path / "not/made/yet")}
    run = {"id": "host", "state_dir": str(tmp_path / "state")}
    return RunFile.model_validate({"run": run, "job": table, "store": {"url": (tmp_path / "store").as_uri()}})


@pytest.fixture
def gpus(tmp_path: Path) -> Callable[..., dict[str, str]]:
    def show(*names: str, error: str = "") -> dict[str, str]:
        (tmp_path / "pynvml.py").write_text(NVML.format(names=list(names), error=error))
        return {**os.environ, "PYTHONPATH": str(tmp_path)}

    return show


Gpus = Callable[..., dict[str, str]]


@pytest.mark.parametrize(
    ("promised", "found"),
    [
        ("H100 SXM", H100),
        ("RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("A100 SXM4", "NVIDIA A100-SXM4-80GB"),
        ("A100 PCIE", "NVIDIA A100 80GB PCIe"),
        ("RTX 6000Ada", "NVIDIA RTX 6000 Ada Generation"),
        ("RTX A6000", "NVIDIA RTX A6000"),
        ("RTX4090_24GB", "NVIDIA GeForce RTX 4090"),
        ("H100_80GB", "NVIDIA H100 PCIe"),
        ("GH200 SXM", "NVIDIA GH200 480GB"),
        ("Q RTX 8000", "Quadro RTX 8000"),
        ("Tesla V100", "Tesla V100-SXM2-32GB"),
        ("RTX 4080S", "NVIDIA GeForce RTX 4080 SUPER"),
        ("B200", "NVIDIA B200"),
        ("L40S", "NVIDIA L40S"),
        ("Titan V", "NVIDIA TITAN V"),
        ("H100 SXM", "NVIDIA Graphics Device"),
        ("", H100),
    ],
)
def test_another_spelling_is_no_other_gpu(promised: str, found: str) -> None:
    assert not is_another_gpu(found, promised)


@pytest.mark.parametrize(
    ("promised", "found"),
    [
        ("H100 SXM", "NVIDIA A100-SXM4-80GB"),
        ("RTX 4090", "NVIDIA GeForce RTX 3090"),
        ("A100 SXM4", "Tesla V100-SXM2-32GB"),
        ("L40", "NVIDIA A40"),
        ("H200", H100),
        ("H100_80GB", "NVIDIA A100 80GB PCIe"),
    ],
)
def test_another_model_is_another_gpu(promised: str, found: str) -> None:
    assert is_another_gpu(found, promised)


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        ((H100, H100), ""),
        ((H100,) * 4, ""),
        ((H100, H100, "NVIDIA T400"), ""),
        ((H100,), f"The offer promised 2 x H100 SXM, and this machine has 1 ({H100})."),
        ((), "The offer promised 2 x H100 SXM, and this machine has 0."),
        ((H100, ""), f"The offer promised 2 x H100 SXM, and this machine has 1 ({H100})."),
        ((H100, "NVIDIA A40"), f"The offer promised 2 x H100 SXM, and this machine has 2 (NVIDIA A40, {H100})."),
    ],
)
def test_the_count_of_the_promised_gpus_decides(run_file: RunFile, gpus: Gpus, shown: tuple[str], says: str) -> None:
    assert find_lies(Promised(gpu="H100 SXM", gpus=2), run_file, gpus(*shown)) == says


def test_a_driver_that_answers_with_an_error_is_a_lie_and_what_cannot_be_asked_is_none(
    run_file: RunFile, gpus: Gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Promised(gpu="H100 SXM", gpus=2)
    told = find_lies(two, run_file, gpus(error="NVMLError_LibRmVersionMismatch"))
    assert told.startswith("The offer promised 2 x H100 SXM, and the driver shows none: No GPU was found (Driver/lib")
    (tmp_path / "pynvml.py").write_text("raise ImportError('no pynvml here')")
    assert find_lies(two, run_file, {**os.environ, "PYTHONPATH": str(tmp_path)}) == ""
    (tmp_path / "pynvml.py").write_text("import time\ntime.sleep(60)")
    monkeypatch.setattr(host_check.gpu_survey.survey, "__defaults__", (0.2, None))
    assert find_lies(two, run_file, {**os.environ, "PYTHONPATH": str(tmp_path)}) == ""


def test_no_gpu_was_promised_and_none_is_looked_for(run_file: RunFile, gpus: Gpus) -> None:
    assert find_lies(Promised(disk_gb=0.001), run_file, gpus(error="NVMLError_LibraryNotFound")) == ""


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[float, float, float], None]:
    """The root has so many GB in all and free; the run is on a volume of its own."""
    usage = type(shutil.disk_usage("/"))

    def make(total: float, free: float, volume: float = 10.0) -> None:
        def look(path: Path) -> object:
            if path != Path("/"):
                assert path == tmp_path, "what is not made yet lies where its parent does"
                return usage(int(volume * 1e9), 0, int(volume * 1e9))
            return usage(int(total * 1e9), int((total - free) * 1e9), int(free * 1e9))

        monkeypatch.setattr(shutil, "disk_usage", look)

    return make


Disk = Callable[..., None]


def test_a_disk_that_is_too_small_or_full_is_a_lie(run_file: RunFile, disk: Disk) -> None:
    promised = Promised(disk_gb=400)
    for total, free, says in (
        (372, 370, ""),  # a file system's own part of 7 %
        (376, 210, ""),  # the image and [setup] fill a part
        (2000, 1500, ""),
        (100, 90, "The offer promised a disk of 400 GB, and the largest here has 100 GB."),
        (1800, 30, "The offer promised a disk of 400 GB, and only 30 GB are free here."),
        (0, 0, "The offer promised a disk of 400 GB, and the largest here has 10 GB."),
    ):
        disk(total, free)
        assert find_lies(promised, run_file, os.environ) == says, (total, free)
    disk(100, 90, volume=500)
    assert find_lies(promised, run_file, os.environ) == "", "the promise may mean the volume"
    disk(0, 0, volume=0)
    assert find_lies(promised, run_file, os.environ) == "", "nothing tells its size"


def test_a_disk_that_the_run_itself_filled_before_is_no_lie(run_file: RunFile, disk: Disk) -> None:
    disk(376, 40)
    assert find_lies(Promised(disk_gb=400), run_file, os.environ).endswith("only 40 GB are free here.")
    (run_file.state_dir / "attempts/0001").mkdir(parents=True)
    assert find_lies(Promised(disk_gb=400), run_file, os.environ) == ""


def test_shared_memory_that_is_smaller_than_dockers_own_is_told_where_several_gpus_need_it(
    run_file: RunFile, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = gpus(H100, H100)
    look = os.statvfs("/")
    for size, count, says in ((64 << 20, 2, ""), (8 << 20, 1, ""), (8 << 20, 2, "/dev/shm has 8 MiB, too little for")):
        fields = [4096, 4096, size // 4096, *tuple(look)[3:]]
        monkeypatch.setattr(os, "statvfs", lambda path, fields=fields: os.statvfs_result(fields))
        assert find_lies(Promised(gpu="H100", gpus=count), run_file, env).startswith(says), size
        assert bool(says) == bool(find_lies(Promised(gpu="H100", gpus=count), run_file, env))


def test_what_was_promised_survives_the_environment_and_junk_promises_nothing() -> None:
    full = Promised("H100 SXM", 2, 400.0, 800.0, 500.0, 100.0, 50.0)
    assert read_promised(full.as_json()) == full
    assert Promised().as_json() == ""
    assert read_promised(json.dumps({"gpus": 0, "disk_gb": "much", "up_mbit": None, "gpu": None})) == Promised()
    for junk in ("", "{", "[]", "7", "null"):
        assert read_promised(junk) == Promised()


# ---------------------------------------------------------------- the link


class Link:
    """A link in virtual time: so many Mbit/s over all streams, so long before each answer, and what stumbles."""

    def __init__(self, mbit: float, latency_s: float = 0.1, stumbles: dict[int, float] | None = None) -> None:
        self.now, self.mbit, self.latency_s, self.stumbles = 0.0, mbit, latency_s, stumbles or {}
        self.rounds, self.moved = 0, 0

    def move(self, size: int) -> None:
        self.moved += 16 * size
        self.now += self.latency_s + 16 * size * 8 / 1e6 / self.mbit + self.stumbles.get(self.rounds, 0.0)
        self.rounds += 1

    def measure(self, enough: float) -> float | None:
        return link_speed.measure_way(self.move, 16, enough, link_speed.LARGEST_BYTES, lambda: self.now)


@pytest.mark.parametrize(
    ("mbit", "latency_s", "enough"),
    [(1000, 0.1, 222), (300, 0.5, 222), (9, 0.1, 8), (5000, 0.9, 1250), (1000, 0.9, 250), (20, 0.1, 8)],
)
def test_a_link_that_is_enough_is_enough_whatever_its_latency(mbit: float, latency_s: float, enough: float) -> None:
    assert Link(mbit, latency_s).measure(enough) is None


@pytest.mark.parametrize(("mbit", "enough"), [(0.1, 8), (0.5, 8), (3, 8), (5, 200), (50, 222), (120, 222)])
def test_a_slow_link_is_measured_in_seconds(mbit: float, enough: float) -> None:
    link = Link(mbit)
    assert link.measure(enough) == pytest.approx(mbit, rel=0.25)
    assert link.now < 25
    assert link.moved < 150e6


def test_a_slow_beginning_and_a_stumble_on_the_way_are_no_slow_link() -> None:
    for stumbles in ({0: 5.0}, {0: 2.0, 2: 3.0}, {1: 4.0}, {3: 7.0}, {2: 3.0, 3: 3.0}, {0: 9.0}, {1: 2.0, 4: 4.0}):
        assert Link(400, 0.2, stumbles).measure(222) is None, stumbles


@pytest.mark.parametrize("stumbles", [{0: 5.0}, {4: 5.0}, {0: 3.0, 5: 3.0}])
def test_a_slow_link_that_stumbles_besides_is_told_as_it_is(stumbles: dict[int, float]) -> None:
    assert Link(3, 0.1, stumbles).measure(8) == pytest.approx(3, rel=0.25)


@pytest.fixture
def server() -> Iterator[B2Server]:
    with B2Server() as one:
        yield one


def over(server: B2Server, run_file: RunFile, **store: object) -> tuple[RunFile, dict[str, str]]:
    settings = run_file.model_dump(exclude_unset=True)
    settings["store"] = {"url": "b2://the-bucket/runs", "realm": server.url, **store}
    return RunFile.model_validate(settings), {**os.environ, **server.environ()}


LINK = Promised(down_mbit=800, up_mbit=400)


def test_a_healthy_store_is_left_as_it_was(server: B2Server, run_file: RunFile) -> None:
    found, env = over(server, run_file)
    assert find_lies(LINK, found, env) == ""
    assert {entry["op"] for entry in server.journal()} >= {"b2_upload_file", "b2_delete_file_version"}
    assert server.objects() == {}
    assert not server.state.versions


@pytest.mark.soak
@pytest.mark.parametrize(
    ("op", "says"), [("b2_upload_file", "400 Mbit/s, and to"), (".*download.*", "800 Mbit/s, and from")]
)
def test_a_store_that_is_reached_at_a_trickle_is_a_lie_one_way_or_the_other(
    server: B2Server, run_file: RunFile, op: str, says: str
) -> None:
    server.state.faults.append(Fault(op, times=10**9, drip=4000))
    found, env = over(server, run_file, streams=4)  # a busy machine answers sixteen at once as late as a bad link
    told = find_lies(LINK, found, env)
    assert told.startswith(f"The offer promised a link of {says} the store it carries 0."), told
    assert told.endswith("the run needs 8.")
    assert not server.state.versions
    way = {"up_mbit": None} if op == "b2_upload_file" else {"down_mbit": None}
    assert find_lies(Promised(**{"down_mbit": 800, "up_mbit": 400, **way}), found, env) == "", "nothing was promised"


def test_a_store_that_is_away_or_fails_on_the_way_says_nothing_of_the_link(server: B2Server, run_file: RunFile) -> None:
    found, env = over(server, run_file)
    server.state.faults.append(Fault("b2_upload_file", after=20, times=1, status=403, code="storage_cap_exceeded"))
    assert find_lies(LINK, found, env) == ""
    assert not server.state.versions, "what was sent is deleted"
    server.state.faults.append(Fault("b2_authorize_account", times=10**9, status=401, code="bad_auth_token"))
    assert find_lies(LINK, found, env) == ""


def test_transfers_that_a_person_holds_back_need_no_link(server: B2Server, run_file: RunFile) -> None:
    found, env = over(server, run_file, limit_mbit=1)
    assert find_lies(LINK, found, env) == ""
    assert server.journal() == []


@pytest.mark.soak
def test_what_an_ended_measurement_left_is_deleted_by_the_next(
    server: B2Server, run_file: RunFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, env = over(server, run_file)
    store = open_store(found.store_url, found.store.service, env)
    store.put_bytes("host/probe/0123/0", b"left")
    assert find_lies(LINK, found, env) == ""
    assert list(server.objects()) == ["runs/host/probe/0123/0"], "another pod may be measuring"
    monkeypatch.setattr(link_speed, "OLD_S", -3600.0)
    assert find_lies(LINK, found, env) == ""
    assert server.objects() == {}


@pytest.mark.soak
def test_what_a_person_asked_of_the_link_is_what_the_run_needs(server: B2Server, run_file: RunFile) -> None:
    server.state.faults.append(Fault("b2_upload_file", times=10**9, drip=150_000))  # 16 streams: 19 Mbit/s
    found, env = over(server, run_file)
    assert find_lies(LINK, found, env) == "", "a run that published nothing needs no more"
    told = find_lies(Promised(up_mbit=400, down_mbit=800, least_up_mbit=90), found, env)
    assert told.endswith("the run needs 90."), told
    assert find_lies(Promised(up_mbit=60, least_up_mbit=50), found, env) == "", "more than a quarter of it is there"


def test_the_size_of_the_newest_step_is_what_the_run_needs(
    server: B2Server, run_file: RunFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, env = over(server, run_file)
    store = open_store(found.store_url, found.store.service, env)
    assert link_speed.step_need_mbit(store, "host") == link_speed.LEAST_NEED_MBIT
    plan = replace(Step(tmp_path / "run", 20).fill().plan(tmp_path / "state"), run_id="host")
    publish(store, plan, quiet)
    assert link_speed.step_need_mbit(store, "host") == link_speed.LEAST_NEED_MBIT, "it is small"
    size = list_steps(store, "host").steps[20].size_bytes
    assert size > 100_000
    monkeypatch.setattr(link_speed, "STEP_S", 0.001)
    assert link_speed.step_need_mbit(store, "host") == pytest.approx(size * 8 / 1000)
