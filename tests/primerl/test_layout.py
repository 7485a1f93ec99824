"""Steps on the local disk: what counts as whole in each era, what is published, what goes and what is moved aside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.primerl.eras import ERAS, Era
from tests.primerl.helpers import CONFIG, job_of, make_old, write_progress, write_step

FILES = CONFIG + '[weight_broadcast]\ntype = "filesystem"\n'
EACH_ERA = pytest.mark.parametrize("era", ERAS.values(), ids=ERAS.keys())


@pytest.mark.soak
@EACH_ERA
def test_a_whole_step_of_each_era_is_complete_and_only_after_quiet_time(tmp_path: Path, era: Era) -> None:
    job = job_of(tmp_path, era.commit, config=FILES)
    write_step(job, 40)
    assert list(job.steps()) == [40]
    check = job.check_step(40)
    assert (check.state, check.reason) == ("complete", "")
    assert check.size_bytes > 100

    write_step(job, 45, age_s=1.0)
    fresh = job.check_step(45)
    assert fresh.state == "writing"
    assert "20 s of quiet are wanted" in fresh.reason
    assert job.check_step(45, settled=True).state == "complete"


@pytest.mark.soak
@EACH_ERA
def test_a_step_goes_to_the_store_and_comes_back_to_the_same_places(tmp_path: Path, era: Era) -> None:
    job = job_of(tmp_path, era.commit, config=FILES)
    write_step(job, 40)
    files = job.step_files(40)
    names = [file.name for file in files]
    assert len(names) == len(set(names))
    before = {path.relative_to(job.output_dir) for path in job.output_dir.rglob("*") if path.is_file()}
    assert {job.place(40, file.name) for file in files} == before

    other = job_of(tmp_path, era.commit, config=FILES, job={"output_dir": str(tmp_path / "other pod")})
    for file in files:
        target = other.output_dir / other.place(40, file.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.source, target)
    make_old(other.output_dir, 3600)
    assert other.check_step(40, settled=True).state == "complete"


def test_files_of_the_primary_folder_keep_their_names_and_others_say_where_they_lie(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131")
    write_step(job, 40)
    assert sorted(file.name for file in job.step_files(40)) == [
        ".run/run_default/broadcasts/step_40/STABLE",
        ".run/run_default/broadcasts/step_40/model.safetensors",
        ".run/run_default/checkpoints/step_40/orchestrator/buffer/easy_examples.jsonl",
        ".run/run_default/checkpoints/step_40/orchestrator/buffer/hard_examples.jsonl",
        ".run/run_default/checkpoints/step_40/orchestrator/buffer/rollout_buffer.jsonl",
        ".run/run_default/checkpoints/step_40/orchestrator/progress.pt",
        "trainer/.metadata",
        "trainer/__0_0.distcp",
        "trainer/__1_0.distcp",
    ]


def test_the_latest_era_keeps_everything_in_one_folder_below_the_runs_name(tmp_path: Path) -> None:
    job = job_of(tmp_path, "559b44772")
    write_step(job, 40)
    assert sorted(file.name for file in job.step_files(40)) == [
        "orchestrator/progress.pt",
        "trainer/.metadata",
        "trainer/__0_0.distcp",
        "trainer/__1_0.distcp",
    ]
    assert job.place(40, "trainer/.metadata") == Path("demo/checkpoints/step_40/trainer/.metadata")


# ---------------------------------------------------------------- what makes a step incomplete


def _remove(name: str) -> Callable[[Path], None]:
    return lambda root: next(root.rglob(name)).unlink()


def _truncate(name: str) -> Callable[[Path], None]:
    def cut(root: Path) -> None:
        path = next(root.rglob(name))
        look = path.stat()
        path.write_bytes(path.read_bytes()[:-7])
        os.utime(path, ns=(look.st_atime_ns, look.st_mtime_ns))

    return cut


@pytest.mark.parametrize(
    ("commit", "damage", "reason"),
    [
        ("be0e3d131", _remove(".metadata"), "has no .metadata, which is written last"),
        ("be0e3d131", _truncate("__1_0.distcp"), "__1_0.distcp has 41 bytes and .metadata needs 48"),
        ("ceb60c03f", _remove("__0_0.distcp"), "__0_0.distcp"),
        ("be0e3d131", _remove("progress.pt"), "progress.pt"),
        ("38494ccb4", _truncate("progress.pt"), "progress.pt"),
        ("be0e3d131", _remove("rollout_buffer.jsonl"), "rollout_buffer.jsonl"),
        ("be0e3d131", _truncate("easy_examples.jsonl"), "easy_examples.jsonl ends in half a line"),
        ("8518c157c", _remove("state.json"), "state.json"),
        ("be0e3d131", _remove("STABLE"), "has no STABLE"),
        ("c012c45cf", _remove("model.safetensors"), "holds no weights"),
        ("ceb60c03f", lambda root: shutil.rmtree(root / "weights" / "step_38"), "step_38"),
    ],
)
def test_each_missing_or_cut_part_makes_the_step_incomplete(
    tmp_path: Path, commit: str, damage: Callable[[Path], None], reason: str
) -> None:
    job = job_of(tmp_path, commit, config=FILES)
    write_step(job, 40)
    damage(job.output_dir)
    check = job.check_step(40, settled=True)
    assert check.state == "incomplete"
    assert reason in check.reason


def test_a_save_under_way_is_writing_and_not_a_defect(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131")
    primary = write_step(job, 40)
    (primary / "trainer" / ".metadata.tmp").touch()
    assert job.check_step(40).state == "writing"
    assert job.check_step(40, settled=True).state == "incomplete"


def test_an_orchestrators_final_checkpoint_without_a_trainers_part_is_never_good(tmp_path: Path) -> None:
    # prime-rl f6563ff0e writes one on any exception, at whatever step it was.
    job = job_of(tmp_path, "559b44772")
    write_step(job, 40)
    write_progress(job.output_dir / "demo" / "checkpoints" / "step_43" / "orchestrator")
    make_old(job.output_dir, 3600)
    assert list(job.steps()) == [40, 43]
    check = job.check_step(43, settled=True)
    assert check.state == "incomplete"
    assert "trainer" in check.reason


def test_with_nccl_no_weights_are_wanted_on_disk(tmp_path: Path) -> None:
    job = job_of(tmp_path, "38494ccb4", config=CONFIG + '[weight_broadcast]\ntype = "nccl"\n')
    write_step(job, 40)
    shutil.rmtree(job.output_dir / "run_default" / "broadcasts")
    assert job.check_step(40, settled=True).state == "complete"
    assert not any("broadcasts" in file.name for file in job.step_files(40))


@pytest.mark.parametrize("place", ["checkpoints/step_40/trainer/__0_0.distcp", "checkpoints/step_40", "checkpoints"])
def test_a_symlink_anywhere_in_a_step_is_refused_not_followed(tmp_path: Path, place: str) -> None:
    job = job_of(tmp_path, "be0e3d131")
    write_step(job, 40)
    outside = tmp_path / "outside"
    (job.output_dir / place).rename(outside)
    (job.output_dir / place).symlink_to(outside)
    assert list(job.steps()) == [40]
    check = job.check_step(40, settled=True)
    assert check.state == "incomplete"
    assert "symlinks are never followed" in check.reason
    assert not any(file.source.is_symlink() for file in job.step_files(40))


def test_the_output_folder_itself_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "volume")
    job = job_of(tmp_path, "be0e3d131")
    write_step(job, 40)
    assert job.check_step(40, settled=True).state == "complete"


def test_sft_has_one_part_only(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131", kind="sft", config="max_steps = 9\n")
    write_step(job, 5)
    assert job.check_step(5).state == "complete"
    assert all(not file.name.startswith(".run/") for file in job.step_files(5))


# ---------------------------------------------------------------- names from the store


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/cron.d/x",
        "/etc/passwd",
        "trainer/../../../x",
        "",
        "a\0b",
        "a\\..\\b",
        "./x",
        "a//b",
        ".run/../x",
        ".run/configs/rl.toml",
        ".run/run_default/checkpoints/step_41/orchestrator/progress.pt",
        ".run/run_default/checkpoints/step_40",
        ".run/run_default/rollouts/step_40/rank_0.bin",
        ".run/",
        ".run",
    ],
)
def test_no_name_from_the_store_leaves_the_step(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        job_of(tmp_path, "be0e3d131").place(40, name)


def test_a_step_of_another_versions_layout_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="published by another version"):
        job_of(tmp_path, "559b44772").place(40, ".run/run_default/checkpoints/step_40/orchestrator/progress.pt")


# ---------------------------------------------------------------- pruning and moving aside


def _folders(job_output: Path, *names: str) -> list[Path]:
    paths = [job_output / name for name in names]
    for path in paths:
        path.mkdir(parents=True)
        (path / "file").touch()
    return paths


def test_pruning_a_step_takes_every_tree_of_it_and_no_other(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131")
    gone = _folders(
        job.output_dir,
        "checkpoints/step_5",
        "run_default/checkpoints/step_5",
        "weights/step_5",
        "run_default/broadcasts/step_5",
        "rollouts/step_5",
        "run_default/rollouts/step_5",
    )
    _folders(job.output_dir, "checkpoints/step_50", "checkpoints/step_10", "weights/step_10", "logs/step_5")
    assert sorted(job.step_trees(5)) == sorted(gone)
    assert job.step_trees(7) == []


def test_stale_rollouts_and_broadcasts_go_but_not_what_a_kept_step_needs(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131")
    _folders(job.output_dir, *(f"run_default/broadcasts/step_{n}" for n in (8, 9, 10, 11, 20)))
    _folders(job.output_dir, *(f"run_default/rollouts/step_{n}" for n in (8, 10, 20)))
    stale = job.stale_trees(kept=[10, 20], below=20)
    assert sorted(tree.relative_to(job.output_dir / "run_default").as_posix() for tree in stale) == [
        "broadcasts/step_11",
        "broadcasts/step_8",
        "broadcasts/step_9",
        "rollouts/step_10",
        "rollouts/step_8",
    ]


def test_the_oldest_era_keeps_the_weights_that_a_resume_computes_with(tmp_path: Path) -> None:
    job = job_of(tmp_path, "ceb60c03f")
    _folders(job.output_dir, *(f"weights/step_{n}" for n in (7, 8, 9, 10, 11)))
    stale = job.stale_trees(kept=[10], below=20)
    assert sorted(tree.name for tree in stale) == ["step_11", "step_7"]


@pytest.mark.parametrize(("commit", "rollouts"), [("be0e3d131", ["step_40", "step_41"]), ("c012c45cf", ["step_41"])])
def test_every_later_folder_is_moved_aside_before_a_start(tmp_path: Path, commit: str, rollouts: list[str]) -> None:
    # Steps that count from 0 begin with the checkpoint's own number, so rollouts of that number are stale there.
    job = job_of(tmp_path, commit)
    _folders(job.output_dir, *(f"checkpoints/step_{n}" for n in (39, 40, 41, 100)))
    _folders(job.output_dir, "run_default/checkpoints/step_43", "run_default/broadcasts/step_40", "weights/step_44")
    _folders(job.output_dir, *(f"run_default/rollouts/step_{n}" for n in (39, 40, 41)))
    moved = [tree.relative_to(job.output_dir).as_posix() for tree in job.above_trees(40)]
    assert sorted(moved) == sorted(
        [
            "checkpoints/step_41",
            "checkpoints/step_100",
            "run_default/checkpoints/step_43",
            "weights/step_44",
            *(f"run_default/rollouts/{name}" for name in rollouts),
        ]
    )


def test_a_fresh_start_moves_all_steps_aside(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131")
    _folders(job.output_dir, "checkpoints/step_0", "run_default/checkpoints/step_5", "run_default/rollouts/step_0")
    assert len(job.above_trees(None)) == 3


def test_a_fresh_start_of_the_run_folder_era_moves_the_whole_run_folder(tmp_path: Path) -> None:
    # The launcher refuses a run folder with logs of a failed start in it (prime-rl e26b50503, validate_run_dir).
    job = job_of(tmp_path, "559b44772")
    assert job.above_trees(None) == []
    _folders(job.output_dir, "demo/configs")
    assert job.above_trees(None) == []
    _folders(job.output_dir, "demo/logs/attempt_1", "other-run/checkpoints/step_5")
    assert job.above_trees(None) == [job.output_dir / "demo"]


def test_what_was_asked_for_besides_is_published_and_has_its_place(tmp_path: Path) -> None:
    plain = job_of(tmp_path, "559b44772")
    job = job_of(tmp_path, "559b44772", store={"also": ["weights", "broadcasts", "traces"]})
    write_step(job, 40)
    run = job.output_dir / "demo"
    for name in ("weights/step_40/model.safetensors", "broadcasts/step_40/STABLE", "rollouts/step_40/train/all.jsonl"):
        for number in ("step_40", "step_41"):
            path = run / name.replace("step_40", number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
    (run / "rollouts/step_40/link").symlink_to(tmp_path)
    make_old(job.output_dir, 3600)
    (run / "rollouts/step_40/still-written.jsonl").write_text("{")
    besides = {file.name for file in job.step_files(40)} - {file.name for file in plain.step_files(40)}
    assert besides == {
        ".run/broadcasts/step_40/STABLE",
        ".run/rollouts/step_40/train/all.jsonl",
        ".run/weights/step_40/model.safetensors",
    }
    assert {job.place(40, name) for name in besides} == {Path("demo") / name.removeprefix(".run/") for name in besides}
