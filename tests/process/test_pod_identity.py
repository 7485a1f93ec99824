"""Which pod this is: what a copy of its disk elsewhere does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.checkpoints.writers import UNKNOWN, same_pod, writer_name
from supervisor.process.pod_identity import FIRST_PIDS, place_of_pod

STATE = Path("/var/lib/rl-supervisor/bs4")
UUID = "4c4c4544-0051-3510-8058-b7c04f305031"


def machine(
    folder: Path,
    *,
    uuid: str = UUID,
    boot: str = "boot-1",
    pids: str = FIRST_PIDS,
    first: str = "",
    mark: str = "",
) -> Path:
    """The files of a machine or container that tell who it is."""
    for name, text in (
        ("sys/class/dmi/id/product_uuid", uuid + "\n"),
        ("proc/sys/kernel/random/boot_id", boot + "\n"),
        ("proc/1/environ", first),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    link = folder / "proc/self/ns/pid"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(pids)
    if mark:
        (folder / mark).touch()
    return folder


def same(one: str, other: str) -> bool:
    return same_pod(*(writer_name("vm", "ab" * 8, f"000{number}", it) for number, it in enumerate((one, other))))


def at(root: Path, state: Path = STATE, **environ: str) -> str:
    return place_of_pod(environ, state, root)


def test_a_machine_that_was_started_anew_is_the_same_by_its_firmware(tmp_path: Path) -> None:
    before = at(machine(tmp_path / "vm"))
    assert same(before, at(machine(tmp_path / "vm", boot="boot-2")))


def test_its_copy_on_another_machine_is_not(tmp_path: Path) -> None:
    before = at(machine(tmp_path / "one"))
    assert not same(before, at(machine(tmp_path / "two", uuid=UUID.replace("4c", "5d"), boot="boot-2")))


def test_a_copy_in_another_folder_of_the_same_machine_is_not(tmp_path: Path) -> None:
    root = machine(tmp_path / "vm")
    assert not same(at(root), at(root, STATE.with_name("copy")))


@pytest.mark.parametrize("uuid", ["", "Not Settable", "0" * 8 + "-0000-0000-0000-" + "0" * 12, UUID[:-1], "f" * 36])
def test_firmware_that_says_nothing_proves_nothing(tmp_path: Path, uuid: str) -> None:
    assert at(machine(tmp_path / "vm", uuid=uuid)).startswith(UNKNOWN)


def test_boards_whose_maker_wrote_no_number_are_not_one_machine(tmp_path: Path) -> None:
    assert at(machine(tmp_path / "vm", uuid="03000200-0400-0500-0006-000700080009")).startswith(UNKNOWN)


@pytest.mark.parametrize(
    "container",
    [
        {"pids": "pid:[4026532999]"},
        {"mark": ".dockerenv"},
        {"first": "container=podman\0"},
        {"first": "KUBERNETES_SERVICE_HOST=10.0.0.1\0"},
    ],
)
def test_two_containers_on_one_host_do_not_share_its_firmware(tmp_path: Path, container: dict[str, str]) -> None:
    one = at(machine(tmp_path / "one", **container))
    assert one.startswith(UNKNOWN)
    assert same(one, at(machine(tmp_path / "one", **container))), "the daemon alone was started anew"
    # Both on one network volume, with the same path, and the same boot of the host.
    assert not same(one, at(machine(tmp_path / "two", **{**container, "pids": "pid:[4026533111]"})))


@pytest.mark.parametrize("name", ["VAST_CONTAINERLABEL", "RUNPOD_POD_ID"])
def test_a_container_that_is_made_anew_on_its_volume_is_the_same_by_the_providers_name(
    tmp_path: Path, name: str
) -> None:
    one = at(machine(tmp_path / "one", pids="pid:[7]"), **{name: "C.1234"})
    anew = machine(tmp_path / "two", pids="pid:[8]", boot="boot-2", first=f"PATH=/bin\0{name}=C.1234\0")
    assert same(one, at(anew)), "over ssh: only process 1 has the variable"
    assert not same(one, at(anew, **{name: "C.5678"})), "another pod with the same network volume"


def test_nothing_is_known_where_all_is_hidden(tmp_path: Path) -> None:
    assert at(tmp_path) == UNKNOWN * 2
    assert not same(at(tmp_path), at(tmp_path))


def test_this_very_machine_is_itself(tmp_path: Path) -> None:
    assert place_of_pod({}, tmp_path) == place_of_pod({}, tmp_path)
    assert len(place_of_pod({}, tmp_path)) == 32
