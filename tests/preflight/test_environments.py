"""Environments that are not installed, or cannot be imported: by files, and by asking a real interpreter."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.settings import RunFile
from supervisor.preflight import environments
from supervisor.preflight.environments import list_environments, slow_findings
from supervisor.preflight.finding import Finding
from supervisor.preflight.subject import Subject
from tests.preflight.subjects import ids, site, subject

LOADS = "def load_environment(split='train', mode='tiered'):\n    return None\n"


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """A training environment that has verifiers and `present`; its interpreter is ours."""
    found = tmp_path / ".venv/lib/python3.12/site-packages"
    (found / "verifiers").mkdir(parents=True)
    (found / "verifiers/__init__.py").write_text("")
    (found / "present.py").write_text(LOADS)
    (tmp_path / ".venv/pyvenv.cfg").write_text("include-system-site-packages = false\n")
    (tmp_path / ".venv/bin").mkdir()
    (tmp_path / ".venv/bin/python").write_text(f'#!/bin/sh\nPYTHONPATH="{found}" exec "{sys.executable}" "$@"\n')
    (tmp_path / ".venv/bin/python").chmod(0o755)
    return found


def run(sites: Path, text: str, kind: str = "rl", **given: Any) -> Subject:
    folder = sites.parents[3]
    table = {"run": {"id": "x"}, "job": {"kind": kind, "dir": str(folder), "config": "c.toml"}}
    pod = site(environ={"PATH": os.environ["PATH"]})
    return subject(text, kind=kind, run_file=RunFile.model_validate(table), site=pod, **given)


def check(over: Subject) -> list[Finding]:
    found = [one for each in environments.CHECKS for one in each(over)]
    assert all(one.rule for one in found)
    return found


def launcher(folder: Path, text: str = "") -> list[Path]:
    """The package folder of a prime-rl whose source says this."""
    root = folder / "src/prime_rl"
    (root / "orchestrator").mkdir(parents=True)
    (root / "rl.py").write_text("def main(): ...\n")
    (root / "orchestrator/orchestrator.py").write_text("vf.load_environment(env.id)\n" + text)
    return [root]


INSTALLS = 'install_cmd = ["uv", "run", "--no-sync", "prime", "env", "install", env_id]\n'
CUTS = 'return env_id.split("@")[0]\n'
OF_ALL_ERAS = """
[orchestrator]
[orchestrator.environment]
id = "september-env"

[orchestrator.eval]
environment_ids = ["eval-one", "eval-two"]

[[orchestrator.env]]
id = "owner/autumn-env@0.1"

[[orchestrator.train.env]]
id = "spring"
[[orchestrator.train.env]]
id = "elsewhere"
address = "tcp://other:5000"
[[orchestrator.train.env]]
id = "not-read"
taskset = { id = "owner/Summer-Set" }

[[orchestrator.train.source]]
env = { id = "two-roles", taskset = { id = "gsm8k" } }
[[orchestrator.eval.source]]
legacy = { id = "old-env", args = { split = "test" } }
[[orchestrator.eval.source]]
env = { taskset = { id = "served" } }
serve = { address = "tcp://other:5001" }
"""


def test_environments_are_found_in_the_spelling_of_every_era() -> None:
    found = {one.id: one.modules[-1] for one in list_environments(subject(OF_ALL_ERAS))}
    assert found == {
        "owner/autumn-env@0.1": "autumn_env",
        "spring": "spring",
        "owner/Summer-Set": "summer_set",
        "gsm8k": "gsm8k",
        "two-roles": "two_roles",
        "old-env": "old_env",
        "september-env": "september_env",
        "eval-one": "eval_one",
        "eval-two": "eval_two",
    }
    assert [one.id for one in list_environments(subject('[env]\nid = "wordle"', kind="vf-rl"))] == ["wordle"]
    assert list_environments(subject('[env]\nid = "wordle"', kind="sft")) == []


TWO = """\
[[orchestrator.env]]
id = "present"

