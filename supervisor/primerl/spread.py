"""A run of prime-rl over several machines: its launcher says what it is made of, and each part is a process.

Before each start the launcher is run with ``--dry-run``: it validates, writes the parts' configurations for this start
(with the step to resume from), clears rollouts above that step, and renders ``components.json.j2`` where it would write
its own sbatch script (write_slurm_script in entrypoints/rl.py and sft.py at 559b44772, 2026-08-21).
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from supervisor.base.errors import ConfigError, TryAgainError
from supervisor.base.secrets import mask_secrets
from supervisor.config.nodes import WRITERS
from supervisor.jobs.base import (
    Ask,
    Component,
    Engine,
    GpuPlan,
    LogSource,
    Place,
    StartRequest,
    StopRules,
    literal,
    visible_gpus,
)
from supervisor.jobs.plain import fill_holes
from supervisor.primerl import command
from supervisor.primerl.job import AT_ONCE_S, PrimeRlJob

TEMPLATE: Final = Path(__file__).with_name("components.json.j2")
RENDER_S: Final = 300.0  # a cold import of prime-rl from a network file system takes minutes
LONGEST_ANSWER: Final = 1500
STOP_S: Final = 60.0
ROUTER: Final = "vllm-router"
ROLES: Final = ("trainer", "orchestrator", "inference", "env")
PART: Final = Path(__file__).with_name("part.sh")
REFUSED: Final = ("validation error", "Config file error", "unrecognized", "FileExistsError", "ModuleNotFoundError")
OF_THIS_MACHINE: Final = ("CUDA_VISIBLE_DEVICES", "HOSTNAME", "TMPDIR", "TMP", "TEMP")


class SpreadPrimeRlJob(PrimeRlJob):
    """Steps, folders and lines are those of prime-rl on one machine; the processes are its parts."""

    def problems(self) -> Sequence[str]:
        """Those of one machine, and what the rendering cannot do."""
        found = [*super().problems()]
        if self.sft and self.settings.has("eval"):
            found.append(
                f"{self.settings.where} has [eval], for which prime-rl starts a second job on machines of its own. It "
                "is not supported: take it out."
            )
        if self.run.gpus.inference or self.run.gpus.trainer:
            found.append("[gpus] is for one machine: with [nodes] prime-rl gives each part its GPUs. Take it out.")
        return found

    def components(self, request: StartRequest) -> Sequence[Component]:
        """Run the launcher's dry run, and read what it rendered; trainer 0 first. The dry run itself where nothing may
        be asked.

        Raises ConfigError where it refuses, TryAgainError where it gives no answer in time.
        """
        if problems := self.problems():
            raise ConfigError("\n".join(problems))
        if request.ask is None:
            return [self._dry_run(request)]
        rendered = self._render(request, request.ask)
        if refused := rendered["refused"]:
            raise ConfigError(
                f"{self.settings.where} sets {', '.join(refused)}: over several machines this is not supported."
            )
        found = list(self._read_components(rendered, request))
        if not found:
            raise ConfigError(f"{self.settings.where} describes a run of one machine: take [nodes] out.")
        return sorted(found, key=lambda component: component.name != "trainer-0")

    def _dry_run(self, request: StartRequest) -> Component:
        name = "sft" if self.sft else "rl"
        words = command.launcher_words(self.run, name)
        words += command.arguments(self.run, self.dialect, self.settings, self.sources, request)
        words += ["--slurm.template-path", str(TEMPLATE), "--dry-run"]
        return Component(name, words, self.folder, self._environment_of_start(request), self.run.job.nofile)

    def _render(self, request: StartRequest, ask: Ask) -> dict[str, Any]:
        start = self._dry_run(request)
        words, path = start.argv, self.layout.run_dir / f"{start.name}.sbatch"
        path.unlink(missing_ok=True)  # an older one must not be taken for this one's
        try:
            code, text = ask(words, start.cwd, start.env, RENDER_S)
        except OSError as error:
            raise ConfigError(f"{words[0]} cannot be run ({error.strerror}): mend [job] launcher or python.") from error
        if code is None:
            told = f"The launcher's dry run gave no answer in {RENDER_S:.0f} s, or is no longer wanted"
            raise TryAgainError(f"{told}: {' '.join(words)}")
        said = mask_secrets(" ".join(text.split()))[-LONGEST_ANSWER:]
        if code != 0:
            told = f"The launcher's dry run ended with {code}: {said}"
            # Memory, disks and file systems may be well the next time; what it refuses it will refuse again.
            raise ConfigError(told) if any(word in text for word in REFUSED) else TryAgainError(told)
        try:
            return dict(json.loads(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise TryAgainError(f"The launcher's dry run did not render {path} ({error}). It said: {said}") from error
        finally:
            with contextlib.suppress(OSError):
                path.unlink()  # it is no script that one could submit

    def _read_components(self, rendered: dict[str, Any], request: StartRequest) -> Iterator[Component]:
        count: Counter[str] = Counter()
        values = {
            "{rendezvous}": f"{request.run_id}-{request.attempt}",
            "{logs}": str(self.layout.run_dir / "logs" / f"attempt_{request.attempt}" / "trainer"),
        }
        own = self._environment_of_start(request)
        for name in OF_THIS_MACHINE:
            own.pop(name, None)
        own["VLLM_RPC_BASE_PATH"] = "/tmp"  # noqa: S108 (sockets of one machine; the script makes a folder there)
        tracked = {"WANDB_RUN_ID": request.wandb_id}
        ours = {name: value for name, value in own.items() if name.startswith(("RL_SUPERVISOR_", "PRL_RUN_ID"))}
        for one in rendered["components"]:
            role, env = one["role"], one["env"]
            is_router = role == "inference" and one["argv"][0] == ROUTER
            gpus = () if is_router else visible_gpus(env)
            asked = role == "inference" and not is_router and self.engine() is None
            port = one["port"] if asked else None
            place = Place(f"{{name.{one['machine']}}}", role, count[role], role in WRITERS, gpus, port)
            words = [fill_holes(word, values) for word in self._resolve_program(one["argv"])]
            env = {**(tracked if "WANDB_SHARED_MODE" in env else {}), **env, **ours}
            limit = "unlimited" if one.get("unlimited_locks") else ""
            argv = ["/bin/bash", str(PART), " ".join(sorted(env)), limit, *words]
            env = {**own, **env}
            name, ports = f"{role}-{count[role]}", [one["port"]] if "port" in one else []
            yield Component(name, argv, Path(rendered["project"]), env, self.run.job.nofile, ports, place=place)
            count[role] += 1

    def _resolve_program(self, argv: Sequence[str]) -> list[str]:
        """``uv run NAME`` is the environment's own program where it has one: `uv run` would sync on each machine."""
        if list(argv[:2]) != ["uv", "run"]:
            return list(argv)
        own = command.interpreter(self.run).with_name(argv[2])
        return [str(own), *argv[3:]] if own.exists() else ["uv", "run", "--no-sync", *argv[2:]]

    def stop_rules(self) -> StopRules:
        """Each part gets SIGTERM by itself: there is no launcher that ends them one after another."""
        patience = self.run.job.stop_grace_s
        gently = [(signal.SIGTERM, STOP_S if patience is None else patience)]
        return StopRules(gently, "each part ends by itself", AT_ONCE_S if patience is None else patience)

    def engine(self) -> Engine | None:
        """Only where the run file says where it answers: else each is asked by the agent of its machine."""
        return super().engine() if self.run.job.engine_url else None

    def gpus(self) -> GpuPlan:
        """The agents look at them."""
        return GpuPlan()

    def log_sources(self, attempt_dir: Path) -> Sequence[LogSource]:
        """What each part wrote, as it was carried here, and metrics.jsonl."""
        own = [LogSource(role, str(literal(attempt_dir) / f"{role}-*.log")) for role in ROLES]
        return [*own, *(source for source in super().log_sources(attempt_dir) if source.kind == "jsonl")]
