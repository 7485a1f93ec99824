"""What of an attempt's logs leaves the pod: its ends, its evidence, and no secret."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

from supervisor.checkpoints.log_packing import unpack
from supervisor.config.settings import load
from supervisor.core import actions as a
from supervisor.effects.carry_out import Effects
from supervisor.evidence.bundle import folder_name
from supervisor.evidence.known import bundles_dir
from supervisor.storage.base import StoreError
from tests import hands


def effects_of(tmp_path: Path, logs: dict[str, Path], more: str = "") -> Effects:
    (tmp_path / "run.toml").write_text(
        f'[run]\nid = "r1"\nstate_dir = "{tmp_path}/state"\n[job]\nkind = "command"\noutput_dir = "{tmp_path}/out"\n'
        '[job.plain]\nstart = ["true"]\nresume = ["true"]\n' + more
    )
    effects = hands.effects_of(load(tmp_path / "run.toml"), [], seen=hands.Seen(log_files=lambda: logs))
    effects.run.journal = "ab" * 8
    return effects


def test_logs_and_evidence_go_to_the_store_without_secrets(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("step 1\nWANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\n")
    effects = effects_of(tmp_path, {"trainer": log})
    bundle = bundles_dir(tmp_path / "state") / folder_name(incident=2, attempt=3)
    bundle.mkdir(parents=True)
    (bundle / "reason.txt").write_text("The engine is gone.\n")
    (bundle / "bundle.json").write_text('{"incident": 2}')
    asked: list[dict[str, Any]] = []
    effects.store.transfers.run = lambda ask, **_: asked.append(dict(ask)) or {}  # type: ignore[func-returns-value,assignment,method-assign,misc]
    effects.store._upload_logs(3)
    (ask,) = asked
    texts = {name: unpack(base64.b64decode(data)) for name, data in ask["logs"].items()}
    assert (ask["do"], ask["attempt"], ask["journal"]) == ("put-logs", 3, "ab" * 8)
    assert texts == {
        "trainer.log": "step 1\nWANDB_API_KEY=***\n",
        "incident-2.txt": '==> reason.txt <==\nThe engine is gone.\n\n==> bundle.json <==\n{"incident": 2}\n',
    }
    effects.store._upload_logs(3)
    assert set(asked[1]["logs"]) == {"trainer.log"}, "what never changes is sent once"


def test_evidence_that_did_not_reach_the_store_is_sent_with_a_later_attempts_logs(tmp_path: Path) -> None:
    effects = effects_of(tmp_path, {})
    bundle = bundles_dir(tmp_path / "state") / folder_name(incident=2, attempt=3)
    bundle.mkdir(parents=True)
    (bundle / "bundle.json").write_text('{"incident": 2}')
    asked: list[dict[str, Any]] = []
    away = [True]

    def run(ask: dict[str, Any], **_: object) -> dict[str, Any]:
        if away[0]:
            raise StoreError("transient", "the link is down")
        asked.append(dict(ask))
        return {}

    effects.store.transfers.run = run  # type: ignore[method-assign,assignment]
    effects.store._upload_logs(3)
    away[0] = False
    effects.store._upload_logs(4)
    effects.store._upload_logs(4)
    sent = [ask for ask in asked if ask["do"] == "put-logs"]  # a store that is back is listed, too
    assert [(ask["attempt"], set(ask["logs"])) for ask in sent] == [(3, {"incident-2.txt"})]


def test_the_run_is_given_back_after_the_last_words_of_every_attempt(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text("step 1\n")
    effects = effects_of(tmp_path, {"trainer": tmp_path / "trainer.log"}, f'[store]\nurl = "file://{tmp_path}/store"\n')
    effects.store.claiming.generation = 4
    asked: list[tuple[str, int | None]] = []

    def slow(ask: dict[str, Any], **_: Any) -> dict[str, Any]:
        time.sleep(0.1)
        asked.append((ask["do"], ask.get("attempt")))
        return {}

    effects.store.transfers.run = slow  # type: ignore[assignment,method-assign]
    effects.store.last_logs(1)
    effects.store.last_logs(2)
    effects.store.release(a.Release(1))
    effects.close()
    assert asked == [("put-logs", 1), ("put-logs", 2), ("release", None)]
