"""The image, without an engine: each step of the Dockerfile in a clean Debian tree, then its entrypoint as process 1.

Opt-in, since it takes minutes and the package indexes: `IMAGE_TRAINER=1 pytest -n 0 -m optin tests/image`; without the
variable all but the trainer's stages. The tree is made once in SYSTEMD_BOX_DIR (default
/var/tmp/rl-supervisor-machine), beside that of the systemd tests. What is not tried here:
the CUDA images themselves, GitHub, and prime-rl's own environment; a small project of the same form stands in for it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.image.builder import Builder, Image, StepFailedError
from tests.image.dockerfile import Dockerfile, read
from tests.image.github import GitHub
from tests.isolation import OUTSIDE
from tests.practice.nvml.build import build as build_nvml

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
BASES = ("BASE", "CUDA_BASE", "CUDA13_BASE")
pytestmark = [pytest.mark.optin, pytest.mark.timeout(1500)]

PRACTICE = """
import sys
sys.path.append("/opt/checkout")
from pathlib import Path
from tests.practice.command_line import toml_value
from tests.practice.run import make_practice
practice = make_practice(Path("/srv"), "v0.6", max_steps=5000, interval=5, step_s=0.4)
tables = {
    "run": {"id": "practice"},
    "job": {"dir": str(practice.home), "config": str(practice.config), "checkpoint_interval": 5},
    "store": {"url": "file:///srv/store"},
    "disk": {"stop_below_mb": 0},
    "recovery": {"backoff": 0.2, "backoff_cap": 2},
    "check": {"at_start": False},  # practice is no sound configuration of prime-rl, and the disk is anybody's
    "supervision": {"sample": 0.5, "engine_sample": 1, "scan": 1, "quiet": 1, "gpu_free": 10},
    "job.env": {key: value for key, value in practice.environment.items() if key != "PATH"},
}
lines = []
for table, values in tables.items():
    lines += [f"[{table}]", *(f"{key} = {toml_value(value)}" for key, value in values.items())]
Path("/etc/rl-supervisor").mkdir()
Path("/etc/rl-supervisor/run.toml").write_text("\\n".join(lines) + "\\n")
print(practice.gpus)
"""
# No second try, and a part that cannot be fetched is an error (apt.conf(5); else a warning).
AT_ONCE = ("-o Acquire::Retries=0", "-o Acquire::http::Timeout=20", "-o APT::Update::Error-Mode=any")
# A process 1 that does what docker's --init does: hand SIGTERM on, reap, end with its child's code.
INIT = """
"$@" & child=$!
trap 'kill -TERM $child' TERM
while wait $child; code=$?; kill -0 $child 2>/dev/null; do :; done
exit $code
"""


# An overlay in a mount namespace, as each step of the build gets it.
TRIAL = """
cd "$1" && mkdir lower upper work root && mount --make-rprivate /
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work root && touch root/written
"""


def why_not(room: Path) -> str:
    """Why no image can be built in ``room``; "" where one can, as far as this machine's rights and disk go."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in ("debootstrap", "unshare", "nsenter", "chroot", "git") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    (room / "trial").mkdir(parents=True)
    words = ["unshare", "--mount", "--pid", "--fork", "bash", "-euc", TRIAL, "trial", str(room / "trial")]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"no overlay can be mounted in {room}: {tried.stderr.strip()}" if tried.returncode else ""


def wait_for(what: Callable[[], T], told: Callable[[], str], within_s: float = 120) -> T:
    deadline = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < deadline, told()
        time.sleep(0.1)
    return found


@pytest.fixture(scope="session")
def dockerfile() -> Dockerfile:
    return read(ROOT / "Dockerfile")


