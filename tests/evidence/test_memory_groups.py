"""Which control groups account for the memory of a process: every level, in both versions of the kernel's interface."""

from __future__ import annotations

from pathlib import Path

from supervisor.evidence.machine import memory_groups


def process(folder: Path, *lines: str) -> Path:
    (folder / "proc" / "7").mkdir(parents=True)
    (folder / "proc" / "7" / "cgroup").write_text("".join(f"{line}\n" for line in lines))
    return folder / "proc"


def group(mount: Path, path: str, *files: str) -> Path:
    folder = mount / path
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        (folder / name).write_text("1\n")
    return folder


def test_the_limit_of_a_pod_stands_above_the_group_of_its_job(tmp_path: Path) -> None:
    proc = process(tmp_path, "0::/kubepods/pod-1/box/rl-job-7")
    mount = tmp_path / "cgroup"
    pod = group(mount, "kubepods/pod-1", "memory.max", "memory.current")
    box = group(mount, "kubepods/pod-1/box", "memory.current")
    group(mount, "kubepods/pod-1/box/rl-job-7")  # no controller is switched on there
    assert memory_groups(7, proc, mount) == [pod, box]


def test_version_one_is_read_by_its_own_names_also_where_the_path_leads_nowhere(tmp_path: Path) -> None:
    proc = process(tmp_path, "9:name=systemd:/box", "4:cpu,cpuacct:/box", "3:memory:/docker/0123", "0::/")
    mount = tmp_path / "cgroup"
    root = group(mount, "memory", "memory.limit_in_bytes", "memory.failcnt")  # what a container sees of its own
    group(mount, "cpu/box", "cpu.shares")
    assert memory_groups(7, proc, mount) == [root]
    inner = group(mount, "memory/docker/0123", "memory.usage_in_bytes")
    assert memory_groups(7, proc, mount) == [root, inner]


def test_a_path_that_leads_out_of_the_mount_leads_nowhere(tmp_path: Path) -> None:
    group(tmp_path, "secret", "memory.max")
    assert memory_groups(7, process(tmp_path, "0::/../secret"), tmp_path / "cgroup") == []
    assert memory_groups(8, tmp_path / "proc", tmp_path / "cgroup") == []
