"""A small GitHub on this machine: a project of prime-rl's form with a submodule named by ssh, served by git itself.

The project has what the image's steps rely on in the real one: `rl` as a script, a lock, and `verifiers` as an editable
package in a submodule, whose address is git@github.com:... (prime-rl's own .gitmodules).
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

OWNER = "PrimeIntellect-ai"
FILES = {
    "pyproject.toml": """
[project]
name = "prime-rl"
version = "0.8.0"
requires-python = ">=3.11"
dependencies = ["verifiers"]
[project.scripts]
rl = "prime_rl:main"
[tool.uv.sources]
verifiers = { path = "deps/verifiers", editable = true }
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[tool.setuptools]
packages = ["prime_rl"]
package-dir = { "" = "src" }
""",
    "uv.lock": """
version = 1
revision = 3
requires-python = ">=3.11"

[[package]]
name = "prime-rl"
version = "0.8.0"
source = { editable = "." }
dependencies = [
    { name = "verifiers" },
]

[package.metadata]
requires-dist = [{ name = "verifiers", editable = "deps/verifiers" }]

[[package]]
name = "verifiers"
version = "0.1.0"
source = { editable = "deps/verifiers" }
""",
    "src/prime_rl/__init__.py": """
def main():
    from importlib.metadata import version
    print("rl of verifiers", version("verifiers"))
""",
}
VERIFIERS = {
    "pyproject.toml": """
[project]
name = "verifiers"
version = "0.1.0"
requires-python = ">=3.11"
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
""",
    "verifiers/__init__.py": "",
}


class GitHub:
    """``good``: a commit that can be built; ``stale``: its lock is another project's; ``unlocked``: it has none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.good = self.stale = self.unlocked = ""
        self.url = ""
        self._server: subprocess.Popen[bytes] | None = None

    def _git(self, where: Path, *words: str) -> str:
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            **{
                f"GIT_{who}_{what}": "nobody@example.org"
                for who in ("AUTHOR", "COMMITTER")
                for what in ("NAME", "EMAIL")
            },
            "GIT_CONFIG_GLOBAL": "/dev/null",
        }
        done = subprocess.run(["git", *words], cwd=where, env=env, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def _project(self, name: str, files: dict[str, str]) -> Path:
        work = self.folder / OWNER / f"{name}.git"
        work.mkdir(parents=True)
        self._git(work, "init", "--quiet", "-b", "main")
        self._git(work, "config", "uploadpack.allowFilter", "true")
        self._git(work, "config", "uploadpack.allowAnySHA1InWant", "true")
        for path, text in files.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text)
        return work

    def _commit(self, work: Path) -> str:
        self._git(work, "add", "-A")
        self._git(work, "commit", "--quiet", "-m", "as it is")
        return self._git(work, "rev-parse", "HEAD")

    def __enter__(self) -> GitHub:
        verifiers = self._project("verifiers", VERIFIERS)
        at = self._commit(verifiers)
        self._git(verifiers, "tag", "v0.1.0")
        prime_rl = self._project("prime-rl", FILES)
        modules = f'[submodule "verifiers"]\n\tpath = deps/verifiers\n\turl = git@github.com:{OWNER}/verifiers.git\n'
        (prime_rl / ".gitmodules").write_text(modules)
        self._git(prime_rl, "update-index", "--add", "--cacheinfo", f"160000,{at},deps/verifiers")
        (prime_rl / "deps" / "verifiers").mkdir(parents=True)
        self.good = self._commit(prime_rl)
        text = (prime_rl / "pyproject.toml").read_text()
        (prime_rl / "pyproject.toml").write_text(text.replace('["verifiers"]', '["verifiers", "idna>=3"]'))
        self.stale = self._commit(prime_rl)
        (prime_rl / "uv.lock").unlink()
        self.unlocked = self._commit(prime_rl)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"git://127.0.0.1:{port}/"
        self._server = subprocess.Popen(
            ["git", "daemon", "--export-all", "--listen=127.0.0.1", f"--port={port}", f"--base-path={self.folder}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
            },
            start_new_session=True,
        )
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return self
            except OSError:
                assert time.monotonic() < deadline, "git daemon does not listen"
                time.sleep(0.05)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._server is not None:
            os.killpg(self._server.pid, 15)
            self._server.wait()
