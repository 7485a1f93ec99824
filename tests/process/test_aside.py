"""Moving aside and deleting: nothing outside the run's folder, no symlink followed, no half-done step to be seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.errors import ConfigError, SupervisorError
from supervisor.effects.move_aside import delete_set_aside, delete_trees, finish_deletions, move_aside


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output folder with steps 10 and 20 in both trees."""
    root = tmp_path / "outputs"
    for step in (10, 20):
        for tree in ("checkpoints", "run_default/checkpoints"):
            folder = root / tree / f"step_{step}"
            folder.mkdir(parents=True)
            (folder / "part").write_bytes(b"x" * 10_000)
    return root


def trees(output: Path, step: int) -> list[Path]:
    return [output / "checkpoints" / f"step_{step}", output / "run_default" / "checkpoints" / f"step_{step}"]


def names(output: Path) -> list[str]:
    return sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file() or path.is_symlink())


def test_a_folder_that_becomes_a_link_while_it_is_deleted_leads_nowhere(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's processes run code that models wrote, and may swap a folder between the look at it and the next."""
    victim = tmp_path / "home"
    victim.mkdir()
    (victim / "thesis").write_text("years of work")
    inner = output / "checkpoints/step_20/inner"
    inner.mkdir()
    look = os.stat

    def swapped(path: object, *rest: Any, **more: Any) -> os.stat_result:
        found = look(path, *rest, **more)  # type: ignore[arg-type]
        if path == "inner":
            os.rmdir("inner", dir_fd=more["dir_fd"])
            os.symlink(victim, "inner", dir_fd=more["dir_fd"])
        return found

    monkeypatch.setattr(os, "stat", swapped)
    with pytest.raises(SupervisorError, match="could not delete"):
        delete_trees(trees(output, 20), output)
    assert (victim / "thesis").read_text() == "years of work"


# ---------------------------------------------------------------- aside


def test_higher_steps_are_moved_aside_whole_and_nothing_else(output: Path) -> None:
    moved = move_aside(trees(output, 20), output, "incident-1")
    assert moved == [
        output / ".set-aside/incident-1/checkpoints/step_20",
        output / ".set-aside/incident-1/run_default/checkpoints/step_20",
    ]
    assert names(output) == [
        ".set-aside/incident-1/checkpoints/step_20/part",
        ".set-aside/incident-1/run_default/checkpoints/step_20/part",
        "checkpoints/step_10/part",
        "run_default/checkpoints/step_10/part",
    ]


def test_moving_again_does_nothing_and_a_step_written_anew_is_not_merged(output: Path) -> None:
    move_aside(trees(output, 20), output, "incident-1")
    assert move_aside(trees(output, 20), output, "incident-1") == []
    again = output / "checkpoints/step_20"
    again.mkdir()
    (again / "other").touch()
    assert move_aside(trees(output, 20), output, "incident-1") == [
        output / ".set-aside/incident-1-2/checkpoints/step_20"
    ]
    assert (output / ".set-aside/incident-1/checkpoints/step_20/part").exists()
    assert not (output / ".set-aside/incident-1/checkpoints/step_20/other").exists()


def test_nothing_outside_the_output_folder_is_touched(output: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "home" / "step_30"
    foreign.mkdir(parents=True)
    (output / "elsewhere").symlink_to(tmp_path / "home")
    good = output / "checkpoints/step_20"
    for bad in (
        foreign,
        output / ".." / "home" / "step_30",
        output / "elsewhere" / "step_30",
        output,
        output / ".set-aside" / "x",
        Path("/"),
    ):
        for act in (lambda trees: move_aside(trees, output, "x"), lambda trees: delete_trees(trees, output)):
            with pytest.raises(ConfigError, match=r"outside the run's output folder|set aside already"):
                act([good, bad])
    assert good.exists() and foreign.exists()


def test_a_symlink_is_moved_or_deleted_itself(output: Path, tmp_path: Path) -> None:
    target = tmp_path / "volume"
    target.mkdir()
    (target / "kept").write_text("precious")
    for step in (30, 40):
        (output / "checkpoints" / f"step_{step}").symlink_to(target)
    (moved,) = move_aside([output / "checkpoints/step_30"], output, "x")
    assert moved.is_symlink()
    delete_trees([output / "checkpoints/step_40"], output)
    assert not os.path.lexists(output / "checkpoints/step_40")
    assert (target / "kept").read_text() == "precious"


def test_the_output_folder_itself_may_be_reached_through_a_symlink(output: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(output)
    (moved,) = move_aside([link / "checkpoints/step_20"], link, "x")
    assert (moved / "part").exists()
    assert delete_trees([link / "checkpoints/step_10"], link) >= 10_000


def test_a_volume_mounted_below_the_output_folder_keeps_its_own_aside(output: Path) -> None:
    volume = output / "volume" / "checkpoints"
    volume.mkdir(parents=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(volume)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("needs a mount of its own")
    try:
        (volume / "step_5").mkdir()
        assert move_aside([volume / "step_5"], output, "x") == [volume / ".set-aside/x/volume/checkpoints/step_5"]
    finally:
        subprocess.run(["umount", str(volume)], check=True)


@pytest.mark.parametrize("label", ["", "a/b", "..", ".hidden"])
def test_a_label_that_is_no_plain_name_is_refused(output: Path, label: str) -> None:
    with pytest.raises(ValueError, match="cannot name a folder"):
        move_aside(trees(output, 20), output, label)


# ---------------------------------------------------------------- deleting


def test_deleting_frees_the_bytes_that_it_says(output: Path) -> None:
    folder = output / "checkpoints/step_20"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "shard").write_bytes(os.urandom(1 << 20))
    os.link(output / "checkpoints/step_10/part", folder / "linked")
    freed = delete_trees(trees(output, 20), output)
    assert 1 << 20 <= freed < (1 << 20) + 100_000
    assert names(output) == ["checkpoints/step_10/part", "run_default/checkpoints/step_10/part"]
    assert delete_trees(trees(output, 20), output) == 0


def test_a_symlink_inside_a_step_is_unlinked_and_not_followed(output: Path, tmp_path: Path) -> None:
    target = tmp_path / "volume"
    target.mkdir()
    (target / "kept").write_text("precious")
    (output / "checkpoints/step_20/link").symlink_to(target)
    (output / "checkpoints/step_20/file link").symlink_to(target / "kept")
    delete_trees(trees(output, 20), output)
    assert (target / "kept").read_text() == "precious"


def test_a_deletion_killed_in_the_middle_leaves_no_step_and_is_finished_later(output: Path) -> None:
    """The real program, killed after its second removed file."""
    for number in range(50):
        (output / "checkpoints/step_20" / f"shard_{number}").write_bytes(b"x" * 100)
    source = (
        "import os, sys; from pathlib import Path; from supervisor.effects.move_aside import delete_trees\n"
        "real, count = os.unlink, [0]\n"
        "def dying(*a, **k):\n"
        "    real(*a, **k); count[0] += 1\n"
        "    if count[0] == 2: os.kill(os.getpid(), 9)\n"
        "os.unlink = dying\n"
        f"delete_trees([Path({str(output / 'checkpoints/step_20')!r})], Path({str(output)!r}))"
    )
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == -9
    assert not (output / "checkpoints/step_20").exists()
    (left,) = (output / "checkpoints").glob(".deleting-*")
    assert len(list(left.iterdir())) == 49
    assert finish_deletions(output) > 0
    assert names(output) == [
        "checkpoints/step_10/part",
        "run_default/checkpoints/step_10/part",
        "run_default/checkpoints/step_20/part",
    ]
    assert finish_deletions(output) == 0
    assert finish_deletions(output / "missing") == 0


def test_what_was_set_aside_is_never_deleted(output: Path) -> None:
    (moved,) = move_aside([output / "checkpoints/step_20"], output, "x")
    (moved / ".deleting-inner").mkdir()
    finish_deletions(output)
    assert (moved / ".deleting-inner").exists()
    with pytest.raises(ConfigError, match="only a person removes it"):
        delete_trees([moved], output)


def test_what_cannot_be_deleted_is_named_and_the_rest_goes(output: Path) -> None:
    stuck = output / "checkpoints/step_20/stuck"
    stuck.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(stuck)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("needs a mount of its own")
    try:
        # A mounted folder cannot be removed, but the folder above it can be renamed.
        with pytest.raises(SupervisorError, match=r"could not delete .*/\.deleting-step_20/stuck \(.*busy\)"):
            delete_trees(trees(output, 20), output)
        assert not (output / "checkpoints/step_20").exists()
        assert not (output / "run_default/checkpoints/step_20").exists()
        finish_deletions(output)  # a daemon that starts goes on without it
    finally:
        subprocess.run(["umount", str(output / "checkpoints/.deleting-step_20/stuck")], check=True)
    finish_deletions(output)
    assert not list((output / "checkpoints").glob(".deleting-*"))


def test_what_was_set_aside_goes_when_room_is_needed_and_whole_steps_stay(tmp_path: Path) -> None:
    torn, whole = tmp_path / "checkpoints" / "step_4", tmp_path / "checkpoints" / "step_6"
    for folder in (torn, whole):
        folder.mkdir(parents=True)
        (folder / "shard").write_bytes(b"x" * 1000)
    move_aside([torn], tmp_path, "attempt-0002")
    move_aside([whole], tmp_path, "attempt-0002-whole")
    assert delete_set_aside(tmp_path, "-whole") >= 1000
    assert not (tmp_path / ".set-aside" / "attempt-0002").exists()
    assert (tmp_path / ".set-aside" / "attempt-0002-whole" / "checkpoints" / "step_6" / "shard").exists()
