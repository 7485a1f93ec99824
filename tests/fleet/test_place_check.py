"""Each place of ``fleet.toml`` is judged against its runs before anything is rented: GPUs, memory, disk, world size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import supervisor.fleet.places.vast as vast_place
from supervisor.base.errors import ConfigError
from supervisor.checkpoints.publish import publish
from supervisor.cli import fleet as commands
from supervisor.config.run_file import load as load_run_file
from supervisor.config.run_file import parse_toml
from supervisor.fleet.assemble import assemble
from supervisor.fleet.fleet_file import PlaceTable
from supervisor.fleet.place_check import gpu_gib, site_of_place
from supervisor.fleet.place_run import adapt_run_file
from supervisor.fleet.run_look import read_ranks
from supervisor.preflight.finding import Finding
from supervisor.preflight.site import Site
from supervisor.storage import open_store
from tests.checkpoints_store.conftest import Step, quiet
from tests.fleet.fake_vast import KEY, FakeVast

FLEET = """\
[fleet]
store = "{store}"
[limits]
per_hour = 9
total = 9
[place.spot]
provider = "vast"
gpu = "{gpu}"
gpus = {gpus}
most_per_hour = 6
disk_gb = {disk}
image = "ghcr.io/me/prime-rl:1"
[place.own]
provider = "ssh"
host = "box1"
[run.swe]
file = "swe.toml"
places = ["spot", "own"]
"""
RUN_FILE = """\
[run]
id = "swe"
[job]
dir = "{folder}"
config = "{folder}/rl.toml"
checkpoint_interval = 10
{gpus}
[store]
url = "{store}"
"""
CONFIG = """\
max_steps = 100
inference_gpu_ids = [0]
trainer_gpu_ids = [{trainer}]

[model]
name = "{model}"

[trainer.model]
seq_len = 2048

[trainer.model.ac]
freq = 1
{more}
[inference.model]
enforce_eager = true
"""
LORA = "\n[trainer.model.lora]\nrank = 8\n"


class Desk:
    """A fleet file, a run file and a configuration on the controller's machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = (folder / "store").as_uri()

    def find(self, place: str = "spot", **words: object) -> list[Finding]:
        self.write(**words)
        return assemble(self.folder / "fleet.toml", {}).find_misfits("swe", place)

    def write(self, **words: object) -> None:
        told = {"gpu": "H100 SXM", "gpus": 2, "disk": 400, "model": "Qwen/Qwen3-8B", "trainer": "1", "more": LORA}
        told |= {"store": self.store, "folder": self.folder, "run_gpus": "", "config": True, **words}
        (self.folder / "fleet.toml").write_text(FLEET.format(**told))
        (self.folder / "swe.toml").write_text(RUN_FILE.format(**{**told, "gpus": told["run_gpus"]}))
        if told["config"]:
            (self.folder / "rl.toml").write_text(CONFIG.format(**told))
        for path in (self.folder, *self.folder.glob("*.toml")):
            path.chmod(0o700)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def errors(found: list[Finding]) -> list[str]:
    return [one.id for one in found if one.weight == "error"]


SPLIT = "inference = [0]\ntrainer = [1]"


def test_a_place_has_its_own_split_of_the_gpus(desk: Desk) -> None:
    words = {"run_gpus": "[gpus]\ninference = [0, 1]\ntrainer = [2, 3]", "config": False}
    assert errors(desk.find(**words)) == ["gpu-missing"]
    desk.write(**words)
    file = desk.folder / "fleet.toml"
    file.write_text(file.read_text().replace("disk_gb = 400", f"disk_gb = 400\n{SPLIT}"))
    found = assemble(file, {})
    assert errors(found.find_misfits("swe", "spot")) == []
    assert found.at_places["swe"]["own"][1] == (desk.folder / "swe.toml").read_bytes()


@pytest.mark.parametrize("config", sorted((Path(__file__).parents[2] / "configs").glob("*.toml")), ids=lambda p: p.stem)
def test_a_run_file_for_a_place_says_the_same_in_all_else(config: Path) -> None:
    before = load_run_file(config)
    words = ['--note=a "quoted" \\ word', "--model.seq_len", "2048"]
    place = PlaceTable(provider="ssh", host="box1", inference=[0], trainer=[1], args=words)
    after, text = adapt_run_file(config, before, place)
    assert after.job.args == [*before.job.args, *words]
    assert (after.gpus.inference, after.gpus.trainer) == ([0], [1])
    job = after.job.model_copy(update={"args": before.job.args})
    assert after.model_copy(update={"job": job, "gpus": before.gpus}) == before
    assert parse_toml(text.decode())["job"]["args"] == after.job.args


