"""Checkpoints that the installed prime-rl could not resume from, or would train another thing from."""

from __future__ import annotations

import io
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints.manifest import Latest, Manifest, ManifestFile, sha256
from supervisor.config.run_file import parse_toml
from supervisor.config.settings import RunFile
from supervisor.config.toml_positions import key_positions
from supervisor.preflight import resume
from supervisor.preflight.finding import Finding
from supervisor.preflight.resume import Before
from supervisor.preflight.subject import ConfigText, Subject
from supervisor.primerl.configs import Settings
from supervisor.primerl.probe import find_roots, probe
from supervisor.process.attempts import digest, read_snapshot, take_snapshot
from tests.preflight.subjects import ids
from tests.primerl.eras import ERAS, write_checkout

SHA = "a" * 40
CONFIG = """\
[model]
name = "Qwen/Qwen3-8B"

[trainer.optim]
lr = 1e-5

[trainer.model.lora]
rank = 8
alpha = 32
target_modules = ["q_proj", "k_proj"]

[orchestrator]
batch_size = 128

[[orchestrator.env]]
id = "owner/soup"
"""


class Run:
    """A run with a checkpoint of step 10, made by attempt 1 with ``CONFIG``."""

    def __init__(self, folder: Path, era: str = "38494ccb4") -> None:
        self.folder = folder
        write_checkout(folder, ERAS[era])
        self.roots = find_roots(folder, None)
        self.config = folder / "config.toml"
        self.config.write_text(CONFIG)
        table = {"dir": str(folder), "config": "config.toml"}
        self.run = RunFile.model_validate({"run": {"id": "soup", "state_dir": str(folder / "state")}, "job": table})
        attempt = folder / "state/attempts/0001"
        attempt.mkdir(parents=True)
        take_snapshot(attempt, [self.config], None)

    def subject(self, **given: Any) -> Subject:
        text = self.config.read_text()
        tree = parse_toml(text)
        return Subject(
            **{
                "kind": "rl",
                "settings": Settings(tree, str(self.config)),
                "texts": [ConfigText(self.config, "", text, tree, key_positions(text))],
                "run_file": self.run,
                "dialect": probe(self.roots),
                "roots": self.roots,
                "steps": {10: 1000},
                **given,
            }
        )

    def changed(self, old: str, new: str, **given: Any) -> list[Finding]:
        """What is found once the configuration says it so."""
        assert old in CONFIG
        self.config.write_text(CONFIG.replace(old, new))
        return self.found(**given)

    def found(self, **given: Any) -> list[Finding]:
        over = self.subject(**given)
        found = [one for check in resume.CHECKS for one in check(over)]
        assert all(one.rule for one in found)
        return found

    def progress(self, pickle: bytes, step: int = 10, folder: str = "") -> None:
        """The orchestrator's part of a step."""
        place = self.folder / "outputs" / folder / "checkpoints" / f"step_{step}" / "orchestrator"
        place.mkdir(parents=True)
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as archive:
            archive.writestr("progress/data.pkl", pickle)
        (place / "progress.pt").write_bytes(data.getvalue())

    def publish(self, **given: Any) -> None:
        """The manifest of step 10 in the embedded store."""
        manifest = Manifest("soup", 10, "pod", (ManifestFile("x", 1, "f", 1, (SHA,)),), **given).to_bytes()
        folder = self.folder / "state/store/soup"
        (folder / "step_10").mkdir(parents=True)
        (folder / "step_10/manifest.json").write_bytes(manifest)
        latest = Latest(10, "soup", writer="pod", manifest_file_id="f", manifest_sha256=sha256(manifest))
        (folder / "latest.json").write_bytes(latest.to_bytes())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_the_same_configuration_resumes_without_a_word(run: Run) -> None:
    assert run.found() == []


def test_without_a_checkpoint_any_change_is_the_first_configuration(run: Run) -> None:
    assert run.changed("Qwen3-8B", "Qwen3-4B", steps={}) == []


def test_without_a_snapshot_nothing_is_known_and_nothing_said(run: Run) -> None:
    (run.folder / "state/attempts/0001/config.json").unlink()
    assert run.changed("Qwen3-8B", "Qwen3-4B") == []