[[orchestrator.env]]
id = "absent-env"
"""


def test_a_missing_environment_is_found_at_its_own_line(sites: Path) -> None:
    (found,) = check(run(sites, TWO))
    assert (found.id, found.where.line, found.weight) == ("environment-missing", 5, "error")
    assert "there is no module absent_env" in found.sentence
    assert "uv pip install" in found.remedy


HUB = '[[orchestrator.env]]\nid = "owner/absent-env"\n'


def test_one_of_the_hub_is_no_error_where_this_version_installs_it_by_itself(sites: Path, tmp_path: Path) -> None:
    assert check(run(sites, HUB)) == []  # which version this is, is not known
    assert check(run(sites, HUB, roots=launcher(tmp_path / "installs", INSTALLS))) == []
    (found,) = check(run(sites, HUB, roots=launcher(tmp_path / "does not")))
    assert found.id == "environment-missing"
    assert "prime env install owner/absent-env" in found.remedy


def test_verifiers_installs_it_in_july_2026_and_no_more_in_late_august(sites: Path, tmp_path: Path) -> None:
    roots = launcher(tmp_path)
    text = '[[orchestrator.train.source]]\nenv = { taskset = { id = "owner/absent-env" } }\n'
    assert ids(check(run(sites, text, roots=roots))) == ["environment-missing"]
    (sites / "verifiers/v1/utils").mkdir(parents=True)
    (sites / "verifiers/v1/utils/install.py").write_text("def ensure_installed(env_id):\n")
    assert check(run(sites, text, roots=roots)) == []


def test_a_task_set_that_verifiers_itself_brings_is_there(sites: Path) -> None:
    (sites / "verifiers/v1/tasksets/gsm8k").mkdir(parents=True)
    text = '[[orchestrator.train.source]]\nenv = { taskset = { id = "gsm8k" } }\n'
    assert check(run(sites, text)) == []


def test_nothing_is_said_where_files_do_not_tell(sites: Path) -> None:
    (sites.parents[2] / "pyvenv.cfg").write_text("include-system-site-packages = true\n")
    assert check(run(sites, TWO)) == []


def test_an_environment_without_verifiers_says_nothing_of_environments(sites: Path) -> None:
    (sites / "verifiers/__init__.py").unlink()
    (sites / "verifiers").rmdir()
    assert check(run(sites, TWO)) == []


def test_a_version_in_the_id_is_an_error_before_it_was_cut_off(sites: Path, tmp_path: Path) -> None:
    text = '[[orchestrator.env]]\nid = "owner/present@0.1.1"\n'
    (found,) = check(run(sites, text, roots=launcher(tmp_path / "january")))
    assert (found.id, found.where.line) == ("environment-version-in-id", 2)
    assert 'id = "owner/present"' in found.remedy
    assert check(run(sites, text, roots=launcher(tmp_path / "march", CUTS))) == []


def test_arguments_that_load_environment_does_not_take(sites: Path) -> None:
    text = '[[orchestrator.env]]\nid = "present"\n[orchestrator.env.args]\nsplit = "train"\nseeed = 42\n'
    (found,) = check(run(sites, text))
    assert (found.id, found.where.line) == ("environment-args", 5)
    assert "takes no seeed; it takes split, mode" in found.sentence
    (sites / "present.py").write_text("def load_environment(split, **kwargs): ...\n")
    assert check(run(sites, text)) == []
    (sites / "present.py").write_text("def load_environment(split, *, secret, **kwargs): ...\n")
    assert "needs secret" in check(run(sites, text))[0].sentence


ODD = """
orchestrator = { env = [1, "x", { id = 7 }, { id = "None" }, { id = "" }], train = 5, eval = { source = "x" } }
"""


def test_odd_values_never_raise(sites: Path) -> None:
    assert check(run(sites, ODD)) == []
    assert check(subject("orchestrator = 3")) == []


# ---------------------------------------------------------------- asked in the interpreter


def test_an_import_that_fails_is_told_with_the_line_of_the_environments_own_code(sites: Path) -> None:
    (sites / "present.py").write_text("import json\n\nimport a_library_that_is_not_there\n")
    (found,) = slow_findings(run(sites, '[[orchestrator.env]]\nid = "present"\n'))
    assert (found.id, found.where.line) == ("environment-import", 2)
    assert "ModuleNotFoundError: No module named 'a_library_that_is_not_there'" in found.sentence
    assert f"({sites / 'present.py'}, line 3)" in found.sentence


def test_an_import_that_works_says_nothing_and_runs_without_gpus_and_without_leaving_anything(sites: Path) -> None:
    seen = sites / "seen"
    (sites / "present.py").write_text(
        "import os\nfrom os import environ as e\n"
        f"open({str(seen)!r}, 'w').write(e['CUDA_VISIBLE_DEVICES'] + '|' + e['WANDB_MODE'])\n{LOADS}"
    )
    assert slow_findings(run(sites, '[[orchestrator.env]]\nid = "present"\n')) == []
    assert seen.read_text() == "|disabled"
    assert not list(sites.glob("__pycache__"))


def test_a_module_of_the_same_name_that_is_no_environment(sites: Path) -> None:
    (sites / "present.py").write_text("x = 1\n")
    (found,) = slow_findings(run(sites, '[[orchestrator.env]]\nid = "present"\n'))
    assert "has no load_environment" in found.sentence


def test_an_import_that_ends_the_interpreter_or_never_ends(sites: Path) -> None:
    (sites / "present.py").write_text("import os, sys\nprint('the last words', flush=True)\nos._exit(3)\n")
    (found,) = slow_findings(run(sites, '[[orchestrator.env]]\nid = "present"\n'))
    assert "exit code 3: the last words" in found.sentence
    (sites / "present.py").write_text("import time\ntime.sleep(600)\n")
    (found,) = slow_findings(run(sites, '[[orchestrator.env]]\nid = "present"\n'), timeout_s=1)
    assert (found.id, found.weight) == ("environment-slow", "note")


def test_what_only_lacks_a_gpu_here_is_no_error(sites: Path) -> None:
    (sites / "present.py").write_text("raise RuntimeError('No CUDA GPUs are available')\n")
    (found,) = slow_findings(run(sites, '[[orchestrator.env]]\nid = "present"\n'))
    assert found.weight == "warning"


def test_arguments_are_checked_with_the_real_signature(sites: Path) -> None:
    (sites / "present.py").write_text("import functools\n\nload_environment = functools.partial(dict)\n" + LOADS)
    text = '[[orchestrator.env]]\nid = "present"\nargs = { difficulty = "mixed" }\n'
    (found,) = slow_findings(run(sites, text))
    assert "takes no difficulty" in found.sentence


def test_a_missing_one_is_missing_also_when_asked(sites: Path) -> None:
    assert ids(list(slow_findings(run(sites, TWO)))) == ["environment-missing"]


def test_a_module_that_only_lies_in_the_checkout_is_not_installed(sites: Path) -> None:
    (sites.parents[3] / "absent_env.py").write_text(LOADS)
    assert ids(list(slow_findings(run(sites, TWO)))) == ["environment-missing"]


def test_an_interpreter_that_cannot_be_run_is_a_note(sites: Path) -> None:
    (sites.parents[2] / "bin/python").write_text("#!/nowhere/at/all\n")
    (found,) = slow_findings(run(sites, '[[orchestrator.env]]\nid = "present"\n'))
    assert (found.id, found.weight) == ("environment-not-asked", "note")