@pytest.fixture(scope="session")
def debian(dockerfile: Dockerfile, room: Path) -> Path:
    """A Debian that nobody has installed anything in, not even Python. Skips where its packages cannot be had."""
    if reason := why_not(room):
        pytest.skip(reason)
    folder = Path(os.environ.get("SYSTEMD_BOX_DIR", "/var/tmp/rl-supervisor-machine"))
    tree = folder / "bare"
    if not tree.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / "bare.part"
        shutil.rmtree(part, ignore_errors=True)
        made = subprocess.run(
            ["debootstrap", "--variant=minbase", "bookworm", str(part)], capture_output=True, text=True, check=False
        )
        if made.returncode:
            pytest.skip(f"debootstrap failed: {made.stdout.strip().splitlines()[-1:]}")
        part.rename(tree)
    builder = Builder(room / "network", dockerfile, ROOT, {}, room / "cache")
    try:
        builder.execute(Image((tree,)), f"timeout 60 apt-get {' '.join(AT_ONCE)} update")
    except StepFailedError as error:
        pytest.skip(f"Debian's packages cannot be had: {' '.join(str(error).split())[-200:]}")
    return tree


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Not below an overlay: an overlay's upper folder cannot lie on one."""
    folder = tmp_path_factory.mktemp("image")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def alone(debian: Path, dockerfile: Dockerfile, room: Path) -> tuple[Builder, Image]:
    """`docker build --build-arg TRAINER=none`."""
    builder = Builder(room / "alone", dockerfile, ROOT, _bases(dockerfile, debian), room / "cache")
    return builder, builder.build("pod", TRAINER="none")


def _bases(dockerfile: Dockerfile, tree: Path) -> dict[str, Path]:
    return {dockerfile.arguments[name]: tree for name in BASES}


# ---------------------------------------------------------------- what is in it


def files(image: Image) -> Iterator[tuple[str, Path]]:
    """(path in the image, file of the layer) of all that our own steps have put there."""
    for layer in image.own_layers:
        for path in layer.rglob("*"):
            yield "/" + str(path.relative_to(layer)), path


def test_no_step_leaves_a_cache_or_a_temporary_file_behind(alone: tuple[Builder, Image]) -> None:
    kept = ("/var/cache/apt/", "/var/lib/apt/lists/", "/root/", "/tmp/", "/var/tmp/", "/usr/src/", "/mnt/image/")
    assert [name for name, path in files(alone[1]) if name.startswith(kept) and not path.is_dir()] == []


def test_all_of_it_belongs_to_root_and_nobody_else_may_write_it(alone: tuple[Builder, Image]) -> None:
    wrong = []
    for name, path in files(alone[1]):
        about = path.lstat()
        ours = name.startswith(("/opt/", "/usr/local/"))
        open_to_all = (
            about.st_mode & stat.S_IWOTH and not stat.S_ISLNK(about.st_mode) and not about.st_mode & stat.S_ISVTX
        )
        if (ours and (about.st_uid, about.st_gid) != (0, 0)) or (open_to_all and not stat.S_ISCHR(about.st_mode)):
            wrong.append(name)
    assert wrong == []
    (layer,) = (one / "usr/local/bin" for one in alone[1].own_layers if (one / "usr/local/bin").is_dir())
    assert {path.name for path in layer.iterdir()} == {
        *("rl-supervisor", "rl-supervisorctl", "supervisorctl", "rl-supervisor-onstart", "rl-supervisor-health")
    }
    assert (layer / "rl-supervisor-onstart").read_bytes() == (alone[0].context / "units" / "onstart.sh").read_bytes()
    assert all(os.access(layer / name, os.X_OK) for name in ("rl-supervisor-onstart", "rl-supervisor-health"))


def test_no_layer_holds_a_secret_or_anything_of_the_machine_that_built_it(alone: tuple[Builder, Image]) -> None:
    shapes = re.compile(rb"AKIA[0-9A-Z]{16}|\bhf_[A-Za-z]{34}\b|\bghp_\w{36}|-----BEGIN [A-Z ]*PRIVATE KEY-----")
    named = re.compile(r"(^|/)(\.env|.*\.env|\.netrc|\.git|id_[a-z0-9]+|pip\.conf|.*credentials.*\.json)$")
    telling = re.compile(r"TOKEN|SECRET|PASSWORD|_KEY$", re.IGNORECASE)
    mine = [value.encode() for name, value in OUTSIDE.items() if telling.search(name) and len(value) >= 12]
    mine += [b"hosts-certificates", str(ROOT).encode()]
    found = []
    for name, path in files(alone[1]):
        if named.search(name):
            found.append(name)
        # What Debian's packages tell of themselves names folders, too.
        if not path.is_file() or path.is_symlink() or name.startswith("/usr/share/doc/"):
            continue
        data = path.read_bytes()
        found += [f"{name}: {one[:12]!r}" for one in mine if one in data]
        ours = name.startswith(("/etc/", "/root/", "/usr/local/")) or "/site-packages/supervisor/" in name
        # Published packages may show such shapes, and so do the masks that know them.
        if ours and not name.endswith((".pyc", "secrets.py")):
            found += [f"{name}: {match[0][:20]!r}" for match in shapes.finditer(data)]
    assert found == []


