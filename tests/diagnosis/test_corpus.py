"""Failures of public threads, labelled before ``diagnose`` was asked (corpus/README.md): how many does it name?

The labels' own words are joined to names of signatures here. ``EXCEPTION``: the thread found that the exception
itself is the cause, so it is enough that its last line is shown.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from supervisor.diagnosis.causes import CALLED_UNKNOWN, Diagnosis, diagnose
from supervisor.diagnosis.scan import scan
from supervisor.diagnosis.telling import text

CORPUS: Final = Path(__file__).parent / "corpus"
EXCEPTION: Final = {CALLED_UNKNOWN}
NAMES: Final[dict[str, set[str]]] = {
    "batch-size-does-not-divide": {"sizes-do-not-divide"},
    "build-lacks-this-gpu": {"gpu-without-kernels"},
    "bus-error": {"bus-error"},
    "chat-template-drops-earlier-tokens": {"token-prefix-mismatch"},
    "checkpoint-does-not-fit-the-model": {"checkpoint-other-shape"},
    "compile-failed": {"compile-failed"},
    "compiled-extension-does-not-fit-torch": {"library-mismatch", "cuda-libraries-mixed"},
    "compiler-missing": {"compiler-missing"},
    "config-refused": {"config-invalid", "engine-config-invalid", "engine-option-unknown", "command-arguments-wrong"},
    "crash-in-a-library": {"instruction-failed"},
    "cuda-call-failed": {"cuda-call-failed"},
    "cuda-kernel-fault": {"cuda-illegal-access"},
    "cuda-oom": {"cuda-oom", "cuda-oom-engine"},
    "device-side-assert": {"cuda-illegal-access", "token-out-of-range"},
    "disk-full": {"disk-full", "ray-disk-full", "checkpoint-not-written"},
    "driver-too-old": {"driver-too-old"},
    "engine-keeps-a-dead-trainers-communicator": {"engine-group-left"},
    "engine-never-came-up": {"connection-refused"},
    "engine-worker-hang": {"engine-rpc-timeout"},
    "every-rollout-failed": {"batch-empty"},
    "every-rollout-filtered": {"batch-empty"},
    "fabric-manager-not-running": {"fabric-manager-missing"},
    "fewer-gpus-than-asked": {"ray-resources-short"},
    "gpu-hardware": {"gpu-fault"},
    "gpu-memory-taken-at-start": {"gpu-memory-taken"},
    "hangup": {"ended-from-outside"},
    "hub-download-broke": {"hub-transfer-failed"},
    "hub-gated": {"model-gated"},
    "hub-offline-and-not-in-the-cache": {"hub-offline"},
    "hub-rate-limit": {"hub-rate-limited"},
    "hub-server-failed": {"hub-failing"},
    "hub-unreachable": {"hub-unreachable"},
    "judge-key-refused": {"openai-key-missing"},
    "killed": {"killed", "oom-killer", "host-memory-full", "ray-memory-full", "ray-worker-died"},
    "kv-cache-smaller-than-one-request": {"kv-cache-too-small"},
    "nccl-fails-when-weight-sync-starts": {"nccl-error"},
    "nccl-timeout": {"nccl-timeout"},
    "network-between-nodes": {"nccl-network"},
    "network-interface-named-wrong": {"nccl-interface", "gloo-not-connected"},
    "no-memory-for-kv-cache": {"kv-cache-too-small"},
    "no-more-threads": {"threads-exhausted"},
    "nothing-requires-grad": {"no-gradient"},
    "orchestrator-lost-the-engine": {"connection-error", "connection-refused"},
    "package-not-installed": {"packages-not-installed"},
    "parameters-without-gradient-under-ddp": {"gradients-unused"},
    "port-taken": {"port-in-use"},
    "prompt-too-long": {"prompt-too-long", "max-tokens-too-large"},
    "python-bug-in-engine": EXCEPTION,
    "python-bug-in-rollout": EXCEPTION,
    "python-bug-in-trainer": EXCEPTION,
    "ray-has-no-room-for-the-actor": {"ray-resources-short"},
    "ray-head-not-reached": {"ray-head-unreachable"},
    "ray-node-lost": {"ray-node-lost"},
    "sampling-not-finite": {"sampling-not-finite"},
    "shared-memory-full": {"shared-memory-full"},
    "too-many-open-files": {"too-many-files"},
    "toolkit-too-old": {"toolkit-too-old", "flashinfer-gpu-unfit"},
    "trainer-and-engine-share-a-gpu": {"nccl-duplicate-gpu"},
    "trainer-lost-the-engine": {"connection-refused"},
    "versions-do-not-fit (Ray or Python of two nodes)": {"ray-versions-differ"},
    "versions-do-not-fit (environment and verifiers)": {"environment-broken"},
    "versions-do-not-fit (TRL and vLLM)": {"versions-differ", "arguments-differ"},
    "versions-do-not-fit (flashinfer and its cubins)": {"packages-disagree"},
    "versions-do-not-fit (server and vLLM)": {"arguments-differ"},
    "versions-do-not-fit (verifiers and TRL)": {"library-mismatch", "cuda-libraries-mixed"},
    "wandb-no-key": {"key-missing"},
    "wandb-process-died": {"wandb-service-failed", "wandb-connection-lost"},
    "wandb-refused": {"wandb-refused"},
    "wandb-service-did-not-start": {"wandb-service-failed"},
    "wandb-unreachable": {"wandb-unreachable"},
    "weights-file-truncated": {"hub-download-cut", "weights-file-broken"},
}

# The label's words missed it: read by a person, the advice is what the thread found.
THE_SAME_ADVICE: Final = {
    "torch-ecc": "another pod is another machine",
    "vllm-engine-stopped-answering-its-workers": "to restart the engine and to look at its GPUs",
}

STILL_OPEN: Final = {
    "prime-rl-token-prefix-boxes": "the log is cut inside the traceback",
    "trl-server-never-started": "the trainer waits for an engine, and only its own waiting is told",
    "verifiers-connection-error": "the log is cut inside the traceback",
    "verifiers-trainer-of-another-trl": "an AttributeError says nothing of versions",
}
NO_REMEDY: Final = {
    "prime-rl-max-vio": "an exception of the program's own: nobody has described it",
    "verl-union-of-unequal-batches": "the same",
    "trl-attribute-of-a-subclass": "the same",
    "trl-nan-logprob": "the same",
    "trl-no-images-in-the-rows": "the same",
    "vllm-assertion-in-attention": "the same",
    "vllm-assertion-in-the-scheduler": "the same",
}
FLOORS: Final = {"first": (57, 55), "second": (45, 40)}  # roots and remedies


@dataclass(frozen=True)
class Case:
    name: str
    label: dict[str, str]
    log: bytes
    corpus: str


@dataclass(frozen=True)
class Judged:
    """``root``: right, wrong or silent; of a healthy log right is to be silent."""

    root: str
    remedy: bool
    said: str


def _cases() -> list[Case]:
    found = []
    for path in sorted(CORPUS.rglob("*.txt")):
        for one in re.split(r"(?m)^=== ", path.read_text(encoding="utf-8"))[1:]:
            head, _, log = one.partition("\n---\n")
            name, *labels = head.splitlines()
            label = dict(line.split(": ", 1) for line in labels)
            whole = log.strip("\n").replace("␛", "\x1b") + "\n"
            found.append(Case(name, label, whole.encode(), "first" if path.parent == CORPUS else path.parent.name))
    return found


def _judged(case: Case) -> Judged:
    logs = scan(io.BytesIO(case.log), "job.log")
    *_, told = found = diagnose(logs)
    said = text(found, logs, [])
    if case.label["root"] == "none":
        return Judged("right" if told.root is None else "wrong", True, said)
    if told.root is None:
        return Judged("silent", False, said)
    names = NAMES.get(case.label["root"]) or NAMES[case.label["root"].partition(" (")[0]]
    right = told.root.name in names and (names is not EXCEPTION or case.label["line"] in said)
    return Judged("right" if right else "wrong", _is_advised(case, told), said)


def _is_advised(case: Case, told: Diagnosis) -> bool:
    """Only what the program advises counts, and not what the job's own line says."""
    assert told.root is not None
    advice = " ".join((told.root.remedy, *told.root.notes))
    if told.root.name == CALLED_UNKNOWN:
        return False
    return case.name in THE_SAME_ADVICE or re.search(case.label["says"], advice, re.IGNORECASE) is not None


