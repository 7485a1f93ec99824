"""A provider's SIGTERM goes to process 1: who hears it, as real process trees in a pid namespace of their own.

The provider's script is like RunPod's: it starts what it has to start, and sleeps. The daemon is a stand-in under the
real nanny; `tests/process/test_process_one.py` has the real one.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "units" / "onstart.sh"
CONTAINER = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child=KILL"]

DAEMON = f"""#!/bin/bash
[ "${{@: -1}}" = --restart ] && exec {sys.executable} -I -S {ROOT}/supervisor/process/nanny.py -- "$0" "${{@:1:$#-1}}"
echo $$ >>"$BOX/daemons"
trap 'echo the daemon has left >>"$BOX/order"; exit 0' TERM
[ -e "$BOX/code" ] && exit "$(cat "$BOX/code")"
while :; do sleep 0.05; done
"""
PROVIDER = """#!/bin/bash
echo "$$ key=${B2_APPLICATION_KEY:-none}" >>"$BOX/provider"
awk '/^SigIgn/ { print $2 }' /proc/$$/status >"$BOX/ignored"
[ -e "$BOX/background" ] && bash "$ONSTART" demo
trap 'echo the provider has left >>"$BOX/order"; exit 0' TERM
[ -e "$BOX/deaf" ] && trap - TERM
while :; do sleep 0.05; done
"""


def wait_for(what: Callable[[], object], sentence: str) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline, sentence
        time.sleep(0.02)


class Container:
    """One container, and what its processes wrote down."""

    def __init__(self, box: Path) -> None:
        self.box = box
        self.runtime: subprocess.Popen[bytes] | None = None
        for name in ("etc", "bin", "locks"):
            (box / name).mkdir()
        (box / "etc" / "demo.toml").write_text("[run]\n")
        (box / "etc" / "demo.env").write_text("B2_APPLICATION_KEY=the-run-s\n")
        for path, text in ((box / "bin" / "rl-supervisor", DAEMON), (box / "start.sh", PROVIDER)):
            path.write_text(text)
            path.chmod(0o755)

    def start(self, *command: str) -> int:
        """Start it; returns the number that its process 1 has out here."""
        names = ("ETC", "etc"), ("LOCKS", "locks"), ("LOG", "log"), ("VENV", "venv")
        env = {"PATH": f"{self.box / 'bin'}:{os.environ['PATH']}", "BOX": str(self.box), "ONSTART": str(SCRIPT)}
        env["RL_SUPERVISOR_BACKOFF"] = "0.1"
        env |= {f"RL_SUPERVISOR_{name}": str(self.box / folder) for name, folder in names}
        with (self.box / "said").open("ab") as said:
            # As a runtime starts it: whoever runs the tests in the background ignores Ctrl-C, and children do.
            fresh = ["env", "--default-signal", *CONTAINER, *command]
            self.runtime = subprocess.Popen(fresh, stdout=said, stderr=said, env=env)
        children = Path(f"/proc/{self.runtime.pid}/task/{self.runtime.pid}/children")
        wait_for(children.read_text, "process 1")
        return int(children.read_text())

    def read(self, name: str) -> str:
        path = self.box / name
        return path.read_text() if path.exists() else ""

    def ended(self) -> int:
        assert self.runtime is not None
        return self.runtime.wait(30)

    def close(self) -> None:
        if self.runtime is not None and self.runtime.poll() is None:
            self.runtime.kill()
            self.runtime.wait()


@pytest.fixture(autouse=True)
def may_have_a_process_one() -> None:
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode or not shutil.which("flock"):
        pytest.skip("needs flock, and unshare with a pid namespace to have a process 1 (root in a container that may)")


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    made = Container(tmp_path)
    yield made
    made.close()


def test_behind_a_providers_script_nobody_tells_the_daemon(container: Container) -> None:
    """Why the next test's way exists: this is `docker stop` of a pod whose start script called onstart.sh."""
    (container.box / "background").touch()
    one = container.start(str(container.box / "start.sh"))
    wait_for(lambda: container.read("daemons"), "the daemon runs")
    os.kill(one, signal.SIGTERM)
    container.ended()
    assert container.read("order") == "the provider has left\n"


def test_beside_the_providers_script_the_daemon_leaves_first_and_the_script_after_it(container: Container) -> None:
    one = container.start("bash", str(SCRIPT), "demo", "--", str(container.box / "start.sh"))
    wait_for(lambda: container.read("daemons") and container.read("provider"), "both run")
    assert container.read("provider").endswith("key=none\n"), "the run's keys are not the provider's"
    assert not int(container.read("ignored"), 16) & 1 << (signal.SIGINT - 1), "Ctrl-C works for whoever logs in"
    os.kill(one, signal.SIGTERM)
    assert container.ended() == 0
    assert container.read("order").splitlines()[0] == "the daemon has left"


