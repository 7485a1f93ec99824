"""Which machine of an allocation this is."""

from __future__ import annotations

import pytest

from supervisor.nodes.allocation import Seat, choose_machines, expand_hosts, find_seat, seat_of_pod


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12],login", ["n08", "n09", "n10", "n12", "login"]),
        ("r[1-2]c[1,3]", ["r1c1", "r1c3", "r2c1", "r2c3"]),
        ("gpu-[1-2].example.org", ["gpu-1.example.org", "gpu-2.example.org"]),
    ],
)
def test_slurms_list_of_hosts(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize("text", ["n[1-x]", "n[-3]", "n[1-999999999]", "n[]"])
def test_what_is_no_list_of_hosts(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        expand_hosts(text)


def test_the_seat() -> None:
    slurm = {"SLURM_NODEID": "2", "SLURM_JOB_NODELIST": "n[1-4]"}
    assert find_seat(slurm) == Seat("n3", 2)
    assert find_seat({**slurm, "SLURMD_NODENAME": "other"}) == Seat("other", 2)
    sky = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n"}
    assert find_seat(sky) == Seat("10.0.0.2", 1)
    pod = {"JOB_COMPLETION_INDEX": "3", "RL_SUPERVISOR_LABEL": "run-machines-0-3-x7k2p"}
    assert find_seat(pod) == Seat("run-machines-0-3-x7k2p", 3)
    assert find_seat({}).rank == 0


def test_machines_to_avoid_are_taken_only_where_there_is_no_other_and_each_keeps_its_place() -> None:
    ranks = {"n0": 0, "n1": 1, "n2": 2, "n3": 3}
    assert choose_machines(ranks, (), 3) == ["n0", "n1", "n2"]
    assert choose_machines(ranks, ("n1",), 3) == ["n0", "n2", "n3"]
    assert choose_machines(ranks, ("n3", "n1"), 3) == ["n0", "n2", "n3"], "the first of them is the least bad"
    assert choose_machines(ranks, ("n9", "n0"), 4) == ["n0", "n1", "n2", "n3"]


def test_a_pod_of_an_indexed_job_knows_what_its_successor_will_have_in_common_with_it() -> None:
    assert seat_of_pod("run-machines-0-2-x7f2p", {"JOB_COMPLETION_INDEX": "2"}) == "run-machines-0-2"
    assert seat_of_pod("run-machines-0-2-x7f2p", {"JOB_COMPLETION_INDEX": "12"}) == ""
    assert seat_of_pod("gpu-0-1", {}) == ""
    assert seat_of_pod("n2", {"JOB_COMPLETION_INDEX": "2"}) == ""
