"""Whom the ranks of a collective operation waited for, also where a log shows only some of them."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.ranks import Ranks

WORLD = "Starting RL trainer in World(world_size={}, rank=0, local_rank=0)"
TIMED_OUT = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=80"


def told(world: int | None, timed_out: tuple[int, ...]) -> Ranks:
    ranks = Ranks()
    if world is not None:
        ranks.size(WORLD.format(world))
    for rank in timed_out:
        ranks.feed(TIMED_OUT.format(rank) + " NCCL")
    return ranks


@pytest.mark.parametrize(
    ("world", "timed_out", "root", "sentence"),
    [
        (4, (0, 1, 3), [2], "nothing of rank 2 is in these logs"),
        (4, (0, 1, 2), [3], "nothing of rank 3 is in these logs"),
        (None, (0, 1, 3), [2], "nothing of rank 2 is in these logs"),
        (4, (0, 1, 2, 3), [], "All 4 ranks timed out in the same operation"),
        (None, (0, 1), [], "All 2 ranks in these logs timed out"),
        # torchrun can be told to show one rank of each machine: those that it does not show are no culprits.
        (4, (0,), [], "Rank 0 waited in ALLREDUCE number 812. The other ranks' logs would say which rank it waited"),
        (16, (0, 8), [], "The other ranks' logs would say which rank they waited for."),
        (999_999, (0, 1), [], "The other ranks' logs"),
    ],
)
def test_a_rank_that_says_nothing(
    world: int | None, timed_out: tuple[int, ...], root: list[int], sentence: str
) -> None:
    found, said = told(world, timed_out).root()
    assert found == root
    assert sentence in said


def test_a_log_of_one_rank_says_that_there_is_such_a_rank() -> None:
    ranks = told(None, (0, 1, 2))
    ranks.see_name("logs/trainer/rank_3.log")
    assert ranks.root()[0] == [3]
