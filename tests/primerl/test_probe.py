"""How an installed prime-rl is found and recognised, without importing it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from supervisor.base.errors import UnknownDialectError
from supervisor.primerl.probe import find_roots, probe
from tests.primerl.eras import ERAS, Era, write_checkout


@pytest.mark.parametrize("era", ERAS.values(), ids=ERAS.keys())
def test_each_era_is_recognised_by_its_text(tmp_path: Path, era: Era) -> None:
    write_checkout(tmp_path, era)
    found = probe(find_roots(tmp_path, None))
    assert found == era.dialect


@pytest.mark.parametrize("era", ERAS.values(), ids=ERAS.keys())
def test_each_era_is_given_a_period_that_holds_its_day(era: Era) -> None:
    since, before = era.dialect.period()
    assert since <= era.day
    assert before is None or era.day <= before


def test_the_name_says_when() -> None:
    assert ERAS["be0e3d131"].dialect.name == "prime-rl between 31 Dec 2025 and 24 Feb 2026"
    assert ERAS["559b44772"].dialect.name == "prime-rl from 13 Aug 2026 on"


def test_a_folder_without_a_launcher_is_refused_with_what_to_do(tmp_path: Path) -> None:
    assert find_roots(tmp_path, None) == []
    with pytest.raises(
        UnknownDialectError, match=r"no launcher of prime-rl in nowhere .* set \[job\] dir to a prime-rl"
    ):
        probe([])


def test_a_prime_rl_with_other_gpu_settings_is_refused_not_guessed(tmp_path: Path) -> None:
    write_checkout(tmp_path, ERAS["559b44772"])
    configs = tmp_path / "packages/prime-rl-configs/src/prime_rl/configs/rl.py"
    configs.write_text("accelerators: Accelerators")
    with pytest.raises(UnknownDialectError, match="no setting for GPUs that this supervisor knows"):
        probe(find_roots(tmp_path, None))


def test_contradictory_features_are_refused_with_both_named(tmp_path: Path) -> None:
    write_checkout(tmp_path, ERAS["559b44772"])
    (tmp_path / "src/prime_rl/trainer/runs.py").write_text("step: int = 0")
    with pytest.raises(UnknownDialectError) as caught:
        probe(find_roots(tmp_path, None))
    sentence = str(caught.value)
    assert "has a router before the engine (from 2026-07-29 on), but not steps that count from 1" in sentence
    assert "not started" in sentence


def test_an_unreadable_launcher_is_a_sentence_not_a_traceback(tmp_path: Path) -> None:
    write_checkout(tmp_path, ERAS["be0e3d131"])
    (tmp_path / "src/prime_rl/rl.py").write_bytes(b"\xff\xfe\x00 binary \x00" * 1000)
    with pytest.raises(UnknownDialectError, match="no setting for GPUs"):
        probe(find_roots(tmp_path, None))


# ---------------------------------------------------------------- where it is installed


def _environment(folder: Path) -> tuple[Path, Path]:
    """A virtual environment's folders: its interpreter (a symlink out of it, as venv makes it) and site-packages."""
    site = folder / "lib" / "python3.12" / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder / "bin" / "python", site


def test_an_installed_package_is_found_in_site_packages(tmp_path: Path) -> None:
    python, site = _environment(tmp_path / "venv")
    checkout = write_checkout(tmp_path / "checkout", ERAS["38494ccb4"])
    (checkout / "src" / "prime_rl").rename(site / "prime_rl")
    pth = site / "_prime_rl_configs.pth"
    pth.write_text(f"{checkout / 'packages/prime-rl-configs/src'}\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert probe(find_roots(empty, python)) == ERAS["38494ccb4"].dialect


def test_an_editable_install_is_followed_to_its_source(tmp_path: Path) -> None:
    python, site = _environment(tmp_path / "venv")
    checkout = write_checkout(tmp_path / "check out", ERAS["be0e3d131"])
    (site / "prime_rl-0.1.0.dist-info").mkdir()
    (site / "prime_rl-0.1.0.dist-info" / "direct_url.json").write_text(
        json.dumps({"url": checkout.as_uri(), "dir_info": {"editable": True}})
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    assert find_roots(empty, python) == [checkout / "src" / "prime_rl"]


def test_code_in_a_pth_file_is_not_run(tmp_path: Path) -> None:
    python, site = _environment(tmp_path / "venv")
    proof = tmp_path / "ran"
    (site / "evil.pth").write_text(f"import pathlib; pathlib.Path({str(proof)!r}).touch()\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert find_roots(empty, python) == []
    assert not proof.exists()
