"""The image's own steps and files as far as they need no tree: prime-rl's checkout, the build context, the pins."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image.builder import allowed
from tests.image.dockerfile import Dockerfile, read
from tests.image.github import GitHub

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dockerfile() -> Dockerfile:
    return read(ROOT / "Dockerfile")


@pytest.fixture(scope="module")
def github(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitHub]:
    if shutil.which("git") is None:
        pytest.skip("there is no git here")
    if subprocess.run(["git", "daemon", "-h"], capture_output=True, check=False).returncode not in {0, 129}:
        pytest.skip("this git has no daemon")
    with GitHub(tmp_path_factory.mktemp("github")) as made:
        yield made


def checkout(github: GitHub, folder: Path, revision: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), "GITHUB": github.url, "PRIME_RL_DIR": str(folder)}
    env |= {"PRIME_RL_REPOSITORY": "PrimeIntellect-ai/prime-rl", "PRIME_RL_REVISION": revision}
    step = ["bash", str(ROOT / "image" / "prime-rl.sh"), "checkout"]
    return subprocess.run(step, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_the_checkout_is_the_pinned_commit_and_its_submodule_needs_no_ssh_key(github: GitHub, tmp_path: Path) -> None:
    done = checkout(github, tmp_path / "prime-rl", github.good)
    assert done.returncode == 0, done.stderr
    head = subprocess.run(
        ["git", "-C", str(tmp_path / "prime-rl"), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert head.stdout.strip() == github.good
    assert (tmp_path / "prime-rl/deps/verifiers/verifiers/__init__.py").exists()


def test_a_commit_that_is_not_there_ends_the_step_with_a_sentence(github: GitHub, tmp_path: Path) -> None:
    done = checkout(github, tmp_path / "prime-rl", "0123456789" * 4)
    assert done.returncode == 1
    assert f"PrimeIntellect-ai/prime-rl.git gave no commit {'0123456789' * 4}: is it that repository's" in done.stderr


@pytest.mark.parametrize("revision", ["main", "v0.8.0", "559b44772", ""])
def test_a_branch_a_tag_and_half_a_commit_are_refused(github: GitHub, tmp_path: Path, revision: str) -> None:
    done = checkout(github, tmp_path / "prime-rl", revision)
    assert done.returncode == 1
    assert f"PRIME_RL_REVISION is '{revision}': give a whole commit" in done.stderr
    assert not (tmp_path / "prime-rl").exists()


def test_a_commit_without_a_lock_is_refused(github: GitHub, tmp_path: Path) -> None:
    done = checkout(github, tmp_path / "prime-rl", github.unlocked)
    assert done.returncode == 1
    assert "has no uv.lock" in done.stderr


def test_nothing_but_what_is_named_comes_into_the_build(tmp_path: Path) -> None:
    shutil.copy(ROOT / ".dockerignore", tmp_path)
    for name in (
        "LICENSE",
        "README.md",
        "constraints.txt",
        "pyproject.toml",
        "image/supervisor.sh",
        "units/onstart.sh",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in (
        ".env",
        "my-run.env",
        "supervisor/.env",
        "units/my-run.env",
        ".git/config",
        "image/b2.key",
        "notes.toml",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("B2_APPLICATION_KEY=secret")
    came = {str(path.relative_to(tmp_path)) for path in allowed(tmp_path) if path.is_file()}
    assert came == {
        *("LICENSE", "README.md", "constraints.txt", "pyproject.toml", "image/supervisor.sh", "units/onstart.sh")
    }


def test_everything_is_pinned_and_no_argument_or_variable_is_a_secret(dockerfile: Dockerfile) -> None:
    bases = {name: value for name, value in dockerfile.arguments.items() if name.endswith("BASE")}
    assert all(re.fullmatch(r"\S+:\d[\w.-]+(@sha256:[0-9a-f]{64})?", value) for value in bases.values()), bases
    words = [one for stage in dockerfile.stages for one in stage.instructions]
    arguments = [one.rest for one in words if one.word == "ARG"]
    assert any(re.fullmatch(r"PRIME_RL_REVISION=[0-9a-f]{40}", one) for one in arguments)
    names = [re.split(r"[= ]", one.rest)[0] for one in words if one.word in {"ARG", "ENV"}] + list(dockerfile.arguments)
    assert [name for name in names if re.search(r"KEY|TOKEN|SECRET|PASSWORD", name)] == []


def test_what_the_image_is_started_with(dockerfile: Dockerfile) -> None:
    pod = dockerfile.stages[-1]
    said = {one.word: one for one in pod.instructions}
    assert pod.base == "trainer-${TRAINER}"
    assert said["ENTRYPOINT"].words()[1:] == ["onstart", "--restart"], "under --init it needs its restarter, too"
    assert said["STOPSIGNAL"].rest == "SIGTERM"
    health = said["HEALTHCHECK"]
    assert int(health.flag("retries") or "0") * 2 >= 10, "longer than the longest back-off, 300 s"
    assert health.flag("interval") == "2m"
