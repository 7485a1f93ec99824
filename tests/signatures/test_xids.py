"""The table of Xid codes: what NVIDIA's driver reports, and what has to be done about it."""

from __future__ import annotations

import pytest

from supervisor.core.observe_job import FATAL_XIDS, HARMLESS_XIDS, LINK_XIDS
from supervisor.signatures import any_job
from supervisor.signatures.xids import WHAT_TO_DO, seen_in, xids

COMMON = (13, 31, 43, 45, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 109, 119, 120, 121, 122, 123, 124, 137, 140, 143, 154)


def test_every_common_code_has_a_meaning_and_something_to_do() -> None:
    assert set(COMMON) | set(range(144, 151)) <= set(xids())
    for xid in xids().values():
        assert xid.sentence.endswith("."), xid
        assert xid.remedy == WHAT_TO_DO[xid.action]
        assert not xid.note or xid.note.endswith("."), xid


def test_what_the_core_takes_for_a_lost_gpu_needs_more_than_a_restart() -> None:
    assert {xids()[code].action for code in FATAL_XIDS | LINK_XIDS} <= {"reset", "reboot"}


def test_what_the_core_never_holds_against_a_gpu_is_what_the_table_calls_a_notice_or_a_consequence() -> None:
    assert {code for code, xid in xids().items() if xid.action in ("none", "follow")} == HARMLESS_XIDS


@pytest.mark.parametrize(
    ("line", "code", "name"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.", 79, "gpu-fault"),
        ("[Tue Jan  6 03:00:12 2026] NVRM: Xid (PCI:0000:05:00): 31, pid=1, MMU Fault", 31, "xid-of-the-program"),
        ("NVRM: Xid (PCI:0000:05:00): 45, pid=4242, name=python3, Ch 00000008", 45, "xid-of-a-cleanup"),
        ("NVRM: Xid (PCI:0000:05:00): 63, Row Remapper: New row marked for remapping", 63, "xid-notice"),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, name=python3, Contained", 94, "xid-of-the-program"),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:02): 43, pid=1, name=a, Ch 00000008", 43, "xid-of-a-cleanup"),
        ("NVRM: Xid (PCI:0000:05:00): 127, pid=4242, name=python3, Ch 00000008", 127, "xid-of-the-program"),
        ("NVRM: Xid (PCI:0000:05:00): 163, Power smoothing disengaged", 163, "xid-notice"),
        ("NVRM: Xid (PCI:0000:05:00): 119, pid=1, Timeout after 6s of waiting for RPC response", 119, "gpu-fault"),
    ],
)
def test_a_line_of_the_kernel_is_read_and_sorted_by_what_its_code_asks_for(line: str, code: int, name: str) -> None:
    found, signature = seen_in(line), any_job().match("job", line, diagnosing=True)
    assert found is not None
    assert found[0] == code
    assert signature is not None
    assert signature.name == name


def test_the_registry_sorts_each_code_as_the_table_does() -> None:
    names = {"restart": {"xid-of-the-program"}, "follow": {"xid-of-a-cleanup"}, "none": {"xid-notice", "gpu-fault"}}
    for code, xid in xids().items():
        signature = any_job().match("job", f"NVRM: Xid (PCI:0000:05:00): {code}, pid=1", diagnosing=True)
        assert signature is not None
        assert signature.name in names.get(xid.action, {"gpu-fault"}), code


def test_a_code_that_nobody_described_is_still_a_fault() -> None:
    assert seen_in("NVRM: Xid (PCI:0000:05:00): 999, pid=1") == (999, None)
    assert seen_in("all is well") is None
