"""Asks whether a known vulnerability is in what the daemon runs with: `python -m tests.audit`, or `make audit`.

Looked at are the packages that an installed daemon has (its dependencies and theirs, with no extra), in the versions of
constraints.txt. Three ends: nothing known is found (0), something is (1, with the list), or the question could not be
asked (0, with "did not run" and why): no CI may fail because a stranger's service is away.

pip-audit ends with 1 both for a finding and for a service that it cannot reach (pip_audit/_cli.py, 2.10: ``_fatal`` and
the end of ``audit``); what tells them apart is its report on stdout, which only an audit that was made has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROJECT = "rl-supervisor"
TIMEOUT_S = 180.0
REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?[^;]*(?:;(.*))?")


class DidNotRunError(Exception):
    """The question could not be asked: why, a clause for people."""


def name_of(text: str) -> str:
    """A package's name as all spellings of it are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", text).lower()


def pinned(constraints: str) -> dict[str, str]:
    """Name to version, of the lines ``name==version``."""
    lines = (line.partition("#")[0].strip().partition("==") for line in constraints.splitlines())
    return {name_of(name): version.strip() for name, equals, version in lines if equals}


def runtime(project: str = PROJECT) -> set[str]:
    """Names of all packages that the installed project needs; what is for an extra, or not installed here, is not."""
    found: set[str] = set()
    todo = [project]
    while todo:
        try:
            needs = metadata.requires(todo.pop()) or []
        except metadata.PackageNotFoundError:
            continue  # for another system or Python
        for need in needs:
            match = REQUIREMENT.match(need)
            if match and "extra" not in (match[2] or "") and (name := name_of(match[1])) not in found:
                found.add(name)
                todo.append(match[1])
    return found


def requirements(names: set[str], versions: Mapping[str, str]) -> list[str]:
    """One line a package. Raises SystemExit for one without a pinned version: then nobody knows what is asked."""
    installed = {name_of(one.metadata["Name"]) for one in metadata.distributions()}
    wanted = sorted(names & installed)
    if unpinned := [name for name in wanted if name not in versions]:
        raise SystemExit(
            f"constraints.txt has no version of {', '.join(unpinned)}: add them, the daemon runs with them."
        )
    return [f"{name}=={versions[name]}" for name in wanted]


def audited(lines: Sequence[str], command: Sequence[str]) -> list[dict[str, Any]]:
    """What pip-audit says of each package. Raises DidNotRunError."""
    with tempfile.TemporaryDirectory(prefix="audit-") as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text("\n".join(lines) + "\n")
        # No dependency is looked up and nothing is installed: the list is whole, and each version is said.
        words = [*command, "--requirement", str(file), "--no-deps", "--disable-pip", "--format", "json"]
        words += ["--progress-spinner", "off", "--cache-dir", f"{folder}/cache"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except OSError as error:
            raise DidNotRunError(f"{command[0]} cannot be run ({error.strerror})") from error
        except subprocess.TimeoutExpired:
            raise DidNotRunError(f"no answer within {TIMEOUT_S:.0f} s") from None
    told = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}, and no word"])[-1]
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        raise DidNotRunError(told[-300:]) from None
    if done.returncode not in (0, 1) or not isinstance(found, list):
        raise DidNotRunError(told[-300:])
    return found


def report(found: Sequence[Mapping[str, Any]], asked: int) -> tuple[int, list[str]]:
    """Exit code and sentences. What a service did not know is named: it was not looked at."""
    bad = [
        f"  {one['name']} {one['version']}: {flaw['id']}"
        f" ({', '.join(flaw.get('aliases') or ()) or 'no other name'}), mended in"
        f" {', '.join(flaw.get('fix_versions') or ()) or 'no version yet'}"
        for one in found
        for flaw in one.get("vulns") or ()
    ]
    skipped = [f"{one['name']} ({one['skip_reason']})" for one in found if one.get("skip_reason")]
    told = [f"Not looked at: {'; '.join(skipped)}."] if skipped else []
    if len(found) - len(skipped) == 0:
        raise DidNotRunError("the service knows none of the packages")
    if bad:
        return 1, [*told, "Known vulnerabilities in what the daemon runs with:", *bad]
    return 0, [*told, f"No known vulnerability in {len(found) - len(skipped)} of {asked} packages."]


def main(argv: Sequence[str]) -> int:
    """See the module's own text."""
    parser = argparse.ArgumentParser(prog="python -m tests.audit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("more", nargs="*", help="further words for pip-audit, after --")
    options = parser.parse_args(argv)
    lines = requirements(runtime(), pinned(options.constraints.read_text()))
    command = os.environ.get("PIP_AUDIT", "").split() or [sys.executable, "-m", "pip_audit"]
    try:
        code, told = report(audited(lines, [*command, *options.more]), len(lines))
    except DidNotRunError as error:
        code, told = 0, [f"The audit of {len(lines)} packages did not run: {str(error).rstrip('.')}."]
    print("\n".join(told))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
