"""Runs verifiers' `vf-train` in the job's interpreter with what it lacks: a folder, a save interval, and a resume step.

Started as a script by path: it imports nothing of the supervisor. `vf-train` (verifiers 70f56bfc4, 2025-11-07, to
a497ee524^, 2026-07-08) calls Hugging Face's ``Trainer.train()`` without ``resume_from_checkpoint``, and its constructor
asks for batch 0 only, so that a resumed trainer would wait for the batch of its own step until a time-out.

    python vf_train.py '{"output_dir": "...", "save_steps": 10}' CHECKPOINT @ config.toml
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def load() -> Any:
    """The module of `vf-train`: `verifiers_rl` in its later versions, `verifiers` before."""
    problem: ImportError | None = None
    for name in ("verifiers_rl.scripts.train", "verifiers.scripts.train"):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            problem = error
    raise SystemExit(f"vf-train is not installed in {sys.executable} ({problem}): install verifiers with its rl extra.")


def resumable(trainer: Any, checkpoint: str) -> Any:
    """The trainer class, resuming at ``checkpoint`` and asking for the batch that its first step waits for."""

    class ResumableTrainer(trainer):  # type: ignore[misc]
        asked = False

        def train(self, *args: Any, **kwargs: Any) -> Any:
            if checkpoint:
                kwargs["resume_from_checkpoint"] = checkpoint
            return super().train(*args, **kwargs)

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            if not self.asked:
                self.asked = True
                if self.state.global_step > 0:
                    self.update_vllm()  # on every rank: the engine still has the base model's weights
                    if self.orchestrator:
                        self.orchestrator.submit_batch(self.state.global_step)
            return super().training_step(*args, **kwargs)

    return ResumableTrainer


def main(argv: list[str]) -> None:
    """See the module's own text."""
    overrides, checkpoint, *rest = argv
    values = json.loads(overrides)
    module = load()
    settings = module.RLConfig

    def make_settings(**given: Any) -> Any:
        return settings(**{**given, **values})

    module.RLConfig = make_settings
    module.RLTrainer = resumable(module.RLTrainer, checkpoint)
    sys.argv = ["vf-train", *rest]
    module.main()


if __name__ == "__main__":
    main(sys.argv[1:])
