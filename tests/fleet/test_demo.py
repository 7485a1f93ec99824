"""``make demo-fleet`` shows what it says, and fails when that did not happen."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fleet import demo
from tests.fleet.demo import RUN_ID, Demo


def _names_what_is_missing(done: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a demo that went well: each thing that it should show is missed where its trace is taken away."""
    seen, vast, state = done.seen, done.vast, done.read_state()
    versions = done.b2.state.current(done.b2.bucket, f"runs/{RUN_ID}/")
    early = min((one for one in versions if one.name.endswith("/manifest.json")), key=lambda one: one.timestamp)
    assert done.find_shortcomings() == []

    def misses(words: str, where: Any, **spoiled: Any) -> None:
        with monkeypatch.context() as patch:
            for name, value in spoiled.items():
                patch.setattr(where, name, value)
            missing = done.find_shortcomings()
            assert any(words in sentence for sentence in missing), (words, missing)

    misses("The first pod never published step", seen, outbid_at_step=0)
    misses("Pods were rented on the machines [10010, 10020], and not on", vast, let=vast.let[:2])
    honest = {**state, "rented": [{**one, "how": "gone"} for one in state["rented"]]}
    misses("The host with one GPU was not left as unfit", done, read_state=lambda: honest)
    misses("The host with one GPU was not left as unfit", done, read_state=lambda: {**state, "faults": {}})
    misses("The last pod went on from step", seen, outbid_at_step=vast.steps + 1)
    misses("is the newest in the store", vast, steps=vast.steps + 2)
    misses("The controller did not say that the run has ended", seen, said=[])
    misses("1 pods are still rented", vast, living=lambda: [1])
    misses("after the next one had the run", early, timestamp=max(one.timestamp for one in versions) + 1)
    monkeypatch.setattr(seen, "outbid_at_step", 0)
    assert done.conclude() == 1


@pytest.mark.soak
@pytest.mark.timeout(480)
def test_the_demo_shows_all_it_should_and_fails_where_it_did_not(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = demo.make_demo

    @contextmanager
    def judged(keep: Path | None) -> Iterator[Demo]:
        with made(keep) as running:
            yield running
            _names_what_is_missing(running, monkeypatch)

    monkeypatch.setattr(demo, "make_demo", judged)
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    try:
        code = demo.main([])
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    said = " ".join(capfd.readouterr().out.split())
    assert code == 0, said
    assert "Trained twice: " in said and "The demo FAILED:" in said
