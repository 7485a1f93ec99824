"""``rl-supervisor fleet init``: a ``fleet.toml`` for a run file, and what calls the controller: a workflow, a unit.

Nothing that exists is written over. What only a person can know (limits, prices, an image) is left open on purpose: the
file is refused until it is filled in.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from supervisor import __version__
from supervisor.base.errors import ConfigError, UsageError
from supervisor.cli.init import write_new_file
from supervisor.cli.render import wrap
from supervisor.cli.run_text import comment
from supervisor.config import settings
from supervisor.config.settings import RunFile
from supervisor.config.toml_text import key_text, value_text
from supervisor.fleet import fleet_file
from supervisor.fleet.fleet_file import ACCOUNT_KEYS, FleetFile, read_template
from supervisor.install import unit_files
from supervisor.storage.backends import backend_of, keys_of

FILL_IN = "# <- fill in: "
WORKFLOW = Path(".github/workflows/fleet.yml")
UNIT = "rl-supervisor-fleet.service"
CRON = (
    "What a cron at GitHub cannot promise: it comes late, at busy times by hours, and may be left out. A run whose pod "
    "is gone waits for it. In a public repository GitHub stops it after 60 days without activity, and anyone reads its "
    "log. Only the file on the default branch counts. Where hours matter: rl-supervisor fleet run, on a small VM."
)
"""Source: GitHub's documentation of the event `schedule` and of disabling workflows."""

FLEET_TEXT = read_template("fleet.toml")
B2_ENV = """\
# The controller makes a B2 key for each pod, if its own has writeKeys, listKeys and deleteKeys. Else, a key for the
# folder of the run:
# B2_APPLICATION_KEY_ID = "$POD_B2_KEY_ID"
# B2_APPLICATION_KEY = "$POD_B2_KEY\""""
OTHER_ENV = "# A key for the folder of the run: this store has no way to make one for each pod."

WORKFLOW_TEXT = read_template("workflow.yml")

UNIT_TEXT = read_template("fleet.service")
MESSAGES = "For messages to people, also RL_NOTIFY_URLS."
NETWORK = "Wants=network-online.target\nAfter=network-online.target\n"


def init(file: Path, run_file: Path | None, *, github: bool, systemd: bool) -> int:
    """Write one of the three. Raises ConfigError when it exists already, or cannot be made of what is there."""
    if (run_file is not None) + github + systemd != 1:
        raise UsageError("fleet init wants one of RUN.toml, --github and --systemd.")
    if run_file is not None:
        told = _write_fleet_file(file, run_file)
    else:
        told = _write_workflow(file) if github else _write_unit(file)
    for sentence in told:
        print(*wrap(sentence), sep="\n")
    return 0


# ---------------------------------------------------------------- fleet.toml


def _write_fleet_file(file: Path, run_file: Path) -> list[str]:
    run = settings.load(run_file)
    if run.store.url is None or run.store.url.startswith("file:"):
        raise ConfigError(
            f"{run_file} keeps its steps on one machine ([store] url), so no other pod has them. Name a store at b2:// "
            "or s3:// first."
        )
    count = _count_gpus(run, run_file)
    gpus = f"gpus = {count or 0}".ljust(32)
    gpus += (
        f" # as {run_file.name} says" if count else f" {FILL_IN}how many the run needs; {run_file.name} does not say"
    )
    bucket = "/".join(run.store.url.split("/")[:3])
    text = FLEET_TEXT.format(
        run_id=run.run.id,
        version=__version__,
        fill=FILL_IN,
        store=value_text(f"{bucket}/fleet"),
        realm=f"realm = {value_text(run.store.service)}\n" if run.store.service else "",
        gpus=gpus,
        name=key_text(run.run.id[:64]),
        file=value_text(os.path.relpath(run_file, file.parent)),
        env=B2_ENV
        if bucket.startswith("b2:")
        else "\n".join([OTHER_ENV, *(f'{name} = "$POD_{name}"' for name in keys_of(bucket))]),
    )
    write_new_file(file, text, "remove it first, if it may go")
    offers = f"rl-supervisor fleet offers --file {shlex.quote(str(file))}"
    return [
        f"{file} is written, for the run {run.run.id}. Fill in its {text.count(FILL_IN)} open lines, then: {offers}"
    ]