CASES: Final = _cases()


def test_the_corpus_is_large_and_spread_and_mostly_solved() -> None:
    failures = [case for case in CASES if case.label["root"] != "none"]
    for corpus, least in (("first", 50), ("second", 36)):
        assert sum(case.corpus == corpus for case in failures) >= least
        assert sum(case.corpus == corpus and case not in failures for case in CASES) >= 10
    assert sum(case.label["found"] == "yes" for case in failures) >= len(failures) * 2 / 3
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.label["line"].encode() in case.log for case in failures)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_was_named_stays_named(case: Case) -> None:
    judged = _judged(case)
    if case.name not in STILL_OPEN:
        assert judged.root == "right", judged.said
    if case.name not in STILL_OPEN and case.name not in NO_REMEDY:
        assert judged.remedy, judged.said


@pytest.mark.parametrize("corpus", FLOORS)
def test_the_score(corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    judged = [_judged(case) for case in CASES if case.label["root"] != "none" and case.corpus == corpus]
    count = {kind: sum(one.root == kind for one in judged) for kind in ("right", "wrong", "silent")}
    remedies = sum(one.remedy for one in judged)
    with capsys.disabled():
        print(f"\nCorpus {corpus}: {len(judged)} failures, roots {count}, remedies {remedies}")
    roots, advised = FLOORS[corpus]
    assert count["right"] >= roots
    assert remedies >= advised
