"""Are the environments of the run installed where it will train, and can they be imported there?

First by files, which costs nothing; with ``--online`` the job's own interpreter is asked, since an import runs code.
"""

from __future__ import annotations

import ast
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from supervisor.base.beside import side_by_side
from supervisor.config.toml_positions import Key
from supervisor.preflight import installed, look
from supervisor.preflight.finding import Finding, Where
from supervisor.preflight.installed import Packages
from supervisor.preflight.subject import Check, Subject
from supervisor.primerl import command
from supervisor.process import ask_program

LISTS = (
    *(("orchestrator", "env"), ("orchestrator", "train", "env"), ("orchestrator", "eval", "env")),
    *(("orchestrator", "train", "source"), ("orchestrator", "eval", "source")),
)
MARK = "rl-supervisor-answer:"
AT_ONCE = 4

# Runs in the job's interpreter, which may be older than ours. It tells of the import, and of the words that
# `load_environment` takes; it does not call it, for that may download a data set.
_ASK = """
import importlib, importlib.util, inspect, json, sys, traceback
mark, names = sys.argv[1], sys.argv[2:]
if sys.path[:1] == [""]:  # the launcher's programs do not import from the folder that they run in
    del sys.path[0]
def tell(**said):
    print(mark + json.dumps(said), flush=True)
def there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
name = next((one for one in names if there(one)), None)
if name is None:
    tell(missing=names)
    sys.exit()
try:
    module = importlib.import_module(name)
except BaseException as error:
    frames = [[f.filename, f.lineno] for f in traceback.extract_tb(error.__traceback__)]
    tell(error=type(error).__name__, text=str(error)[:2000], frames=frames[-40:])
    sys.exit()
load = getattr(module, "load_environment", None)
said = {"module": name, "loads": callable(load), "exports": list(map(str, getattr(module, "__all__", None) or ()))}
if callable(load):
    try:
        words = inspect.signature(load).parameters.values()
        said["words"] = [one.name for one in words if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        said["any"] = any(one.kind == one.VAR_KEYWORD for one in words)
        said["needs"] = [one.name for one in words if one.name in said["words"] and one.default is one.empty]
    except (TypeError, ValueError):
        pass
tell(**said)
"""


@dataclass(frozen=True)
class Named:
    """An environment as the configuration names it. ``plugin``: verifiers' newer kind, a task set or an environment."""

    id: str
    key: Key
    plugin: bool = False
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def from_hub(self) -> bool:
        """``owner/name``: of the Environments Hub."""
        return "/" in self.id.strip("/") and not self.id.startswith((".", "/", "~"))

    @property
    def modules(self) -> tuple[str, ...]:
        """What is imported for it, the first that is there.

        Sources: verifiers utils/env_utils.py (`env_module_name`) and v1/utils/loaders.py (`_import_plugin`) at a60a606.
        """
        name = self.id.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_")
        if not self.plugin:
            return (name,)
        name = name.lower()
        groups = ("verifiers.v1.tasksets", "verifiers.v1.envs", "tasksets")
        return (*(f"{group}.{name}" for group in groups), name)


def list_environments(subject: Subject) -> list[Named]:
    """Every environment that the run's own processes would import, each id once."""
    found: list[Named] = []
    if subject.kind == "vf-rl":
        _take_table(found, subject.settings.get("env"), ("env",), plugin=False)
    elif subject.kind == "rl":
        for path in LISTS:
            dotted = ".".join(path)
            value = subject.settings.get(dotted) if subject.counts(dotted) else None
            for index, item in enumerate(value if isinstance(value, list) else []):
                _of_item(found, item, (*path, index))
        _take_table(
            found, subject.settings.get("orchestrator.environment"), ("orchestrator", "environment"), plugin=False
        )
        ids = subject.settings.get("orchestrator.eval.environment_ids")
        for index, one in enumerate(ids if isinstance(ids, list) else []):
            _take_table(
                found, {"id": one}, ("orchestrator", "eval", "environment_ids", index), plugin=False, last=False
            )
    return list({one.id: one for one in reversed(found)}.values())[::-1]


def _of_item(found: list[Named], item: object, key: Key) -> None:
    if not isinstance(item, Mapping) or item.get("address") or _table_of_key(item, "serve").get("address"):
        return  # a server that others run imports it
    before = len(found)
    for above, place in ((item, key), (_table_of_key(item, "env"), (*key, "env"))):
        _take_table(found, above.get("taskset"), (*place, "taskset"), plugin=True)
    _take_table(found, item.get("env"), (*key, "env"), plugin=True)
    if len(found) == before:  # an older id beside a task set is not read (prime-rl configs/orchestrator.py, is_legacy)
        _take_table(found, item, key, plugin=False)
        _take_table(found, item.get("legacy"), (*key, "legacy"), plugin=False)


