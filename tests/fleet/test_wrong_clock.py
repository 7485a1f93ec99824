"""The clock of a controller's machine may be wrong: ages are told by the store's. The real command, on B2."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bench.fleet_tick import Fleet
from bench.pod import ROOT

HOUR_S = 3600
CLOCK = """
import time
real = time.time
time.time = lambda: real() + {wrong_s}
time.time_ns = lambda: int((real() + {wrong_s}) * 1e9)
"""
CLAIM = """
from functools import partial
from supervisor.checkpoints import claims
claims.claim = partial(claims.claim, sleep=lambda _: None)  # there is one controller
from supervisor.fleet import decide, observe
decide.SECOND_LOOK_S = observe.SECOND_LOOK_S = 2.0
from supervisor.cli.main import main
raise SystemExit(main(["fleet", "tick", "--file", "{file}"]))
"""


def tick(fleet: Fleet, wrong_s: float) -> str:
    """What a controller says whose machine's clock is wrong."""
    (fleet.folder / "sitecustomize.py").write_text(CLOCK.format(wrong_s=wrong_s))
    environ = {**fleet.environ(), "PYTHONPATH": f"{fleet.folder}:{ROOT}"}
    words = [sys.executable, "-c", CLAIM.format(file=fleet.folder / "fleet.toml")]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode in (0, 93), done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.soak
@pytest.mark.parametrize("wrong_s", [-HOUR_S, HOUR_S], ids=["behind", "ahead"])
def test_a_clock_that_is_wrong_by_an_hour_neither_convicts_a_pod_nor_spares_one(tmp_path: Path, wrong_s: float) -> None:
    with Fleet(tmp_path, 3) as fleet:
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=30)
        file = tmp_path / "fleet.toml"
        file.write_text(
            file.read_text().replace("creates_per_hour", f'until = "{until.isoformat()}"\ncreates_per_hour', 1)
        )
        fleet.rent_all()
        fleet.vast.keeps_gaps = False  # its gap is kept by one process
        tick(fleet, 0.0)
        fleet.train()
        assert tick(fleet, wrong_s).count(f"trains at step {fleet.step}.") == 3
        known = set(fleet.store.state.keys)
        fleet.lose_all()
        said = tick(fleet, wrong_s)
        assert said.count("Renting 2 x") == 3, said
        assert said.count(": no beat for 5 min") == 3, said
        made = [key for name, key in fleet.store.state.keys.items() if name not in known]
        assert len(made) == 3
        for key in made:
            assert key.expires_at is not None
            assert abs(key.expires_at - (until.timestamp() + 24 * HOUR_S)) <= HOUR_S + 60