def test_a_place_in_which_the_run_fits(desk: Desk) -> None:
    assert errors(desk.find()) == []
    assert errors(desk.find(gpus=8)) == []
    assert errors(desk.find(gpu="A100_80GB")) == []


def test_too_few_gpus_are_told_with_the_line_of_the_place(desk: Desk) -> None:
    [found] = desk.find(trainer="1, 2, 3")
    assert found.id == "gpu-missing"
    assert found.sentence == "The run wants GPU 2, 3, and a pod there has 2 (0 to 1)."
    assert found.remedy == "Set gpus = 4, or give the run fewer."
    assert (found.where.line, found.where.key) == (9, "place.spot.gpus")
    assert errors(desk.find(trainer="1, 2, 3", gpus=4)) == []


def test_the_run_files_own_split_counts_where_the_configuration_is_on_the_pod_alone(desk: Desk) -> None:
    assert desk.find(config=False) == [], "nothing is known of it"
    split = "[gpus]\ninference = [0, 1]\ntrainer = [2]"
    assert errors(desk.find(config=False, run_gpus=split)) == ["gpu-missing"]
    assert errors(desk.find(trainer="1", run_gpus=split)) == ["gpu-missing"]


def test_a_model_that_does_not_fit_into_the_gpus_memory_is_told_with_its_key(desk: Desk) -> None:
    found = [one for one in desk.find(gpu="RTX 3060", model="Qwen/Qwen3-8B") if one.weight == "error"]
    assert {one.id for one in found} <= {"engine-out-of-memory", "trainer-out-of-memory"} and found
    assert all("(RTX 3060)" in one.sentence for one in found)
    assert found[0].where.file.endswith("rl.toml") and found[0].where.line
    full = desk.find(gpu="RTX 4090", more="")
    assert "trainer-out-of-memory" in errors(full), "all parameters of 8B on one 24 GB GPU"
    assert errors(desk.find(gpu="Quantum 9", more="")) == [], "of an unknown GPU nothing is known"


def test_a_disk_on_which_two_checkpoints_do_not_fit_is_told(desk: Desk) -> None:
    assert "disk-too-small" in errors(desk.find(disk=40))
    assert errors(desk.find(disk=40, place="own")) == []


def test_a_machine_of_ones_own_is_not_judged_by_defaults(desk: Desk) -> None:
    assert errors(desk.find(place="own", trainer="1, 2, 3", disk=1)) == []
    assert site_of_place(PlaceTable(provider="ssh", host="box1", disk_gb=1)) == Site()


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("H100 SXM", 80),
        ("H100_80GB", 80),
        ("NVIDIA H100 NVL", 94),
        ("A100_40GB", 40),
        ("NVIDIA A100-SXM4-40GB", 40),
        ("RTX 4090", 24),
        ("RTX4090_24GB", 24),
        ("NVIDIA GeForce RTX 5090", 32),
        ("RTX 6000Ada", 48),
        ("RTX A6000", 48),
        ("RTX PRO 6000 WS", 96),
        ("H200", 141),
        ("RTX 4080S", None),
        ("", None),
    ],
)
def test_memory_by_name(name: str, gib: int | None) -> None:
    assert gpu_gib(name) == gib


def test_an_unknown_size_of_a_gpu_is_no_size(desk: Desk) -> None:
    table = PlaceTable(provider="vast", gpu="Quantum 9", image="i", most_per_hour=1)
    [gpu] = site_of_place(table).gpus or ()
    assert gpu.total_bytes == 0 and not site_of_place(table).elsewhere


# ---------------------------------------------------------------- another world size


def publish_step(desk: Desk, ranks: int) -> None:
    step = Step(desk.folder / f"out-{ranks}", 20)
    for rank in range(ranks):
        step.write(f"trainer/__{rank}_0.distcp", b"shard" * 100)
    step.write("trainer/.metadata", b"m" * 100)
    publish(open_store(desk.store, None, {}), step.plan(desk.folder / "state"), quiet)


