"""GPUs, ports, limits, driver and volumes of this pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from supervisor.core.facts import EMPTY_BYTES
from supervisor.preflight.estimate_inputs import DEFAULT_UTILIZATION, UTILIZATION, one_machine
from supervisor.preflight.finding import Finding, Severity, Where
from supervisor.preflight.installed import parse_version
from supervisor.preflight.reading import ANY_LORA, ANY_MODEL, is_number
from supervisor.preflight.site import Gpu, GpuProcess, Volume
from supervisor.preflight.subject import Check, Subject

GIB = 1 << 30
MIB = 1 << 20
OPEN_FILES = 65535  # what vLLM's set_ulimit asks for
FEW_PROCESSES, VERY_FEW_PROCESSES = 4096, 1024
SMALL_SHM_BYTES = GIB
BLACKWELL, AMPERE = (10, 0), (8, 0)

GPU_KEYS = (
    *("deployment.num_train_gpus", "deployment.num_infer_gpus", "trainer_gpu_ids", "inference_gpu_ids"),
    *("deployment.num_gpus", "trainer_gpus", "inference_gpus", "trainer.gpus", "inference.gpus"),
)
_UTILIZATION = (*UTILIZATION, "inference.args.gpu_memory_utilization", "inference.args.gpu-memory-utilization")
_ON = {"1", "on", "yes", "true"}  # huggingface_hub, constants.py
_LOCAL = (".", "/", "~", "outputs/", "models/", "checkpoints/", "weights/")


# ---------------------------------------------------------------- GPUs


def gpus_there(subject: Subject) -> Iterator[Finding]:
    """Are the GPUs there that the run names?"""
    gpus = subject.site.gpus
    if gpus is None or subject.kind == "command":
        return
    if not gpus:
        yield Finding("no-gpu", "The NVIDIA driver shows no GPU on this machine.")
        return
    missing = [
        name
        for name in _wanted_gpus(subject)
        if not name.startswith("MIG-") and not any(_is_gpu(gpu, [name]) for gpu in gpus)
    ]
    if not missing or not all(gpu.uuid for gpu in gpus):
        return
    there = f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''} ({', '.join(str(gpu.index) for gpu in gpus)})"
    yield Finding(
        "gpu-missing",
        f"The run wants GPU {', '.join(missing)}, and this pod has {there}.",
        where_gpus(subject),
        severity=None if subject.dialect or subject.kind == "vf-rl" else "warning",
    )


def gpus_visible(subject: Subject) -> Iterator[Finding]:
    """The newer launchers count the GPUs that CUDA_VISIBLE_DEVICES shows them, and refuse to start with fewer."""
    if subject.kind not in ("rl", "sft") or subject.dialect is None or subject.dialect.gpus != "deployment":
        return
    shown = [one for one in subject.site.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    trainer = subject.settings.number("deployment.num_train_gpus")
    engine = subject.settings.number("deployment.num_infer_gpus")
    # An inference server that is a role of its own has its GPUs from us, and the launcher counts without it.
    served = subject.settings.has("inference") and not subject.serves_apart
    wanted = (1 if trainer is None else trainer) + (1 if engine is None else engine) * served
    if subject.kind == "sft" or not shown or wanted <= len(shown):
        return
    yield Finding(
        "gpus-not-visible",
        f"The configuration asks for {wanted} GPUs, and CUDA_VISIBLE_DEVICES={','.join(shown)} shows {len(shown)}.",
        where_gpus(subject),
    )


def gpus_free(subject: Subject) -> Iterator[Finding]:
    """Does another program compute on the run's GPUs?"""
    if subject.site.job_lives or subject.kind == "command":
        return
    engine = [str(name) for name in subject.plan.inference]
    for gpu in subject.site.gpus or ():
        if not _is_gpu(gpu, _wanted_gpus(subject)):
            continue
        used = gpu.total_bytes - gpu.free_bytes
        # Not the 2 % of `is_gpu_empty`: this only warns, and 2 GiB of a stranger on a large GPU are worth a sentence.
        if used < EMPTY_BYTES or gpu.processes == ():
            continue
        holders = _holders_in_words(gpu.processes)
        sentence = f"{_gib_in_words(used)} of GPU {gpu.index}'s {_gib_in_words(gpu.total_bytes)} are taken by {holders}"
        severity: Severity = "warning"
        if _is_gpu(gpu, engine):
            part = _share_of_engine(subject)
            if gpu.free_bytes < part * gpu.total_bytes:
                wants = _gib_in_words(int(part * gpu.total_bytes))
                sentence += f", and the engine wants {wants} of it free ({part:g} of the whole)"
                severity = "error" if gpu.processes else "warning"
        yield Finding("gpu-busy", f"{sentence}.", where_gpus(subject), severity=severity)


