"""Everything that is only true of prime-rl and of verifiers' small trainer; ``open_job`` is the way in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from supervisor.base.errors import ConfigError
from supervisor.config.settings import RunFile
from supervisor.jobs.base import Job

WHOLE = '"auto" restarts an inference server with the job: it has a choice on one machine, with kind = "rl", only.'


def open_job(
    run_file: RunFile,
    environ: Mapping[str, str],
    beside: bool | None = None,
    copies: Mapping[Path, Path] | None = None,
) -> Job:
    """The job that ``run_file`` describes; ``environ`` is the daemon's environment, of which the job sees a part.
    ``copies``: the snapshot that runs or will, which is read in place of the files. For `recovery.inference = "auto"`,
    ``beside``: lives its inference server beside it (None: nothing lives that must be heeded)?

    Raises ConfigError (a folder or configuration that is missing or wrong) or UnknownDialectError.
    """
    kind, folder = run_file.job.kind, run_file.job.dir
    if run_file.recovery.inference == "auto" and (run_file.nodes is not None or kind in ("command", "vf-rl")):
        job = open_job(run_file.with_inference("with-job"), environ, None, copies)
        job.chosen = WHOLE
        return job
    if folder is not None and not run_file.job.folder.is_dir():
        raise ConfigError(
            f"[job] dir = {folder}: there is no such folder. Put the trainer there, or mend the run file."
        )
    if run_file.nodes is not None and kind == "command":
        from supervisor.jobs.spread import SpreadJob

        return SpreadJob(run_file, environ, run_file.nodes)
    if kind == "command":
        from supervisor.jobs.plain import PlainJob

        return PlainJob(run_file, environ)
    if kind == "vf-rl":
        from supervisor.primerl.verifiers import VerifiersJob

        return VerifiersJob(run_file, environ, copies)
    from supervisor.primerl.command import interpreter
    from supervisor.primerl.job import PrimeRlJob
    from supervisor.primerl.probe import find_roots, probe

    if folder is None:  # the run file's validation wants it for rl and sft
        raise ConfigError(f'kind = "{kind}" needs [job] dir, the folder of the installed trainer.')
    roots = find_roots(run_file.job.folder, interpreter(run_file))
    # With none found, the error names the place where a checkout would have it.
    packages = roots or [run_file.job.folder / "src" / "prime_rl"]
    if run_file.nodes is not None:
        from supervisor.primerl.spread import SpreadPrimeRlJob

        return SpreadPrimeRlJob(run_file, environ, probe(packages), packages[0], copies)
    if run_file.recovery.inference == "auto":
        return PrimeRlJob.choose_restart(run_file, environ, probe(packages), packages[0], beside=beside, copies=copies)
    return PrimeRlJob(run_file, environ, probe(packages), packages[0], copies)
