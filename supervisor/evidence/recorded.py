"""What the journal recorded before the incident: a trace that replays, and the samples of the GPUs' memory in it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime

from supervisor.base.errors import SupervisorError
from supervisor.evidence.collecting import COLLECTOR_BYTES, Sink
from supervisor.evidence.known import TRACE
from supervisor.evidence.scene import Scene
from supervisor.journal.trace_lines import for_others, journal_lines

MOST_BYTES = 24 << 20  # of a trace, unpacked
SAMPLES_S = 900.0
MOST_SAMPLES = 8000


def trace(scene: Scene, sink: Sink) -> None:
    """``trace.jsonl.gz`` for ``rl-supervisor replay``, and ``gpu-samples.csv`` of its last quarter of an hour.

    Ten minutes before the incident are in it, and all until now: archive.py's limits. What comes after it is in the
    journal alone, see ``reason.txt``.
    """
    try:
        lines = journal_lines(scene.journal_path, scene.asked.incident)
    except SupervisorError as error:
        sink.note(str(error))
        return
    sink.put("gpu-samples.csv", "\n".join(_sample_lines(lines)) + "\n")
    if sum(map(len, lines)) > MOST_BYTES:
        sink.note(f"{TRACE} is left out, it would be longer than {MOST_BYTES} bytes: see reason.txt for how to get it")
        return
    packed = []
    for line in lines:
        if sink.is_closed:
            return
        packed.append(for_others(line))
    data = gzip.compress("".join(packed).encode(), compresslevel=6, mtime=0)
    if len(data) > COLLECTOR_BYTES // 2:
        sink.note(f"{TRACE} is left out, it has {len(data)} bytes: see reason.txt for how to get it")
        return
    sink.keep(TRACE, data)


def _sample_lines(lines: list[str]) -> Iterator[str]:
    """One line a GPU and look. Looks are posted when memory moves, and every ten seconds (sensors/gpu.py)."""
    looks = []
    for line in lines:
        if '"GpuLook"' not in line[:400]:
            continue
        value = json.loads(line)
        if isinstance(value.get("fact"), dict) and value["fact"].get("@") == "GpuLook":
            looks.append((float(value["wall"]), value["fact"]))
    yield "time_utc,gpu,role,used_bytes,total_bytes,reason"
    since = looks[-1][0] - SAMPLES_S if looks else 0.0
    for wall, fact in [look for look in looks if look[0] >= since][-MOST_SAMPLES:]:
        when = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        for gpu in fact.get("gpus") or ():
            yield f"{when},{gpu.get('index')},{gpu.get('role')},{gpu.get('used_bytes')},{gpu.get('total_bytes')},"
        for told in (*(fact.get("lost") or ()), fact.get("reason")):
            if told:
                yield f"{when},,,,,{json.dumps(told)}"
