"""What the run will need of disk and GPU memory, beside what there is. Estimates, and named so in each sentence."""

from __future__ import annotations

from supervisor.preflight.checking import Check
from supervisor.preflight.disk_space import disk_space, model_download
from supervisor.preflight.gpu_memory import gpu_memory

CHECKS: tuple[Check, ...] = (gpu_memory, disk_space, model_download)
