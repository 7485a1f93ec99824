"""The cluster that never was: what is drawn, what each policy loses by one fault, and the bound above all of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import pytest

from supervisor.base.errors import ConfigError
from supervisor.cli import simulate_cluster
from supervisor.cli.main import main
from supervisor.config.nodes import LEASE_S
from supervisor.simulator import cluster_compare as compare
from supervisor.simulator.cluster import (
    AGAIN,
    MIX,
    RACK,
    RATES,
    Cluster,
    Fault,
    Kind,
    Track,
    count_spares,
    draw_cluster,
)
from supervisor.simulator.cluster_head import QUEUE_S, OurRun

STEP_S, SAVE_S, LOAD_S, INTERVAL = 240.0, 30.0, 300.0, 5
FIRST_S = 1.0 + 20.0  # a look at the checkpoints, and a start
AT = 40_000.0


def cluster(machines: int, *faults: Fault, days: float = 1.0) -> Cluster:
    return Cluster(1, machines, days, (STEP_S,) * int(2 * days * 86_400 / STEP_S), faults)


def strike(kind: Kind, place: int, *, silent: bool = False, again: tuple[float, ...] = ()) -> Fault:
    return Fault(AT, kind, place, silent, again)


def steps_of(seconds: float) -> int:
    """Steps of so much work, each fifth followed by its save."""
    rounds, rest = divmod(seconds, INTERVAL * STEP_S + SAVE_S)
    return INTERVAL * int(rounds) + min(INTERVAL, int(rest // STEP_S))


def last_step(first_s: float, again_s: float, end_s: float = 86_400.0) -> int:
    """Of a job that was launched at the first time, struck at ``AT``, and launched anew at the other."""
    saved = INTERVAL * int((AT - first_s - LOAD_S) // (INTERVAL * STEP_S + SAVE_S))
    return saved + steps_of(end_s - again_s - LOAD_S)


def told(run: OurRun, event: str) -> list[tuple[float, str]]:
    return [(t, sentence) for t, said, sentence in run.said if said == event]


# ---------------------------------------------------------------- what is drawn


@pytest.mark.soak
def test_faults_come_as_often_as_was_published_and_of_the_same_kinds() -> None:
    machines, days, seeds = 512, 60.0, 8
    clusters = [draw_cluster(seed, machines, days) for seed in range(1, 4 * seeds + 1)]
    for number, rate in enumerate(RATES.values()):
        mine = clusters[number :: len(RATES)]
        expected = rate * (machines + count_spares(machines)) * days
        assert sum(len(one.faults) for one in mine) / len(mine) == pytest.approx(expected, rel=0.1)
    faults = [fault for one in clusters for fault in one.faults]
    kinds = Counter(fault.kind for fault in faults)
    for kind, count in MIX.items():
        assert kinds[kind] / len(faults) == pytest.approx(count / 419, abs=0.02)
    staying = [fault for fault in faults if fault.kind in ("crash", "hang")]
    assert sum(bool(fault.again) for fault in staying) / len(staying) == pytest.approx(AGAIN, abs=0.05)
    assert all(not fault.again for fault in faults if fault.kind in ("lost", "switch", "gpu"))


def test_llama_3_had_419_interruptions() -> None:
    assert sum(MIX.values()) == 419
    assert RATES["Llama 3"] * 54 * 16_384 / 8 == pytest.approx(419)


def test_a_track_has_steps_and_a_save_after_each_fifth() -> None:
    track = Track(cluster(8))
    assert track.seconds_to(0, 5) == LOAD_S + 5 * STEP_S
    assert track.seconds_to(0, 5, saved=True) == LOAD_S + 5 * STEP_S + SAVE_S
    assert track.seconds_to(5, 6) == LOAD_S + STEP_S
    assert track.find_steps(0, LOAD_S + 5 * STEP_S + 1) == (5, 0), "its save is not whole"
    assert track.find_steps(5, LOAD_S - 1) == (5, 5)
    assert track.find_steps(5, LOAD_S + 7 * STEP_S + SAVE_S) == (12, 10)


# ---------------------------------------------------------------- one fault, by hand


def test_without_a_fault_nothing_is_lost_but_the_start() -> None:
    run = OurRun(cluster(8), 1)
    assert run.run() == steps_of(86_400 - FIRST_S - LOAD_S)
    assert (run.starts, run.allocations, run.gave_up) == (1, 1, 0)
    assert told(run, "verdict") == []


def test_a_lost_engine_is_told_after_thirty_seconds_and_the_spare_goes_on() -> None:
    run = OurRun(cluster(8, strike("lost", 5)), 1)
    last = run.run()
    [(at, sentence)] = told(run, "verdict")
    assert at == pytest.approx(AT + 30, abs=0.1)  # deadlines.machine_silent; the orchestrator's line came before
    assert sentence.startswith("a1-n5 is lost: its agent has been silent for 30 s")
    assert last == last_step(FIRST_S, AT + 30 + 1 + 10 + 1 + 20)  # evidence, stop, look, start
    assert (run.starts, run.allocations) == (2, 1)
    assert "a1-n8" in run.working and "a1-n5" not in run.working


def test_a_lost_trainer_is_told_by_slurm_and_its_lease_is_waited_for() -> None:
    run = OurRun(cluster(8, strike("lost", 1)), 1)
    last = run.run()
    [(at, sentence)] = told(run, "verdict")
    assert AT + 300 <= at <= AT + 361
    assert sentence.endswith("; Slurm took it out of the job.")
    assert last == last_step(FIRST_S, AT + LEASE_S * 1.05 + 5)
    assert run.allocations == 1


def test_a_lost_head_has_the_job_requeued_once_the_lease_is_over() -> None:
    run = OurRun(cluster(8, strike("lost", 0)), 1)
    assert run.run() == last_step(FIRST_S, AT + LEASE_S + 60 + QUEUE_S + FIRST_S)
    assert (run.starts, run.allocations) == (2, 2)


def test_a_silent_death_is_a_minute_for_ours_and_a_persons_next_look_for_the_script() -> None:
    here = cluster(8, strike("crash", 5, silent=True))
    run = OurRun(here, 1)
    assert run.run() == last_step(FIRST_S, AT + 1 + 2 + 1 + 10 + 1 + 20)
    [(_, sentence)] = told(run, "verdict")
    assert sentence.startswith("vLLM 3 on a1-n5 died silently: it ended with exit code 0")
    assert run.working == [f"a1-n{n}" for n in range(8)], "one death does not convict a machine"
    look = 2 * 8 * 3600.0
    assert compare.train_through(here, compare.ends_as_prime_rls) == last_step(20.0, look + QUEUE_S + 20.0)
    assert compare.train_through(here, compare.ends_at_once) == last_step(20.0, AT + 10 + QUEUE_S + 20.0)


def test_the_script_idles_for_an_hour_after_an_exit_code_of_1() -> None:
    here = cluster(8, strike("crash", 5))
    assert compare.train_through(here, compare.ends_as_prime_rls) == last_step(20.0, AT + 3600 + QUEUE_S + 20.0)
    lost_meanwhile = cluster(8, strike("crash", 5), Fault(AT + 60, "lost", 6))
    ends_with_it = AT + 60 + 300 + QUEUE_S + 20.0
    assert compare.train_through(lost_meanwhile, compare.ends_as_prime_rls) == last_step(20.0, ends_with_it)


def test_a_hang_lasts_until_ncclls_watchdog_for_all() -> None:
    here = cluster(8, strike("hang", 1))
    assert compare.train_through(here, compare.ends_at_once) == last_step(20.0, AT + 3600 + 10 + QUEUE_S + 20.0)
    run = OurRun(here, 1)
    run.run()
    [(at, _)] = told(run, "verdict")
    assert at <= AT + 3601 and run.starts == 2


def test_the_bound_loses_the_steps_since_the_save_and_the_load() -> None:
    here = cluster(8, strike("crash", 5))
    assert compare.train_through(here, None) == last_step(0.0, AT)


# ---------------------------------------------------------------- several machines, several times


def test_a_rack_without_enough_spares_takes_another_allocation() -> None:
    here = cluster(8, strike("switch", 5))
    run = OurRun(here, 1)
    last = run.run()
    assert run.allocations == 2 and run.gave_up == 0
    [(at, sentence)] = told(run, "unfit")
    assert sentence == f"This pod is unfit: Only {9 - RACK} machines are there."
    waited = AT + 30 + 1 + 10 + 1 + 20 + 300  # nodes.wait
    assert at == pytest.approx(waited, abs=0.1)
    assert last == last_step(FIRST_S, waited + QUEUE_S + FIRST_S)
    enough = OurRun(here, RACK)
    enough.run()
    assert enough.allocations == 1 and enough.starts == 2
    assert enough.working == [f"a1-n{n}" for n in (0, 1, 2, 3, 8, 9, 10, 11)]


def test_a_broken_gpu_is_left_out_and_without_a_spare_another_allocation_comes_at_once() -> None:
    run = OurRun(cluster(8, strike("gpu", 5)), 1)
    assert run.run() == last_step(FIRST_S, AT + 1 + 2 + 1 + 10 + 1 + 20)
    assert run.allocations == 1 and "a1-n5" not in run.working
    run = OurRun(cluster(8, strike("gpu", 5)), 0)
    assert run.run() == last_step(FIRST_S, AT + 1 + 2 + 1 + 10 + QUEUE_S + FIRST_S)
    assert (run.starts, run.allocations, run.gave_up) == (2, 2, 0)


def test_a_machine_that_is_struck_twice_is_left_out() -> None:
    here = cluster(8, strike("crash", 5, again=(7200.0, 7200.0)))
    run = OurRun(here, 1)
    last = run.run()
    assert [at for at, _ in told(run, "verdict")] == pytest.approx([AT + 3, AT + 7200 + 3], abs=0.1)
    assert "a1-n5" not in run.working and run.starts == 3
    assert compare.train_through(here, compare.ends_at_once) < last, "a requeue remembers no machine"


def test_a_spare_that_is_struck_costs_nothing_until_it_is_needed() -> None:
    run = OurRun(cluster(8, strike("lost", 8), Fault(AT + 7200, "gpu", 5)), 1)
    run.run()
    assert len(told(run, "verdict")) == 1 and run.allocations == 2


# ---------------------------------------------------------------- the bound, the table


@pytest.mark.parametrize("seeds", [(1, 2, 3), pytest.param(range(4, 13), marks=pytest.mark.soak)], ids=["few", "many"])
@pytest.mark.parametrize("machines", [8, 64, 512])
def test_no_script_is_above_the_bound_in_any_cluster(machines: int, seeds: Sequence[int]) -> None:
    for seed in seeds:
        here = draw_cluster(seed, machines, 20.0)
        most = compare.train_through(here, None)
        assert compare.train_through(here, compare.ends_as_prime_rls) <= most
        assert compare.train_through(here, compare.ends_at_once) <= most


@pytest.mark.soak
def test_the_bound_is_above_each_policy_for_each_seed_and_the_same_seed_gives_the_same_figures() -> None:
    scores = compare.compare_clusters([1, 1024], 2, 0.5)
    assert all(one.faults for one in scores if one.machines == 1024)
    for one in scores:
        assert all(value <= one.ettr[compare.ORACLE] for value in one.ettr.values()), one
    assert scores[3] == compare.run_cluster(draw_cluster(2, 1024, 0.5))
    text = compare.table(scores, 0.5)
    assert text.splitlines()[2].split()[:2] == ["1", "8"] and text.splitlines()[3].split()[:2] == ["1024", "8192"]
    assert "Modelled, not measured" in text


def test_the_command_prints_json_and_refuses_what_takes_years(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "cluster", "--machines", "8", "--seeds", "1", "--days", "0.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["clusters"][0]["machines"] == 8 and set(found["clusters"][0]["ettr"]) >= {"ours", "oracle"}
    with pytest.raises(ConfigError, match="up to 4096"):
        simulate_cluster.compare([5000], 1, 1.0, as_json=False)
    with pytest.raises(ConfigError):
        simulate_cluster.compare([8], 0, 1.0, as_json=False)