def _take_table(found: list[Named], table: object, key: Key, *, plugin: bool, last: bool = True) -> None:
    if not isinstance(table, Mapping):
        return
    name = table.get("id")
    if isinstance(name, str) and name.strip() and name != "None":
        args = table.get("args")
        found.append(Named(name, (*key, "id") if last else key, plugin, args if isinstance(args, Mapping) else {}))


def _table_of_key(above: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = above.get(key)
    return value if isinstance(value, Mapping) else {}


# ---------------------------------------------------------------- by files


def there(subject: Subject) -> Iterator[Finding]:
    """Is each one installed, as far as files tell?"""
    wanted = list_environments(subject)
    if not wanted or subject.run_file is None:
        return
    python = command.interpreter(subject.run_file)
    packages = installed.packages(python, subject.site.environ)
    by_itself = installs(subject, packages)
    for one in wanted:
        if "@" in one.id and not one.plugin and _takes_no_version(subject):
            yield Finding(
                "environment-version-in-id",
                f'The environment "{one.id}" has a version in its id, which this prime-rl takes for a part of the '
                f"module's name.",
                where(subject, one),
                f'Write id = "{one.id.split("@")[0]}", and install that version yourself: '
                f"`prime env install {one.id}`.",
            )
        module = next((name for name in one.modules if packages.has(name)), None)
        if module is not None:
            yield from _check_arguments(subject, one, *(_signature_of_loader(packages, module) or ()))
        elif packages.whole and packages.has("verifiers") and (by_itself is False or not one.from_hub):
            yield _report_missing(subject, one, python)


def installs(subject: Subject, packages: Packages) -> bool | None:
    """Does this version install environments of the Hub (``owner/name``) by itself? None: that is not known.

    prime-rl's launcher or orchestrator did from 3b3bcaf13 (2025-11-07) to 7089ba1e4 (2026-06-23), verifiers then until
    its 21abe09 (2026-08-17).
    """
    names = ("rl.py", "entrypoints/rl.py", "utils/utils.py", "orchestrator/orchestrator.py")
    texts = [installed.text_of(root / name) for root in subject.roots for name in names]
    if not any(texts):
        return None
    if any('"env", "install"' in text for text in texts):
        return True
    if "def ensure_installed" in packages.read("verifiers/v1/utils/install.py"):
        return True
    return False if packages.has("verifiers") else None


def _takes_no_version(subject: Subject) -> bool:
    """Before 8695aa10f (2026-02-05) the id was imported with its version; later ones cut it off at "@"."""
    names = ("utils/utils.py", "configs/orchestrator.py", "orchestrator/config.py", "orchestrator/orchestrator.py")
    texts = [installed.text_of(root / name) for root in subject.roots for name in names]
    return any("load_environment" in text for text in texts) and not any(
        'split("@")' in text or "verifiers.v1" in text or "stripped_id" in text for text in texts
    )


def _report_missing(subject: Subject, one: Named, python: Path) -> Finding:
    told = f'The environment "{one.id}" is not installed for {python}: there is no module {one.modules[-1]}.'
    remedy = (
        f"`prime env install {one.id}` in the job's environment; in [setup] commands it is done on each new pod."
        if one.from_hub
        else f"Install its package: `uv pip install --python {python} PACKAGE` (or `-e FOLDER`), also in [setup] "
        "commands."
    )
    return Finding("environment-missing", told, where(subject, one), remedy)


def _signature_of_loader(packages: Packages, module: str) -> tuple[list[str], bool, list[str]] | None:
    """Words that its ``load_environment`` takes, whether it takes any, and those it needs; None where unclear."""
    relative = module.replace(".", "/")
    text = packages.read(f"{relative}/__init__.py") or packages.read(f"{relative}.py")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "load_environment"]
    if len(found) != 1 or found[0].decorator_list:
        return None
    words = found[0].args
    plain = [word.arg for word in words.args]
    needs = plain[: len(plain) - len(words.defaults)]
    needs += [word.arg for word, default in zip(words.kwonlyargs, words.kw_defaults, strict=True) if default is None]
    return [*plain, *(word.arg for word in words.kwonlyargs)], words.kwarg is not None, needs


def _check_arguments(
    subject: Subject, one: Named, takes: Sequence[str] = (), anything: bool = True, needs: Sequence[str] = ()
) -> Iterator[Finding]:
    """Are the arguments of the configuration those that ``load_environment`` takes?"""
    if one.plugin or (not takes and anything):
        return
    unknown = [] if anything else [str(word) for word in one.args if word not in takes]
    lacking = [word for word in needs if word not in one.args]
    if unknown:
        close = f"; it takes {', '.join(takes)}" if takes else "; it takes none"
        yield Finding(
            "environment-args",
            f'load_environment of "{one.id}" takes no {", ".join(unknown)}{close}.',
            where(subject, one, ("args", unknown[0])),
        )
    if lacking:
        yield Finding(
            "environment-args",
            f'load_environment of "{one.id}" needs {", ".join(lacking)}, which args does not give.',
            where(subject, one),
            f"Give {lacking[0]} in the args of that environment.",
        )


