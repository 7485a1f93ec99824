"""Failures that were labelled by people who had not seen ``diagnose`` (corpus/README.md): each names its root still."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from supervisor.diagnosis.causes import ENDED, Diagnosis, diagnose
from supervisor.diagnosis.places import open_unpacked, sources
from supervisor.diagnosis.scan import scan

CORPUS: Final = Path(__file__).parent / "corpus"
NO_LINE_END: Final = "<no line end>"
REMEDIES: Final = {
    "third": 57,
    "fourth": 47,
    "fifth": 50,
    "sixth": 47,
    "seventh": 36,
    "eighth": 47,
    "ninth": 43,
    "tenth": 46,
    "eleventh": 49,
    "twelfth": 45,
}
"""How many failures of each corpus are given their remedy."""
STILL_OPEN: Final = {
    "fourth-f26": "a proxy between orchestrator and engine, which only the body of an answer shows",
    "fourth-f35": "a 400 of the engine whose text is not in the trainer's log",
    "fourth-f46": "two days in one log",
    "fourth-f47": "the reward server's own log has no time, and its name is not one of the parts",
    "fifth-g40": "a rank that had no more batches says so in a line of its own program, before the others' time-out",
    "fifth-g47": "trainer and orchestrator wait for each other: said as a hint, for a run may get over it",
    "sixth-s32": "nan after each resume: the local checkpoint is in the remedy, the first line says the nan",
    "seventh-u11": "a long save of the whole state is seen as the time-out of the other ranks alone",
    "seventh-u17": "a 500 of the engine whose text is not in the trainer's log",
    "seventh-u21": "the answer of the registry stands above pyxis' own word",
    "seventh-u24": "that one rank left generation early is in no line",
    "seventh-u26": "that the ranks had different numbers of samples is in no line",
    "seventh-u27": "kubectl's description of a pod, in a .txt beside a log",
    "eighth-v02": "sandboxes that time out come before the marker that the trainer waits for",
    "eighth-v42": "a tool server that is slow: no reward is told in its trainer's steps",
    "eighth-v49": "both wait for each other: the line that names the folder stands above the last one",
    "eighth-v50": "that scoring hung is in no line of its own",
    "ninth-x05": "a deadlock of the weight sync is seen as the time-out of the other ranks alone",
    "ninth-x13": "a warning of each answer, beside rewards that are not zero",
    "ninth-x27": "a time-out without words, of which a known one is made",
    "ninth-x56": "an error of each abort, half an hour before the engine dies",
    "ninth-x62": "two ranks with one number, in ordinary lines",
    "tenth-y02": "a deadlock after a resume is seen as the time-out of a rank alone",
    "tenth-y11": "that the engine sleeps is in an ordinary line",
    "tenth-y44": "the call that fails is only in the traceback's middle",
    "eleventh-z14": "an engine sent to sleep with requests in it: a healthy run beside a trainer says the same",
    "twelfth-w01": "a deadlock after a resume is seen as the other side's time-out alone",
    "seventh-u49": "two versions of Ray, in a warning behind which Slurm ends the step",
}


@dataclass
class Case:
    """One run: the label that was written first, and its logs by their paths."""

    name: str
    label: dict[str, Any]
    logs: dict[str, list[str]] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        for name, lines in self.logs.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            whole = "\n".join((*lines, "")) if lines[-1:] != [NO_LINE_END] else "\n".join(lines[:-1])
            path.write_text(whole.replace("␛", "\x1b").replace("␍", "\r"), newline="")
        return folder


def cases_of(corpus: str) -> list[Case]:
    found: list[Case] = []
    for line in (CORPUS / corpus / "cases.log").read_bytes().decode().split("\n")[:-1]:
        if line.startswith("=== "):
            name, label = line[4:].split(" ", 1)
            found.append(Case(f"{corpus}-{name}", json.loads(label)))
        elif line.startswith("--- "):
            lines = found[-1].logs[line[4:]] = []
        else:
            lines.append(line.removeprefix("\\"))
    return found


def diagnosed(folder: Path) -> Diagnosis:
    logs = []
    for source in sources(folder):
        with open_unpacked(source, None) as stream:  # type: ignore[arg-type]  # it has files of its own
            logs += scan(stream, source.name, source.role, attempt=source.attempt, kernel=source.kernel)
    return diagnose(logs)[-1]


def names_the_root(case: Case, told: Diagnosis) -> bool:
    """The first thing that a person reads has one of the label's words, and says nothing that the label calls wrong."""
    if told.root is None:
        return False
    said = f"{told.root.name} {told.root.sentence}"
    code = told.root.own.code if told.root.own else ""
    whole = " ".join((said, told.root.text, *told.root.more, code, *told.root.notes))
    right = any(re.search(word, whole, re.IGNORECASE) for word in case.label["root_words"])
    return right and not any(re.search(word, said, re.IGNORECASE) for word in case.label["wrong"])


def gives_the_remedy(case: Case, told: Diagnosis) -> bool:
    return told.root is not None and any(
        re.search(word, told.root.remedy, re.IGNORECASE) for word in case.label["remedy_words"]
    )


def is_accused(told: Diagnosis) -> bool:
    """Is a failure named? That a person pressed Ctrl-C is none."""
    return told.root is not None and not (told.root.name == ENDED and "pressed Ctrl-C" in told.root.sentence)


@pytest.mark.parametrize("corpus", REMEDIES)
def test_each_root_stays_named_and_no_healthy_run_is_accused(corpus: str, tmp_path: Path) -> None:
    told = [(case, diagnosed(case.write(tmp_path / case.name))) for case in cases_of(corpus)]
    failures = [(case, one) for case, one in told if not case.label.get("healthy")]
    assert len(failures) >= 40
    accused = {case.name: one.root for case, one in told if case.label.get("healthy") and is_accused(one)}
    assert not accused
    wrong = {case.name: (case.label["root"], one.root) for case, one in failures if not names_the_root(case, one)}
    assert wrong.keys() <= STILL_OPEN.keys(), {name: wrong[name] for name in wrong.keys() - STILL_OPEN.keys()}
    assert sum(gives_the_remedy(case, one) for case, one in failures) >= REMEDIES[corpus]
