"""The practice job: a program that stands in for prime-rl at its outside, trains in fast motion, and fails when told.

It is an independent reading of prime-rl, made from its source (each file in `eras/` names the commit), so that it can't
share the supervisor's misreadings: it imports nothing of the program. Its processes use the standard library only and
are real: launcher, `uv` wrappers, API server with an EngineCore below it, orchestrator, torchrun with ranks,
environment servers, tail, with the titles, parents, signals, ports, files and log bytes of their era.

By hand (eras: 2025-09-30, 2026-01-06, v0.6, 2026-08-21)::

    python -m tests.practice.install /tmp/prime-rl --era v0.6
    cd /tmp/prime-rl && PATH=$PWD/.venv/bin:$PATH rl @ configs/practice.toml

In a test or the demo::

    practice = make_practice(tmp_path, "2026-01-06", max_steps=8, interval=2,
                             faults=[{"kind": "engine-exit-0", "at_step": 5}], step_s=0.2)
    launcher = practice.start()      # or hand practice.command() and practice.environment to the supervisor
    wait_until(lambda: 4 in practice.trained_steps(), "step 4")
    practice.alive()                 # pid -> role of everything that lives, orphans included
    practice.end_all()

A supervisor's run file gives the job `PRACTICE_FILE` and `PRACTICE_GPUS` in its [job].env (`practice.environment` holds
them) and starts it in `practice.home` with `.venv/bin` on PATH: old eras find `uv`, new ones `inference` and the others
by PATH, as the real ones do. `practice.driver_environment(folder)` is for a program that watches the GPUs:
LD_LIBRARY_PATH with the NVML stand-in, and PRACTICE_GPUS.

- PRACTICE_FILE names a TOML file of knobs (speeds, sizes) and `[[fault]]` tables; `knobs.py` documents each. A fault
  strikes once in a run folder, which `DIR/.practice/` remembers, unless `every_time`.
- PRACTICE_GPUS names a folder that `gpus.make_gpus` made; `gpus.py` says what is in it. Touch `hang` there, or write an
  NVML code into `error`, for a sick driver.
- `practice.starts()` tells what each start was given: arguments, names in its environment, W&B identities.

Where it departs from the real thing: the launcher's waits are scaled by the knob `patience`; batches go from the
orchestrator to the trainer through a hidden folder instead of ZMQ; W&B, evals, LoRA, multi-node and SFT are not played;
a process ends by itself after its install was deleted.
"""