CHECKS: tuple[Check, ...] = (there,)


# ---------------------------------------------------------------- by asking


def slow_findings(
    subject: Subject, timeout_s: float = 60.0, unwanted: threading.Event | None = None
) -> Sequence[Finding]:
    """Ask the job's interpreter itself, at most ``timeout_s`` for each environment: importing one runs its code.

    ``unwanted``: ends it when it is set.
    """
    if subject.run_file is None:
        return ()
    python = command.interpreter(subject.run_file)
    if not python.exists():
        return ()
    packages = installed.packages(python, subject.site.environ)
    by_itself = installs(subject, packages)
    # One of the Hub that is not there yet is installed at the start.
    asked = [
        one
        for one in list_environments(subject)
        if by_itself is False or not one.from_hub or any(map(packages.has, one.modules))
    ]
    looks = [partial(_ask_environment, subject, one, python, timeout_s, unwanted) for one in asked]
    return [finding for found in side_by_side(looks, AT_ONCE) for finding in found]


def patience(subject: Subject, timeout_s: float = 60.0) -> float:
    """Seconds after which ``slow_findings`` has an answer, unless something hangs."""
    rounds = -(-len(list_environments(subject)) // AT_ONCE)
    return (rounds + 1) * timeout_s


def _ask_environment(
    subject: Subject, one: Named, python: Path, timeout_s: float, unwanted: threading.Event | None
) -> list[Finding]:
    folder = subject.run_file.job.dir if subject.run_file else None
    words = [str(python), "-c", _ASK, MARK, *one.modules]
    place = where(subject, one)
    env = subject.site.environ or look.needs(subject.run_file, None, os.environ).environ
    try:
        answer = ask_program.ask(words, cwd=folder or Path("/"), env=env, timeout_s=timeout_s, unwanted=unwanted)
    except OSError as error:
        return [Finding("environment-not-asked", f"{python} cannot be run ({error.strerror}).", place)]
    if answer.code is None:
        told = f'Importing "{one.id}" took more than {timeout_s:g} s and was given up.'
        return [Finding("environment-slow", told, place)]
    said = _answer_in_output(answer.text)
    if said is None:
        last = (answer.text.strip().splitlines() or ["it said nothing"])[-1][:300]
        how = f"signal {-answer.code}" if answer.code < 0 else f"exit code {answer.code}"
        return [Finding("environment-import", f'Importing "{one.id}" ended with {how}: {last}.', place)]
    if "missing" in said:
        return [_report_missing(subject, one, python)]
    if "error" in said:
        return [_import_failed(one, said, place)]
    if not one.plugin and not said.get("loads") and not said.get("exports"):
        told = f'"{one.id}" is the module {said.get("module")}, which has no load_environment.'
        remedy = "Name the environment's own package; another one of this name is installed."
        return [Finding("environment-import", told, place, remedy)]
    if isinstance(said.get("words"), list):
        return list(_check_arguments(subject, one, said["words"], bool(said.get("any")), said.get("needs") or ()))
    return []


def _import_failed(one: Named, said: Mapping[str, Any], place: Where) -> Finding:
    """The error, and the line of the environment's own code in which it came up."""
    text = " ".join(f"{said['error']}: {said.get('text', '')}".split())[:300].rstrip(".")
    frames = [(str(file), line) for file, line in said.get("frames") or () if not str(file).startswith("<")]
    own = [frame for frame in frames if any(f"/{name.replace('.', '/')}" in frame[0] for name in one.modules)]
    at = (own or frames)[-1:]
    told = f" ({at[0][0]}, line {at[0][1]})" if at else ""
    no_gpu = any(word in text for word in ("CUDA", "GPU", "NVML", "nvidia"))
    return Finding(
        "environment-import",
        f'Importing "{one.id}" fails with {text}{told}.',
        place,
        severity="warning" if no_gpu else None,  # it was asked without a GPU
    )


def _answer_in_output(text: str) -> Mapping[str, Any] | None:
    """The line that our code printed among whatever the import printed."""
    for line in reversed(text.splitlines()):
        if line.startswith(MARK):
            try:
                said = json.loads(line.removeprefix(MARK))
            except ValueError:
                return None
            return said if isinstance(said, Mapping) else None
    return None


# ---------------------------------------------------------------- where


def where(subject: Subject, one: Named, below: Key = ()) -> Where:
    """The line of this very environment in a list of several; ``below``: of a key beside its id."""
    return subject.where_exactly((*one.key[:-1], *below) if below else one.key)
