"""Machines of your own: real processes, behind a stand-in for ``ssh`` and behind a real sshd where there is one."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.fleet.places.base import Order, PlaceError, Want, label_of
from supervisor.fleet.places.ssh import FOLDER, MARK, Ssh

LABEL = label_of("swe", 3, "0a1b2c")
WANT = Want("", 1, spot=False, disk_gb=1, most_per_hour=0.0)
SSHD = Path("/usr/sbin/sshd")
BOOT = """echo "booted $1 with $TOKEN"
trap 'echo told to end; exit 0' TERM
while :; do sleep 0.1; done
"""


def until(is_so: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home of the host; what was started there is ended."""
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    for one in folder.glob(f"{FOLDER}/*/pid"):
        pid = int(one.read_text())
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if f"{MARK}={one.parent.name}".encode() in environ.split(b"\0"):
            os.kill(pid, 9)


@pytest.fixture
def stand_in(tmp_path: Path, home: Path) -> Ssh:
    """``ssh`` that is the host's shell; it fails as ssh does where ``down`` is."""
    script = tmp_path / "ssh"
    script.write_text(
        f"""#!/bin/bash
[ -e {tmp_path}/down ] && {{ echo "ssh: connect to host box port 22: Connection refused" >&2; exit 255; }}
export HOME={home}
exec ${{@: -1}}
"""
    )
    script.chmod(0o755)
    return Ssh("box", (str(script),))


@pytest.fixture
def loopback(tmp_path: Path, home: Path) -> Iterator[Ssh]:
    """A real sshd on loopback, for this user alone."""
    if not SSHD.exists():
        pytest.skip("no sshd here: apt-get install openssh-server")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    (tmp_path / "known").write_text((tmp_path / "user.pub").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/known\n"
        f"PidFile {tmp_path}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        f"SetEnv HOME={home}\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # which the package's service makes where there is systemd
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", tmp_path / "config"], stderr=subprocess.DEVNULL)
    options = ("-p", str(port), "-i", str(tmp_path / "user"), "-l", getpass.getuser())
    quiet = ("-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={tmp_path}/hosts", "-o", "LogLevel=ERROR")
    place = Ssh("127.0.0.1", ("ssh", "-F", "none", *options, *quiet))
    try:
        until(lambda: _answers(place))
        yield place
    finally:
        for one in place.list_instances():
            until(lambda one=one: not _still_there(place, one.label))  # type: ignore[misc]
        server.terminate()
        server.wait(10)


def _answers(place: Ssh) -> bool:
    try:
        place.list_instances()
    except PlaceError:
        return False
    return True


def _still_there(place: Ssh, label: str) -> bool:
    found = [one for one in place.list_instances() if one.label == label]
    if found:
        place.destroy(found[0])
    return bool(found)


def order(onstart: str = BOOT) -> Order:
    return Order(LABEL, "", 1, onstart, {"TOKEN": 'it\'s $HOME; `x` "y"\nand a second line'})


@pytest.mark.soak
@pytest.mark.parametrize("way", ["stand_in", "loopback"])
def test_a_pod_is_started_listed_asked_to_end_and_forgotten(
    way: str, home: Path, request: pytest.FixtureRequest
) -> None:
    place: Ssh = request.getfixturevalue(way)
    [offer] = place.find_offers(WANT)
    assert place.create(offer, order()) == LABEL
    assert (home / FOLDER / LABEL / "pid").exists(), "and not in the home of the person who runs the tests"
    [pod] = place.list_instances()
    assert (pod.label, pod.phase, pod.machine) == (LABEL, "running", offer.id)
    assert place.find_offers(WANT) == []  # one pod at a time
    until(lambda: "booted" in place.read_log(pod))
    assert place.read_log(pod).startswith('booted --foreground with it\'s $HOME; `x` "y"\nand a second line')
    place.destroy(pod)
    until(lambda: place.list_instances()[0].phase == "stopped")
    assert "told to end" in place.read_log(pod)
    place.destroy(pod)
    assert place.list_instances() == []


def test_a_create_that_is_repeated_starts_no_second_process(stand_in: Ssh, home: Path) -> None:
    [offer] = stand_in.find_offers(WANT)
    stand_in.create(offer, order())
    first = (home / FOLDER / LABEL / "pid").read_text()
    stand_in.create(offer, order())
    assert (home / FOLDER / LABEL / "pid").read_text() == first


def test_a_pid_that_another_process_has_now_is_not_ours(stand_in: Ssh, home: Path) -> None:
    folder = home / FOLDER / LABEL
    folder.mkdir(parents=True)
    (folder / "pid").write_text(str(os.getpid()))
    [pod] = stand_in.list_instances()
    assert pod.phase == "stopped"
    stand_in.destroy(pod)  # and does not end this test
    assert not folder.exists()


def test_secrets_are_readable_by_their_owner_alone(stand_in: Ssh, home: Path) -> None:
    stand_in.create(stand_in.find_offers(WANT)[0], order())
    assert (home / FOLDER / LABEL / "env").stat().st_mode & 0o077 == 0


def test_a_host_that_is_away_is_told_so_and_a_create_is_unsure(stand_in: Ssh, tmp_path: Path) -> None:
    [offer] = stand_in.find_offers(WANT)
    (tmp_path / "down").touch()
    with pytest.raises(PlaceError, match="box cannot be reached over ssh: ssh: connect to host") as away:
        stand_in.list_instances()
    assert away.value.kind == "away"
    with pytest.raises(PlaceError) as unsure:
        stand_in.create(offer, order())
    assert unsure.value.kind == "unsure"


def test_folders_that_are_none_of_ours_are_passed_over(stand_in: Ssh, home: Path) -> None:
    (home / FOLDER / "notes").mkdir(parents=True)
    assert stand_in.list_instances() == []
