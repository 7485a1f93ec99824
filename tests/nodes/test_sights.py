"""What an agent tells of its machine's GPUs, memory and engines."""

from __future__ import annotations

from supervisor.core import facts as f
from supervisor.jobs.base import Place, visible_gpus
from supervisor.nodes.sights import OomSights, find_role, is_worth_saying


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


def test_a_kill_for_want_of_memory_is_told_once_and_never_one_of_before() -> None:
    told: list[object] = []
    sights = OomSights(told.append, list)
    for kills, count in ((None, 0), (3, 0), (3, 0), (None, 0), (4, 1), (4, 1), (0, 1), (1, 2)):
        sights.take(f.HostLook(oom_kills=kills))
        assert len(told) == count, kills


def test_what_a_variable_names_as_gpus_is_read_as_cuda_reads_it() -> None:
    for text, names in (("0,1,", ("0", "1")), ("0, 1", ("0", "1")), ("", ()), ("GPU-ab", ("GPU-ab",))):
        assert visible_gpus({"CUDA_VISIBLE_DEVICES": text}) == names
    assert visible_gpus({}) is None


def test_an_engine_that_is_well_is_told_of_less_often() -> None:
    well = f.EngineLook("", "ok", "unknown", iterations=3.0, running=2)
    assert not is_worth_saying(well)
    for other in ({"health": "timeout"}, {"liveness": "ok"}, {"liveness": "bad"}, {"canary": "timeout"}):
        assert is_worth_saying(f.EngineLook("", **{"health": "ok", "liveness": "absent", **other})), other