@pytest.mark.parametrize(
    ("old", "new", "expected", "weight", "line", "says"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-4B", "resume-other-model", "warning", 2, "Qwen/Qwen3-4B"),
        ("rank = 8", "rank = 16", "resume-other-adapter", "error", 8, "rank is 16"),
        ("rank = 8\n", "", "resume-other-adapter", "warning", 0, "rank is the default"),
        ("alpha = 32", "alpha = 16", "resume-other-scale", "warning", 9, "alpha is 16"),
        ('"k_proj"', '"k_proj", "v_proj"', "resume-other-adapter", "error", 10, "adds v_proj"),
        (', "k_proj"', "", "resume-other-adapter", "warning", 10, "leaves some out"),
        ("lr = 1e-5", 'lr = 1e-5\ntype = "muon"', "resume-other-optimizer", "warning", 6, '"muon"'),
        (
            "owner/soup",
            "owner/salad",
            "resume-other-environment",
            "warning",
            0,
            "without soup and with salad",
        ),
        ("lr = 1e-5", "lr = 2e-5", "resume-other-settings", "note", 5, "is taken again"),
        ("batch_size = 128", "batch_size = 64", "resume-other-settings", "note", 13, "is 64 and was 128"),
    ],
)
def test_each_change_is_weighed_by_what_it_does(  # noqa: PLR0917
    run: Run, old: str, new: str, expected: str, weight: str, line: int, says: str
) -> None:
    (found,) = run.changed(old, new)
    assert (found.id, found.weight, found.where.line) == (expected, weight, line)
    assert says in found.sentence
    assert "step 10" in found.sentence


def test_another_optimizer_by_name_fails_unless_its_state_is_left_out(run: Run) -> None:
    old = Settings(parse_toml('[trainer.optim]\ntype = "adamw"'), "x")
    run.config.write_text('[trainer.optim]\ntype = "muon"\n')
    (found,) = resume.changed_settings(run.subject(), Before(10, old))
    assert found.weight == "error"
    run.config.write_text('[ckpt]\nskip_optimizer = true\n[trainer.optim]\ntype = "muon"\n')
    assert list(resume.changed_settings(run.subject(), Before(10, old))) == []
    run.config.write_text('[trainer.optim]\ntype = "muon"\n')
    early = replace(probe(run.roots), broadcasts=False)  # it did not load the optimizer at all
    (found,) = resume.changed_settings(run.subject(dialect=early), Before(10, old))
    assert found.weight == "warning"


def test_a_lora_that_was_taken_out_or_put_in_fails(run: Run) -> None:
    start, end = CONFIG.index("[trainer.model.lora]"), CONFIG.index("[orchestrator]")
    (found,) = run.changed(CONFIG[start:end], "")
    assert (found.id, found.weight) == ("resume-other-adapter", "error")
    assert "trains all weights, and the one that made step 10" in found.sentence


def test_what_changes_nothing_of_the_training_is_not_mentioned(run: Run) -> None:
    assert run.changed("[model]", 'max_steps = 5000\n[wandb]\nname = "b"\n[inference]\nport = 1\n[model]') == []
    assert run.changed("Qwen/Qwen3-8B", "/models/Qwen3-8B") == []  # the same model, from a folder
    assert run.changed("owner/soup", "owner/soup@0.2") == []
    assert run.changed("owner/soup", "soup") == []


def test_the_snapshot_is_the_one_that_made_the_published_step(run: Run) -> None:
    """Attempt 2 ran another configuration and made no step."""
    attempts = run.folder / "state/attempts"
    run.publish(config_sha256=digest(read_snapshot(attempts / "0001")))
    run.config.write_text(CONFIG.replace("batch_size = 128", "batch_size = 64"))
    (attempts / "0002").mkdir()
    take_snapshot(attempts / "0002", [run.config], None)
    (found,) = run.found()
    assert "batch_size is 64 and was 128" in found.sentence
    assert "attempt 1" in found.sentence