def test_a_trap_in_a_script_of_ones_own_does_as_well(container: Container) -> None:
    """The line that docs/containers.md gives, with this container's folder of locks."""
    page = (ROOT / "docs" / "containers.md").read_text()
    trap = "trap 'kill -TERM $(cat /run/rl-supervisor/onstart-NAME.pid)' TERM"
    assert f"`{trap}`" in page
    trap = trap.replace("/run/rl-supervisor/onstart-NAME.pid", f"{container.box}/locks/onstart-demo.pid")
    own = container.box / "own.sh"
    own.write_text(
        f"#!/bin/bash\nbash {SCRIPT} demo\n{trap}\nsleep 1000 & wait\nwhile [ ! -s $BOX/order ]; do :; done\n"
    )
    one = container.start("bash", str(own))
    wait_for(lambda: container.read("daemons"), "the daemon runs")
    os.kill(one, signal.SIGTERM)
    container.ended()
    assert container.read("order") == "the daemon has left\n"


def test_a_script_that_is_deaf_to_sigterm_keeps_nothing_from_the_daemon(container: Container) -> None:
    (container.box / "deaf").touch()
    one = container.start("bash", str(SCRIPT), "--", str(container.box / "start.sh"))  # the only run file there is
    wait_for(lambda: container.read("daemons") and container.read("provider"), "both run")
    os.kill(one, signal.SIGTERM)
    assert container.ended() == 0
    assert container.read("order") == "the daemon has left\n"


def test_a_run_that_needs_a_person_leaves_the_door_open(container: Container) -> None:
    """RunPod starts a container that ends again and again: nobody could log in and look."""
    (container.box / "code").write_text("93")
    one = container.start("bash", str(SCRIPT), "demo", "--", str(container.box / "start.sh"))
    wait_for(lambda: "has ended with 93" in container.read("said"), "the run has ended")
    assert container.runtime is not None
    assert container.runtime.poll() is None
    assert len(container.read("provider").splitlines()) == 1
    os.kill(one, signal.SIGTERM)
    assert container.ended() == 93


def test_without_a_run_file_the_door_is_open_as_well(container: Container) -> None:
    (container.box / "etc" / "demo.toml").unlink()
    one = container.start("bash", str(SCRIPT), "--", str(container.box / "start.sh"))
    wait_for(lambda: "which run?" in container.read("said") and container.read("provider"), "it says what is missing")
    os.kill(one, signal.SIGTERM)
    assert container.ended() == 93


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_sigterm_is_heard_whenever_it_comes(tmp_path: Path) -> None:
    """From the first moment that process 1 can hear it until the provider's script alone is left."""
    dice = random.Random(1)
    for at in range(100):
        (tmp_path / str(at)).mkdir()
        container = Container(tmp_path / str(at))
        if at % 2:  # a run that ends by itself, just then
            (container.box / "etc" / "demo.toml").unlink()
        one = container.start("bash", str(SCRIPT), "--", str(container.box / "start.sh"))
        said, words = ("said", "which run?") if at % 2 else ("provider", "key=")
        wait_for(lambda box=container, said=said, words=words: words in box.read(said), "it has begun")
        time.sleep(dice.random() * dice.choice((0.003, 0.01, 0.03, 0.3)))
        os.kill(one, signal.SIGTERM)
        try:
            code = container.ended()  # before there is a daemon, SIGTERM ends what would have become it
            assert code in ((93,) if at % 2 else (0, 143)), f"try {at}: {container.read('said')}"
        finally:
            container.close()
        assert "trap:" not in container.read("said")
        shutil.rmtree(container.box)


def test_a_killed_daemon_is_started_again_beside_the_script(container: Container) -> None:
    one = container.start("bash", str(SCRIPT), "demo", "--", str(container.box / "start.sh"))
    wait_for(lambda: container.read("daemons"), "the daemon runs")
    inside = int(container.read("daemons"))
    subprocess.run(["nsenter", "-t", str(one), "-p", "-m", "kill", "-KILL", str(inside)], check=True)
    wait_for(lambda: len(container.read("daemons").split()) == 2, "a second one")
    os.kill(one, signal.SIGTERM)
    assert container.ended() == 0


def test_a_command_is_asked_for() -> None:
    told = subprocess.run(["bash", str(SCRIPT), "demo", "--"], capture_output=True, text=True, check=False)
    assert told.returncode == 93
    assert "which command is to run beside the daemon?" in told.stderr
