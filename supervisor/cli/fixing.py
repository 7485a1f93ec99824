"""``rl-supervisor check --fix``: the certain remedies as a diff, and with ``--write`` in their files."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from supervisor.base.secrets import mask_secrets
from supervisor.cli import findings
from supervisor.cli.render import PLAIN, safe
from supervisor.preflight import fixes as patching
from supervisor.preflight.finding import Finding
from supervisor.preflight.fixes import Fixes


def show(found: Sequence[Finding], *, write: bool, command: str) -> Fixes:
    """Print the patch to stdout, where nothing else goes; what is to be said of it goes to stderr.

    ``write``: put it in place, too. ``command``: the same check, to be typed again. Raises FixError for the first file
    that cannot be written; those before it are.
    """
    made = patching.fixes(found)
    for patch in made.patches:
        sys.stdout.write(patch.diff())
        if mask_secrets(patch.diff()) != patch.diff():
            _print_sentence(
                f"A secret in {patch.file} is shown as ***: `patch` will not take this diff, --fix --write will."
            )
    sys.stdout.flush()
    _say_what_was_made(made, found, write=write)
    if write:
        _put_files(made)
    elif made.patches:
        _print_sentence(f"Nothing is written yet: {command} --fix --write")
    return made


def _say_what_was_made(made: Fixes, found: Sequence[Finding], *, write: bool) -> None:
    minded = [one for one in found if one.weight != "note"]
    if not made.patches:
        _print_sentence(
            "No finding has a remedy that is certain enough to be a patch." if minded else "There is nothing to mend."
        )
    else:
        _print_sentence(f"Mended by this patch: {', '.join(dict.fromkeys(_name_finding(one) for one in made.mended))}.")
    # After --write the check tells all that is left. No patch is asked for what is wrong with the machine.
    if not write and (rest := [one for one in minded if one not in made.mended and one.where.file]):
        _print_sentence("A person has to decide:")
        for line in findings.lines(rest, brief=True, paint=PLAIN, columns=None):
            _print_sentence(f"  {line}")
    for one, reason in made.left:
        _print_sentence(f"{one.id} is left out: {reason}. Check again after this patch.")


def _name_finding(one: Finding) -> str:
    return f"{one.id} (line {one.where.line})" if one.where.line else one.id


def _put_files(made: Fixes) -> None:
    for patch in made.patches:
        kept = patching.write(patch)
        link = f", a link to {patch.file.resolve()}," if patch.file.is_symlink() else ""
        _print_sentence(f"{patch.file}{link} is written; its former text is {kept}.")


def _print_sentence(sentence: str) -> None:
    print(safe(sentence), file=sys.stderr, flush=True)
