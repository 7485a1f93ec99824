"""Builds the NVML stand-in: `build(folder)` leaves `libnvidia-ml.so.1` there; put that folder into LD_LIBRARY_PATH.

The variable must be set before the process starts that loads pynvml. The compiler is `cc`, `gcc` or `clang`, else zig's
(`ziglang` from PyPI).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_stand_in.c")
LIBRARY = "libnvidia-ml.so.1"
FLAGS = ("-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden", f"-Wl,-soname,{LIBRARY}")


class NoCompilerError(RuntimeError):
    """There is nothing here that compiles C."""


def compiler() -> list[str]:
    """The command that compiles C. Raises NoCompilerError with what to install."""
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path:
            return [path]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise NoCompilerError(
        "No C compiler for the NVML stand-in: looked for cc, gcc and clang on PATH and for the Python package ziglang. "
        "Install one (`apt install gcc`, or `pip install ziglang`)."
    )


def build(folder: Path) -> Path:
    """Returns the library's path, building it unless the one that is there came from the present source."""
    folder.mkdir(parents=True, exist_ok=True)
    library, stamp = folder / LIBRARY, folder / f"{LIBRARY}.source"
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()
    if library.exists() and stamp.exists() and stamp.read_text() == digest:
        return library
    handle, name = tempfile.mkstemp(dir=folder, prefix=LIBRARY)
    os.close(handle)
    fresh = Path(name)
    try:
        subprocess.run([*compiler(), *FLAGS, "-o", str(fresh), str(SOURCE)], check=True, capture_output=True, text=True)
        fresh.chmod(0o755)
        fresh.replace(library)
    except subprocess.CalledProcessError as error:
        raise NoCompilerError(f"{error.cmd[0]} could not build {SOURCE.name}: {error.stderr.strip()}") from error
    finally:
        fresh.unlink(missing_ok=True)
    stamp.write_text(digest)
    return library
