"""The daemon attends with these sensors: a practice run in a pod of its own, and what its journal holds of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.core.facts import Growing, HostLook, ProcessSeen
from supervisor.journal.journal import Journal
from tests.e2e.rig import Pod
from tests.practice.nvml.build import NoCompilerError, compiler

try:
    compiler()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.mark.soak
def test_host_and_growth_of_a_run_are_in_the_journal(tmp_path: Path) -> None:
    download = tmp_path / "hub" / "models--a--b" / "blobs" / "aa.incomplete"
    download.parent.mkdir(parents=True)
    pod = Pod(tmp_path / "pod", "v0.6", max_steps=6, step_s=0.6)
    with pod.run_file.open("a") as file:  # its last table is the job's environment
        file.write(f'HF_HUB_CACHE = "{tmp_path / "hub"}"\n')

    def arrive(size: int) -> int:
        with download.open("ab") as file:
            file.write(b"x" * size)
            return file.tell()

    try:
        pod.start()
        pod.wait_for(lambda: arrive(1000) and pod.sentences("step"), "a first step, while a model arrives")
        arrived_bytes = download.stat().st_size
        pod.wait_for(lambda: len(pod.sentences("step")) >= 2, "a second step")
        arrive(10_000_000)
        assert pod.wait_exit(60) == 0, pod.story()
    finally:
        pod.close()
    journal = Journal(pod.state_dir)
    facts = [observation.fact for observation in journal.observations()]
    journal.close()

    hosts = [fact for fact in facts if isinstance(fact, HostLook)]
    assert hosts and all(host.memory_total_bytes and not host.reason for host in hosts)
    run = {f"(pid {fact.pid})" for fact in facts if isinstance(fact, ProcessSeen)}
    nearest = {host.open_files_of for host in hosts if host.open_files_of}
    assert nearest and all(any(words.endswith(pid) for pid in run) for words in nearest)

    grown = [fact for fact in facts if isinstance(fact, Growing)]
    assert {"download", "checkpoint"} <= {fact.what for fact in grown}
    arrived = [fact.size_bytes for fact in grown if fact.what == "download"]
    assert arrived == sorted(set(arrived))
    assert arrived[-1] <= arrived_bytes, "what arrives once steps are made is no start-up"