def test_another_revision_and_another_count_of_steps(run: Run) -> None:
    run.publish(revision="1" * 40, step_base=1)
    found = run.found(revision="2" * 40)
    assert ids(found) == ["resume-other-revision", "resume-other-count"]
    assert "111111111" in found[0].sentence
    assert "counted steps from 1, and the installed one counts from 0" in found[1].sentence
    assert run.found(revision="1" * 40, dialect=None) == []


def test_a_damaged_manifest_tells_nothing(run: Run) -> None:
    run.publish(revision="1" * 40)
    (run.folder / "state/store/soup/step_10/manifest.json").write_text("{")
    assert run.found(revision="2" * 40) == []


# ---------------------------------------------------------------- the orchestrator's part

OLD = b"\x80\x02}q\x00X\x08\x00\x00\x00progressq\x01cprime_rl.orchestrator.types\nProgress\nq\x02)\x81q\x03."
NEW = OLD + b"X\x0c\x00\x00\x00train_source"


def orchestrator(run: Run, ckpt: str, types: str = "@dataclass\nclass Progress:\n    step: int = 0\n") -> None:
    folder = run.roots[0] / "orchestrator"
    (folder / "ckpt.py").write_text(ckpt)
    (folder / "types.py").write_text(types)


@pytest.mark.parametrize("folder", ["", "run_default", "soup"])
def test_an_old_checkpoint_under_a_new_prime_rl_has_no_position_in_the_data(run: Run, folder: str) -> None:
    orchestrator(run, 'train_source.load_state_dict(state["train_source"])\n')
    run.progress(OLD, folder=folder)
    (found,) = run.found()
    assert (found.id, found.weight) == ("resume-without-data-position", "error")


def test_a_new_checkpoint_and_an_old_prime_rl_go_together(run: Run) -> None:
    orchestrator(run, 'train_source.load_state_dict(state["train_source"])\n')
    run.progress(NEW)
    assert run.found() == []
    orchestrator(run, 'state["progress"]\n')
    assert run.found() == []


def test_progress_that_is_skipped_cannot_lack_anything(run: Run) -> None:
    orchestrator(run, 'state["train_source"]\n')
    run.progress(OLD)
    assert run.changed("[model]", "[ckpt]\nskip_progress = true\n[model]") == []


def test_a_class_that_moved_cannot_be_unpickled(run: Run) -> None:
    orchestrator(run, 'state["progress"]\n', types="class Other: ...\n")
    run.progress(OLD)
    (found,) = run.found()
    assert (found.id, found.weight) == ("resume-class-moved", "error")
    assert "a Progress of prime_rl.orchestrator.types" in found.sentence


@pytest.mark.parametrize("data", [b"", b"no zip at all", b"PK\x03\x04 cut"])
def test_a_damaged_progress_file_is_not_our_business_here(run: Run, data: bytes) -> None:
    orchestrator(run, 'state["train_source"]\n')
    run.progress(OLD)
    next(run.folder.rglob("progress.pt")).write_bytes(data)
    assert run.found() == []


def test_a_checkpoint_where_this_version_does_not_look(run: Run) -> None:
    place = run.folder / "outputs/checkpoints/step_30"
    place.mkdir(parents=True)
    (place / ".metadata").write_bytes(b"x")
    assert run.found(steps={}) == []  # it has just been written
    os.utime(place / ".metadata", (1e9, 1e9))
    (found,) = run.found(steps={})
    assert found.id == "resume-other-layout"
    assert "step_30 holds a checkpoint" in found.sentence
    assert run.found(steps={10: 1}) == []


def test_texts_from_a_store_are_read_as_the_present_files_are(run: Run) -> None:
    settings = resume.of_texts(run.subject(), [CONFIG])
    assert settings is not None
    assert settings.get("model.name") == "Qwen/Qwen3-8B"
    assert resume.of_texts(run.subject(), []) is None
    assert resume.of_texts(run.subject(), ["= ="]) is None


ODD = '[model]\nname = 7\n[trainer]\noptim = "x"\nmodel = { lora = 3 }\n[orchestrator]\nenv = 5\n'


def test_odd_values_never_raise(run: Run) -> None:
    run.config.write_text(ODD)
    run.found()
    take_snapshot(run.folder / "state/attempts/0001", [run.config], None)
    run.config.write_text(CONFIG)
    run.found()