def gpu_generation(subject: Subject) -> Iterator[Finding]:
    """Has the job's torch code for these GPUs, and can these GPUs do what the trainer asks for?"""
    site = subject.site
    torch = f"torch {site.torch}".strip()
    for gpu in site.gpus or ():
        if gpu.capability is None or not _is_gpu(gpu, _wanted_gpus(subject)):
            continue
        told = f"GPU {gpu.index} ({gpu.name or 'unknown'}) has compute capability {'.'.join(map(str, gpu.capability))}"
        if gpu.capability >= BLACKWELL and site.torch_cuda and parse_version(site.torch_cuda) < (12, 8):
            yield Finding("gpu-too-new", f"{told}, and the job's {torch} was built for CUDA {site.torch_cuda}.")
            return
        if gpu.capability < AMPERE and subject.kind in ("rl", "sft"):
            yield Finding("gpu-too-old", f"{told}; FlashAttention 2 and bfloat16 need 8.0 or more.")
            return


# ---------------------------------------------------------------- driver and libraries


def driver(subject: Subject) -> Iterator[Finding]:
    """Can this driver run what the job's torch was built for?"""
    site = subject.site
    if not site.gpus:
        return
    if site.torch and not site.torch_cuda and "rocm" not in site.torch:
        yield Finding("torch-without-cuda", f"The job's torch {site.torch} was built without CUDA.")
        return
    needs, has = parse_version(site.torch_cuda), parse_version(site.driver_cuda)
    if not needs or not has or needs <= has:
        return
    told = (
        f"The driver {site.driver} runs CUDA {site.driver_cuda}, and the job's torch {site.torch} was built for "
        f"CUDA {site.torch_cuda}"
    )
    yield Finding("driver-too-old" if needs[0] > has[0] else "driver-older-than-torch", f"{told}.")


def variables(subject: Subject) -> Iterator[Finding]:
    """Environment variables that stop a run, or that do nothing although a person relies on them."""
    environ, versions = subject.site.environ, subject.site.versions
    name = subject.settings.get(*ANY_MODEL)
    local = isinstance(name, str) and (name.startswith(_LOCAL) or name.count("/") != 1)
    cached = isinstance(name, str) and name in subject.site.hf_models
    if subject.model is not None and subject.model.local and subject.model.name == name:
        local, cached = not cached, cached and subject.model.whole  # its config.json was read, there or in the cache
    offline = next((one for one in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if _is_on(environ.get(one))), "")
    elsewhere = "TRANSFORMERS_CACHE" in environ  # an older name, of another folder
    if offline and not elsewhere and isinstance(name, str) and not local and not cached and subject.site.hf_cache:
        yield Finding(
            "offline-without-model",
            f"{offline}={environ[offline]} forbids downloads, and {name} is not in {subject.site.hf_cache}.",
            subject.where(*ANY_MODEL) if subject.texts else Where(),
        )
    hub = parse_version(versions.get("huggingface_hub", ""))
    if _is_on(environ.get("HF_HUB_ENABLE_HF_TRANSFER")) and hub and hub < (1, 0) and "hf_transfer" not in versions:
        yield Finding(
            "hf-transfer-missing",
            f"HF_HUB_ENABLE_HF_TRANSFER={environ['HF_HUB_ENABLE_HF_TRANSFER']} is set, and beside huggingface_hub "
            f"{versions['huggingface_hub']} no hf_transfer is installed.",
            severity="error" if isinstance(name, str) and not local and not cached else "warning",
        )
    vllm = parse_version(versions.get("vllm", ""))
    if "VLLM_USE_V1" in environ and vllm >= (0, 11, 1):
        yield Finding(
            "vllm-use-v1-ignored", f"VLLM_USE_V1={environ['VLLM_USE_V1']} does nothing in vLLM {versions['vllm']}."
        )
    if "://" in environ.get("VLLM_PORT", "") and subject.settings.has("inference"):
        yield Finding("vllm-port-uri", f"VLLM_PORT={environ['VLLM_PORT']} is no port number.")
    if _is_on(environ.get("CUDA_LAUNCH_BLOCKING")):
        yield Finding("cuda-launch-blocking", f"CUDA_LAUNCH_BLOCKING={environ['CUDA_LAUNCH_BLOCKING']} is set.")