# ---------------------------------------------------------------- as a container


class Container:
    """A container of the image, with a practice run where CMD looks for a run file."""

    def __init__(self, builder: Builder, image: Image, room: Path) -> None:
        self.builder, self.image = builder, image
        self.upper = builder.new("container")
        build_nvml(self.upper / "opt" / "nvml")
        # The image has the wheel alone; the practice job is of the tests.
        shutil.copytree(ROOT / "tests" / "practice", self.upper / "opt" / "checkout" / "tests" / "practice")
        (self.upper / "opt").chmod(0o755)
        self.out = self.upper.with_suffix(".said")
        self.gpus = ""
        self.runtime: subprocess.Popen[bytes] | None = None
        self.gpus = self.once("/opt/rl-supervisor/bin/python", "-c", PRACTICE).splitlines()[-1]

    def command(self, *words: str, init: bool = False) -> list[str]:
        env = [f"{name}={value}" for name, value in self.image.env.items()]
        env += ["HOME=/root", "LD_LIBRARY_PATH=/opt/nvml", f"PRACTICE_GPUS={self.gpus}", "RL_SUPERVISOR_BACKOFF=0.2"]
        before = ["bash", "-c", INIT, "init"] if init else []  # in the image's tree, so that execute() comes there, too
        start = f'chroot "$root" {shlex.join(["env", "-i", *env, *before, *words])}'
        return self.builder.machine(self.image, self.upper, f"exec {start}", namespaces=("--ipc", "--uts"))

    def once(self, *words: str) -> str:
        """`docker run IMAGE WORD ...` with another entrypoint."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, *, init: bool = False) -> int:
        words = [*json.loads(self.image.config["ENTRYPOINT"]), *json.loads(self.image.config["CMD"])]
        with self.out.open("ab") as said:
            self.runtime = subprocess.Popen(self.command(*words, init=init), stdout=said, stderr=said)
        children = Path(f"/proc/{self.runtime.pid}/task/{self.runtime.pid}/children")
        return int(wait_for(children.read_text, lambda: "process 1"))

    def execute(self, one: int, *words: str) -> tuple[int, str]:
        """`docker exec`."""
        env = [f"{name}={value}" for name, value in self.image.env.items()]
        entered = ["nsenter", "-t", str(one), "-m", "-p", "-i", "-u", "-r", "env", "-C", "/", "-i", *env, *words]
        done = subprocess.run(entered, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def step(self, one: int) -> int:
        code, told = self.execute(one, "supervisorctl", "status", "practice", "--json")
        return int(json.loads(told).get("step") or 0) if code == 0 else 0

    def ended(self, within_s: float = 120) -> int:
        assert self.runtime is not None
        try:
            return self.runtime.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.said()) from None

    def said(self) -> str:
        return self.out.read_text(errors="replace")[-4000:]

    def close(self) -> None:
        if self.runtime is not None and self.runtime.poll() is None:
            self.runtime.kill()  # --kill-child: process 1 goes with it, and with that one everything
            self.runtime.wait()


@pytest.fixture
def container(alone: tuple[Builder, Image], room: Path) -> Iterator[Container]:
    made = Container(*alone, room)
    yield made
    made.close()


def test_the_entrypoint_trains_as_process_one_and_ends_with_0_on_sigterm(container: Container) -> None:
    version = container.once("rl-supervisor", "version")
    assert re.search(r"\d+\.\d+", version), version
    one = container.start()
    wait_for(lambda: container.step(one) >= 2, container.said)
    assert Path(f"/proc/{one}/comm").read_text() == "rl-nanny\n"
    code, told = container.execute(one, *json.loads(container.image.config["HEALTHCHECK"].removeprefix("CMD ")))
    assert (code, told) == (0, "The daemon answers.\n")
    os.kill(one, signal.Signals[container.image.config["STOPSIGNAL"]])
    assert container.ended() == 0
    assert list((container.upper / "srv/store").rglob("manifest.json")), "what was complete is published"


def test_under_docker_run_init_a_killed_daemon_is_started_again_and_the_job_lives_on(container: Container) -> None:
    one = container.start(init=True)
    wait_for(lambda: container.step(one) >= 1, container.said)
    shim = container.execute(one, "pgrep", "rl-shim")
    assert shim[0] == 0
    nanny = container.execute(one, "pgrep", "-x", "rl-nanny")[1].strip()  # the daemon's words are among its own, too
    assert container.execute(one, "pkill", "-KILL", "-P", nanny, "-f", "onstart .*--no-restart")[0] == 0
    code, told = container.execute(one, "rl-supervisor-health")
    assert code == 0, f"no orchestrator may end the container now: {told}"
    before = container.step(one)
    wait_for(lambda: container.step(one) > before, container.said)
    assert container.execute(one, "pgrep", "rl-shim") == shim
    os.kill(one, signal.SIGTERM)
    assert container.ended() == 0


def test_without_a_daemon_and_without_a_job_it_is_not_well(container: Container) -> None:
    done = subprocess.run(container.command("rl-supervisor-health"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "No daemon answers, and no job lives.\n")


def test_a_run_file_that_is_missing_ends_the_container_with_93(container: Container) -> None:
    (container.upper / "etc/rl-supervisor/run.toml").unlink()
    container.start()
    assert container.ended() == 93


# ---------------------------------------------------------------- with a trainer


@pytest.fixture(scope="session")
def with_trainer(debian: Path, dockerfile: Dockerfile, room: Path) -> Iterator[tuple[Builder, GitHub, Image]]:
    """The trainer's stages, with a small project of its form instead of prime-rl, in the tree instead of CUDA's."""
    if not os.environ.get("IMAGE_TRAINER"):
        pytest.skip("the trainer's stages take minutes more: set IMAGE_TRAINER=1")
    cuda = room / "cuda-libraries"
    for name in ("libcudart.so.13.0.48", "libnvrtc.so.13.0.48", "libnvrtc-builtins.so.13.0"):
        (cuda / "usr/local/cuda-13.0/lib").mkdir(parents=True, exist_ok=True)
        (cuda / "usr/local/cuda-13.0/lib" / name).write_bytes(b"")
    (cuda / "usr/local/cuda-13.0/lib/libcudart.so.13").symlink_to("libcudart.so.13.0.48")
    builder = Builder(room / "trainer", dockerfile, ROOT, _bases(dockerfile, debian), room / "cache")
    builder.built["cuda13-base"] = Image((debian, cuda))
    with GitHub(room / "github") as github:
        image = builder.build(
            "trainer-prime-rl",
            CUDA13_BASE="cuda13-base",
            GITHUB=github.url,
            PRIME_RL_REVISION=github.good,
            PRIME_RL_SYNC="",
        )
        yield builder, github, image


def test_the_trainer_is_the_pinned_commit_with_the_environment_of_its_lock(
    with_trainer: tuple[Builder, GitHub, Image],
) -> None:
    builder, github, image = with_trainer

    def run(*words: str) -> str:
        inner = shlex.join(["env", "-i", f"PATH={image.env['PATH']}", "HOME=/root", *words])
        done = subprocess.run(
            builder.machine(image, builder.new("look"), f'exec chroot "$root" {inner}'),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    assert run("/opt/prime-rl/.venv/bin/rl") == "rl of verifiers 0.1.0"
    assert run("git", "-C", "/opt/prime-rl", "rev-parse", "HEAD") == github.good
    assert run("git", "-C", "/opt/prime-rl/deps/verifiers", "describe", "--tags") == "v0.1.0", "versions come from tags"
    left = [name for name, path in files(image) if name.startswith(("/root/.cache/", "/tmp/")) and path.is_file()]
    assert left == []


@pytest.mark.parametrize(
    ("revision", "sentence"),
    [
        ("0" * 40, "gave no commit 0000"),
        ("main", "give a whole commit"),
        ("stale", "uv could not make the environment"),
    ],
)
def test_another_revision_ends_the_build_with_a_sentence(
    with_trainer: tuple[Builder, GitHub, Image], revision: str, sentence: str
) -> None:
    builder, github, _ = with_trainer
    builder.built.pop("trainer-prime-rl", None)
    with pytest.raises(StepFailedError, match=sentence):
        builder.build(
            "trainer-prime-rl",
            CUDA13_BASE="cuda13-base",
            GITHUB=github.url,
            PRIME_RL_REVISION=github.stale if revision == "stale" else revision,
            PRIME_RL_SYNC="",
        )


def test_no_step_of_the_dockerfile_was_left_out(
    alone: tuple[Builder, Image], with_trainer: tuple[Builder, GitHub, Image], dockerfile: Dockerfile
) -> None:
    every = {(stage.name, one.line) for stage in dockerfile.stages for one in stage.instructions}
    assert every - {*alone[0].done, *with_trainer[0].done} == set()