def test_another_number_of_trainer_gpus_than_the_newest_step_has_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.checkpoints_store.conftest.RUN", "swe")
    assert read_ranks(open_store((desk.folder / "none").as_uri(), None, {}), "swe") is None
    publish_step(desk, 2)
    assert read_ranks(open_store(desk.store, None, {}), "swe") == 2
    [found] = desk.find(trainer="1")
    assert found.id == "world-size-changed" and found.where.key == "trainer_gpu_ids" and found.where.line == 3
    assert found.sentence.startswith("2 trainer processes wrote the newest published step, and this run has 1 GPU")
    assert errors(desk.find(trainer="1, 2", gpus=3)) == []
    replicas = "[trainer.model.lora]\nrank = 8\n"
    text = CONFIG.format(trainer="1", model="Qwen/Qwen3-8B", more=replicas).replace(
        "seq_len", "dp_replicate = 2\nseq_len"
    )
    (desk.folder / "rl.toml").write_text(text)
    assert errors(desk.find(config=False)) == [], "a replica writes no shards of its own"
    (desk.folder / "rl.toml").unlink()
    assert desk.find(config=False) == [], "how many GPUs the configuration asks for is not known here"
    split = "[gpus]\ninference = [0]\ntrainer = [1]"
    assert errors(desk.find(config=False, run_gpus=split)) == ["world-size-changed"]


def test_a_store_that_is_away_is_no_reason(desk: Desk) -> None:
    (desk.folder / "store").write_text("not a folder")
    assert errors(desk.find()) == []


# ---------------------------------------------------------------- the commands


def test_check_prints_each_place_and_ends_with_1(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.write(trainer="1, 2, 3")
    assert commands.check(desk.folder / "fleet.toml", None) == 1
    told = capsys.readouterr().out
    assert told.startswith("swe in spot:\n") and "gpu-missing" in told and "place.spot.gpus" in told
    assert "swe in own: nothing known is in the way." in told
    desk.write()
    assert commands.check(desk.folder / "fleet.toml", "swe") == 0


def test_up_rents_nothing_for_a_run_that_does_not_fit_unless_that_is_overruled(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(commands, "_order", lambda *_, **__: asked.append("order") or 0)
    monkeypatch.setenv("VAST_API_KEY", "k")
    monkeypatch.setenv("VAST_URL", "http://127.0.0.1:9")
    desk.write(trainer="1, 2, 3")
    with pytest.raises(ConfigError, match=r"spot: \[gpu-missing\] .*fleet.toml:9 place.spot.gpus: The run wants GPU"):
        commands.up(desk.folder / "fleet.toml", "swe", dry_run=True)
    assert asked == []
    path = desk.folder / "swe.toml"
    path.write_text(path.read_text() + '[check]\noverrule = ["gpu-missing"]\n')
    commands._refuse_misfits(assemble(desk.folder / "fleet.toml", {}), "swe")


def test_offers_name_cheaper_gpus_on_which_the_run_fits(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.write()
    monkeypatch.setattr(vast_place, "SEARCH", replace(vast_place.SEARCH, gap_s=0.0))
    with FakeVast() as vast:
        monkeypatch.setenv("VAST_API_KEY", KEY)
        monkeypatch.setenv("VAST_URL", vast.url)
        vast.add_offer()
        for kind, bid in (("A100 SXM4", 0.5), ("A100 SXM4", 0.4), ("RTX 3060", 0.1), ("H200", 9.0), ("Q7", 0.2)):
            vast.add_offer(gpu_name=kind, min_bid=bid)
        assert commands.offers(desk.folder / "fleet.toml", "swe") == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "swe is estimated to fit on 2 x A100 SXM4: $0.50 an hour in spot. To rent these: gpu" in said
        assert said.count("estimated to fit") == 1
        vast.offers = {number: one for number, one in vast.offers.items() if one["gpu_name"] != "H100 SXM"}
        assert commands.offers(desk.folder / "fleet.toml", "swe") == 1
        assert "2 x A100 SXM4" in " ".join(capsys.readouterr().out.split())
        vast.fail("500", "search", times=9)
        assert commands.offers(desk.folder / "fleet.toml", "swe") == 1
        assert "estimated" not in capsys.readouterr().out