# ---------------------------------------------------------------- ports and limits


def ports(subject: Subject) -> Iterator[Finding]:
    """Does another process listen where this run will?"""
    if subject.site.job_lives:
        return
    for port, holder in sorted(subject.site.ports.items()):
        who = holder or "a process that cannot be seen from here"
        keys = ("inference.server.port", "inference.args.port", "inference.backend_port", "weight_broadcast.port")
        place = subject.where(*keys) if subject.settings.number(*keys) in (port, port - 100) else Where()
        yield Finding("port-in-use", f"Port {port}, which this run will listen on, is held by {who}.", place)


def limits(subject: Subject) -> Iterator[Finding]:
    """Open files and processes as the job will have them."""
    site, run = subject.site, subject.run_file
    if subject.kind == "command":
        return
    if site.nofile is not None and site.nofile[0] < OPEN_FILES:
        soft, hard = site.nofile
        if run is not None and run.job.nofile < OPEN_FILES <= hard:
            sentence = f"[job] nofile = {run.job.nofile}: so many files the job may have open."
            place = subject.run_where("job", "nofile")
            yield Finding("open-files-low", sentence, place, f"Set job.nofile to {OPEN_FILES + 1} in the run file.")
        else:
            told = f"The job may have {soft} files open: the hard limit here is {hard}, and it cannot be raised."
            yield Finding("open-files-low", told)
    if site.nproc is not None and site.nproc[0] < FEW_PROCESSES:
        severity: Severity = "warning" if site.nproc[0] < VERY_FEW_PROCESSES else "note"
        told = f"The job may have {site.nproc[0]} processes and threads in all."
        yield Finding("processes-low", told, severity=severity)


def shared_memory(subject: Subject) -> Iterator[Finding]:
    """Processes of one model on several GPUs exchange data in /dev/shm."""
    shm, plan = subject.site.shm, subject.plan
    if shm is None or shm.total_bytes >= SMALL_SHM_BYTES or subject.kind == "command":
        return
    halves = [(plan.inference, "the engine"), (plan.trainer, "the trainer")]
    several = [f"{name} has {len(set(gpus))} GPUs" for gpus, name in halves if len(set(gpus)) > 1]
    if several:
        yield Finding("shm-small", f"{shm.mount} has {shm.total_bytes // MIB} MiB, and {' and '.join(several)}.")


def offload_memory(subject: Subject) -> Iterator[Finding]:
    """What is moved from the GPU to RAM must fit there."""
    model, memory = subject.model, subject.site.memory_bytes
    if model is None or not model.parameters or not memory or subject.site.elsewhere or not one_machine(subject):
        return
    settings = subject.settings
    if any(settings.get(path) is not None for path in ANY_LORA):
        return  # most of it is then frozen, and how it is held differs by version
    prefix = "trainer.model" if subject.kind == "rl" else "model"
    half = settings.get(f"{prefix}.optimization_dtype") == "bfloat16"
    if settings.is_on(f"{prefix}.fsdp_cpu_offload"):
        key, each, what = f"{prefix}.fsdp_cpu_offload", 12, "weights and the optimizer's two moments"
    elif settings.is_on(f"{prefix}.optim_cpu_offload"):
        key, each, what = f"{prefix}.optim_cpu_offload", 8, "the optimizer's two moments"
    else:
        return
    each = each // 2 if half else each
    needs = model.parameters * each
    if needs < 0.9 * memory:
        return
    yield Finding(
        "offload-over-memory",
        f"{key} = true puts {what} of {model.name} ({model.parameters / 1e9:.1f} billion parameters, {each} bytes "
        f"each: {_gib_in_words(needs)}) into RAM, of which this pod may use {_gib_in_words(memory)}.",
        subject.where(key),
        severity="error" if needs > 1.2 * memory and subject.site.gpus else "warning",
    )


# ---------------------------------------------------------------- volumes


def silent(subject: Subject) -> Iterator[Finding]:
    """Of what hangs nothing can be said, and the job would hang there as well."""
    for place in subject.site.silent:
        yield Finding("volume-silent", f"{place} gave no answer in time.")