def _count_gpus(run: RunFile, run_file: Path) -> int:
    """How many different GPUs the run wants; 0 where neither the run file nor the trainer's own files say it."""
    from supervisor.preflight.gather import gather_run
    from supervisor.preflight.site import Site

    subject, _ = gather_run(run_file, environ={}, site=Site(), run_file=run)
    is_read = bool(subject.texts) and all(text.data is not None for text in subject.texts)
    plan = subject.plan if is_read else run.gpus
    return len({*map(str, plan.inference), *map(str, plan.trainer)})


# ---------------------------------------------------------------- what calls the controller


def _write_workflow(file: Path) -> list[str]:
    if not Path(".git").exists():
        raise ConfigError(f"{Path.cwd()} is not the top folder of a git repository: go there and call again.")
    fleet, runs = _load_fleet(file)
    named = os.path.relpath(file)
    if named.startswith("..") or not re.fullmatch(r"[A-Za-z0-9/._-]+", named):
        raise ConfigError(f"{file} must lie in this repository, with a plain name.")
    packages = {table.package for table in fleet.run.values() if table.package} or {"${{ vars.RL_SUPERVISOR_PACKAGE }}"}
    names = _name_keys(fleet, runs)
    urls = (fleet.fleet.store, *(run.store_url for run in runs))
    libraries = sorted({one.library for url in urls if (one := backend_of(url)) and one.library})
    text = WORKFLOW_TEXT.format(
        about="\n".join(comment(CRON)),
        package=value_text(min(packages)),
        more="".join(f' "{library}"' for library in libraries),
        file=named,
        secrets="\n".join(f"          {name}: ${{{{ secrets.{name} }}}}" for name in names),
    )
    WORKFLOW.parent.mkdir(parents=True, exist_ok=True)
    write_new_file(WORKFLOW, text, "remove it first, if it may go")
    told = [f"{WORKFLOW} is written. Commit it, with {named} and its run files.", CRON]
    told += [f"Secrets of the repository that it needs (gh secret set NAME): {', '.join(names)}. {MESSAGES}"]
    if "vars." in min(packages):
        told += ["The variable RL_SUPERVISOR_PACKAGE says what pip installs: a git URL, a wheel (gh variable set)."]
    if own := sorted({f'"{place.provider}"' for place in fleet.place.values() if place.is_own}):
        lacking = "GitHub's machines have neither keys for ssh nor a cluster's commands."
        told += [f"Places with `provider = {' or '.join(own)}` are out of its reach: {lacking}"]
    return told


def _write_unit(file: Path) -> list[str]:
    fleet, runs = _load_fleet(file)
    where, program, named = unit_files.place(), unit_files.program(), file.absolute()
    unit, env = named.with_name(UNIT), named.with_suffix(".env")
    for path in (program, named):
        if not unit_files.PLAIN_PATH.fullmatch(str(path)):
            raise ConfigError(f"{path} has characters that a unit cannot name safely: move it to a plain path.")
    text = UNIT_TEXT.format(file=named, env=env, program=program, network="" if where.user else NETWORK)
    write_new_file(unit, text, "remove it first, if it may go")
    linger = " To go on after you log out: loginctl enable-linger" if where.user else ""
    return [
        f"{unit} is written. Put its keys into {env}, mode 600: {', '.join(_name_keys(fleet, runs))}. {MESSAGES}",
        f"Then: {where.systemctl} enable --now {unit}.{linger}",
    ]


def _load_fleet(file: Path) -> tuple[FleetFile, list[RunFile]]:
    fleet = fleet_file.load(file)
    return fleet, [fleet_file.load_run(file, name, table, fleet.fleet) for name, table in fleet.run.items()]


def _name_keys(fleet: FleetFile, runs: list[RunFile]) -> list[str]:
    """The variables that the controller needs: of its providers, its stores, and those that it hands on to pods."""
    names = {key for place in fleet.place.values() if (key := ACCOUNT_KEYS.get(place.provider))}
    for url in (fleet.fleet.store, *(run.store_url for run in runs)):
        names.update(keys_of(url))
    names.update(value[1:] for table in fleet.run.values() for value in table.env.values() if value.startswith("$"))
    return sorted(names)
