"""Which store is meant: a run file's, or the one that ``--store URL --run-id ID`` name on a machine without one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.base.errors import UsageError
from supervisor.storage import backends

if TYPE_CHECKING:  # reading settings takes half a second to import, in which a daemon that starts hears no SIGTERM
    from supervisor.config.settings import RunFile


def add_options(parser: argparse.ArgumentParser) -> None:
    """RUN.toml, or what stands for it."""
    parser.add_argument("run_file", type=Path, nargs="?", metavar="RUN.toml")
    instead = parser.add_argument_group("instead of RUN.toml, on any machine that has the store's keys")
    instead.add_argument("--store", metavar="URL", help=backends.FORMS)
    instead.add_argument("--run-id", metavar="ID", help="name of the run: its folder in the store")
    instead.add_argument("--endpoint", metavar="URL", help="of the S3 service; default: Amazon's")
    instead.add_argument("--region", metavar="NAME", help="of the S3 bucket")
    instead.add_argument("--realm", metavar="URL", help="of another B2 server; default: Backblaze's")


def run_file_of(options: argparse.Namespace) -> RunFile:
    """The run file, or one that holds nothing but the store. Raises ConfigError or UsageError."""
    from pydantic import ValidationError

    from supervisor.config.settings import RunFile, load

    more = [name for name in ("store", "run_id", "endpoint", "region", "realm") if getattr(options, name, None)]
    if options.run_file is not None:
        if more:
            flag = more[0].replace("_", "-")
            raise UsageError(f"RUN.toml names the store already: leave --{flag} out, or RUN.toml.")
        return load(options.run_file)
    if not (options.store and options.run_id):
        raise UsageError("Name a RUN.toml, or the run in its store: --store b2://my-bucket/runs --run-id my-run")
    store = {name: getattr(options, name) for name in ("endpoint", "region", "realm") if getattr(options, name)}
    try:
        return RunFile.model_validate(
            {
                "run": {"id": options.run_id},
                "job": {"kind": "command", "plain": {"start": ["false"], "resume": ["false"]}},
                "store": {"url": options.store, **store},
            }
        )
    except ValidationError as error:
        raise UsageError(
            " ".join(_where_sentence(options, detail["loc"], detail["msg"]) for detail in error.errors())
        ) from None


def has_run_file(options: argparse.Namespace) -> bool:
    """Does the machine have more of the run than its store?"""
    return options.run_file is not None


def _where_sentence(options: argparse.Namespace, place: tuple[int | str, ...], message: str) -> str:
    if place[:2] == ("run", "id"):
        return (
            f"--run-id {options.run_id!r} is no name of a run: letters, digits, dots, dashes and underscores make one."
        )
    flag = str(place[1]) if len(place) > 1 and place[1] != "url" else "store"
    return f"--{flag}: {message.removeprefix('Value error, ').rstrip('.')}."