def volumes(subject: Subject) -> Iterator[Finding]:
    """What lies in memory, or in a container's own layer although it was given a volume."""
    site, run = subject.site, subject.run_file
    output, state, cache = (site.volumes.get(name) for name in ("output", "state", "hf-cache"))
    if output is not None and _in_memory(output):
        yield Finding(
            "output-in-memory",
            f"The output folder lies in memory ({output.kind} at {output.mount}, {_gib_in_words(output.total_bytes)}).",
            _run_key(subject, "job", "output_dir"),
        )
    if state is not None and _in_memory(state):
        yield Finding(
            "state-in-memory",
            f"The state folder lies in memory ({state.kind} at {state.mount}).",
            _run_key(subject, "run", "state_dir"),
        )
    better = max(site.persistent, key=lambda one: one.free_bytes, default=None)
    if output is not None and _own_layer(output) and better is not None and run is not None:
        yield Finding(
            "output-in-container",
            f"The output folder lies in the container's own layer, and this pod was given {_name_volume(better)}.",
            _run_key(subject, "job", "output_dir"),
            severity="note" if run.store.url else None,
        )
    if cache is None:
        return
    if _in_memory(cache):
        yield Finding("hf-cache-in-memory", f"The Hub's cache {site.hf_cache} lies in memory ({cache.kind}).")
    elif _own_layer(cache) and better is not None:
        yield Finding(
            "hf-cache-in-container",
            f"The Hub's cache {site.hf_cache} lies in the container's own layer, and this pod was given "
            f"{_name_volume(better)}.",
            remedy=f"Set HF_HOME={better.mount}/huggingface in the environment of the supervisor, or in [job] env.",
        )


CHECKS: tuple[Check, ...] = (
    *(gpus_there, gpus_visible, gpus_free, gpu_generation, driver, variables),
    *(ports, limits, shared_memory, offload_memory, volumes, silent),
)


# ---------------------------------------------------------------- words


def _wanted_gpus(subject: Subject) -> list[str]:
    """The GPUs that the run names, each once."""
    return list(dict.fromkeys(str(name) for name in (*subject.plan.inference, *subject.plan.trainer)))


def _is_gpu(gpu: Gpu, names: Sequence[str]) -> bool:
    """Is it one of these? CUDA takes the beginning of a UUID for the whole."""
    return any(name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name)) for name in names)


def where_gpus(subject: Subject) -> Where:
    """Where the GPUs are chosen: the run file's [gpus], else the configuration."""
    run = subject.run_file
    if run is not None and (run.gpus.inference or run.gpus.trainer):
        return subject.run_where("gpus", "trainer" if run.gpus.trainer else "inference")
    named = [key for key in GPU_KEYS if subject.settings.has(key)]
    return subject.where(*named) if named else Where()


def _run_key(subject: Subject, *key: str) -> Where:
    """A key of the run file; the machine where it is a default."""
    return subject.run_where(*key) if subject.run_line(*key) else Where()


def _share_of_engine(subject: Subject) -> float:
    """The part of a GPU that the engine takes. vLLM compares it with the free memory when it starts."""
    value = subject.settings.get(*_UTILIZATION)
    return float(value) if is_number(value) and 0 < value <= 1 else DEFAULT_UTILIZATION


def _holders_in_words(processes: Sequence[GpuProcess] | None) -> str:
    named = [
        one.name if one.name.startswith("pid ") else f"pid {one.pid} ({one.name})" if one.name else f"pid {one.pid}"
        for one in processes or ()
        if one.pid
    ]
    return "; ".join(named) if named else "a process that this container does not see"


def _is_on(value: str | None) -> bool:
    return value is not None and value.lower() in _ON


def _in_memory(volume: Volume) -> bool:
    return volume.kind in ("tmpfs", "ramfs")


def _own_layer(volume: Volume) -> bool:
    return volume.kind in ("overlay", "overlayfs", "aufs")


def _name_volume(volume: Volume) -> str:
    return f"a volume at {volume.mount} ({volume.kind}, {_gib_in_words(volume.free_bytes)} free)"


def _gib_in_words(count: int) -> str:
    return f"{count / GIB:.0f} GiB" if count >= 10 * GIB else f"{count / GIB:.1f} GiB"
