"""What an agent tells of its machine's GPUs, memory and engines."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from supervisor.core import facts as f
from supervisor.jobs.base import Place, visible_gpus
from supervisor.nodes import efforts
from supervisor.nodes.sights import EffortSights, HostSights, Root, find_role, is_worth_saying, list_workers
from supervisor.nodes.wire import Message, now
from supervisor.process.survivors import process_table


def test_whose_a_gpu_is_where_that_can_be_told() -> None:
    first, second = (f.Gpu(f"GPU-{word}-1", n, 0, 1) for n, word in enumerate(("ab", "cd")))
    trainer = Place("n1", "trainer", 0, True, ("0",))
    engine = Place("n1", "inference", 0, False, ("GPU-CD",))
    router = Place("n1", "inference", 1, False, ())
    for places, roles in (
        ([], ("other", "other")),
        ([Place("n1", "orchestrator")], ("other", "other")),
        ([Place("n1", "trainer")], ("trainer", "trainer")),
        ([trainer, engine, router], ("trainer", "inference")),
        ([trainer, Place("n1", "inference", 0, False, ("0", "1"))], ("shared", "inference")),
        ([Place("n1", "trainer"), Place("n1", "inference")], ("other", "other")),
    ):
        assert (find_role(first, places), find_role(second, places)) == roles, places


RANKS = """
import subprocess, sys, time
if len(sys.argv) == 1:
    for rank in "01":
        subprocess.Popen([sys.executable, sys.argv[0], rank], env={"LOCAL_RANK": rank})
elif len(sys.argv) == 2:
    subprocess.Popen([sys.executable, sys.argv[0], sys.argv[1], "loader"])
time.sleep(60)
"""


def test_of_a_trainer_the_ranks_count_and_of_other_components_what_their_wrapper_started(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    top = subprocess.Popen(["/bin/bash", "-c", f"{sys.executable} {script}; true"])
    try:
        until = time.monotonic() + 20
        while len(below := psutil.Process(top.pid).children(recursive=True)) < 5:
            assert time.monotonic() < until, below
            time.sleep(0.02)
        words = {one.pid: one.cmdline()[2:] for one in below}
        for role, key, loaders in (("trainer", [["0"], ["1"]], {"trainer"}), ("orchestrator", [[]], {None})):
            found = list_workers([Root(role, os.getpid(), top.pid)], process_table())
            found = [one for one in found if one[1] in words]  # and what else these tests started
            assert sorted(words[pid] for _, pid, _, is_key in found if is_key) == key, role
            assert len(found) == 5 and {one for one, pid, *_ in found if "loader" in words[pid]} == loaders
            others = {one for one, pid, _, is_key in found if "loader" not in words[pid] and not is_key}
            assert others == {None}, "what computes below a trainer and is no rank's is seen to"
    finally:
        for one in [*below, psutil.Process(top.pid)]:
            one.kill()
        top.wait()
    assert list_workers([Root("inference", 1, 2, [(7, 70)])], process_table()) == [("inference", 7, 70, True)]


def test_what_all_machines_do_is_told_together_and_not_where_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = [100.0], []
    monkeypatch.setattr(efforts, "now", lambda: clock[0])
    all_of_them = efforts.Efforts(told.append)
    one = f.EffortLook((f.Effort("trainer", 4.0, 1.0),), "", 0.2, 3e6, 1e5, 0.0)
    other = f.EffortLook((f.Effort("trainer", 2.0, 0.5, "pid 7 in x"), f.Effort("env", 1.0, 1.0)), "", 0.1, 0.0, 2e5)
    both = ["n1", "n2"]
    all_of_them.hear("n1", 3, one, 0.0)
    all_of_them.hear("n2", 2, other, 0.0)
    all_of_them.tick(3, both)
    assert not told, "one is of an earlier attempt"
    all_of_them.hear("n2", 3, other, 1.0)
    all_of_them.tick(3, both)
    efforts_of_all = (f.Effort("env", 1.0, 1.0), f.Effort("trainer", 4.0, 0.5, "pid 7 in x on n2"))
    assert told == [f.EffortLook(efforts_of_all, "", 0.2, 3e6, 2e5, None)], "flushed is unknown on n2"
    clock[0] += 5
    all_of_them.hear("n1", 3, replace(one, helper_cores=8.0), 0.0)
    all_of_them.tick(3, both)
    assert len(told) == 1, "as seldom as on one machine"
    clock[0] += 5
    all_of_them.tick(3, both)
    assert told[-1].helper_cores == 8.0
    clock[0] += 40
    all_of_them.hear("n1", 3, one, 0.0)
    for _ in range(2):
        all_of_them.tick(3, both)
    assert [look.reason for look in told[2:]] == ["n2 does not tell what its processes do"], "once"
    all_of_them.tick(3, ["n1"], "an engine has no port")
    assert len(told) == 3, "said already that it is unknown"
    all_of_them.tick(3, ["n1"])
    assert told[-1] == replace(one, efforts=(f.Effort("trainer", 4.0, 1.0),)), "a start left n2 out"


def test_what_a_variable_names_as_gpus_is_read_as_cuda_reads_it() -> None:
    for text, names in (("0,1,", ("0", "1")), ("0, 1", ("0", "1")), ("", ()), ("GPU-ab", ("GPU-ab",))):
        assert visible_gpus({"CUDA_VISIBLE_DEVICES": text}) == names
    assert visible_gpus({}) is None


def test_an_engine_that_is_well_is_told_of_less_often() -> None:
    well = f.EngineLook("", "ok", "unknown", iterations=3.0, running=2)
    assert not is_worth_saying(well)
    for other in ({"health": "timeout"}, {"liveness": "ok"}, {"liveness": "bad"}, {"canary": "timeout"}):
        assert is_worth_saying(f.EngineLook("", **{"health": "ok", "liveness": "absent", **other})), other


def test_what_was_seen_last_is_kept_with_its_time_to_be_told_again() -> None:
    told: list[Message] = []
    host, effort = HostSights(told.append, list), EffortSights(told.append, lambda: (3, []))
    assert list(effort._list_all()) == host.newest == effort.newest == []
    host._take(f.HostLook(oom_kills=1))
    effort._take(f.EffortLook(helper_cores=1.0))
    for (when, message), said in zip([*host.newest, *effort.newest], told, strict=True):
        assert message is said and when <= now()
    assert told[1]["attempt"] == 3
