"""Who asks a daemon reads little of a run file; what that says is what the daemon goes by."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.api.client import NotThereError, UnclearError
from supervisor.base.errors import ConfigError
from supervisor.cli import ctl, state_folder, which
from supervisor.config import settings
from supervisor.config.run_place import default_socket, default_state_dir, read_place
from tests.people.in_process import read_here

REST = '\n[job]\nkind = "command"\n[job.plain]\nstart = ["true"]\nresume = ["true"]\n'


@pytest.mark.parametrize(
    ("run", "api"),
    [
        ("", ""),
        ('state_dir = "/data/far"', ""),
        ("", 'socket = "/run/other.sock"'),
        ('state_dir = "~/far"', 'socket = "~/s"'),
        ('state_dir = "near"', 'socket = "s"'),
        ('state_dir = ""', 'socket = ""'),
        ("max_steps = 3", 'group = "0"'),
    ],
)
def test_the_small_reader_and_the_real_one_agree(tmp_path: Path, run: str, api: str) -> None:
    path = tmp_path / "w.toml"
    path.write_text(f'\ufeff[run]\nid = "a.b-c_1"\n{run}{REST}[api]\n{api}\n', encoding="utf-8")
    real, small = settings.load(path), read_place(path)
    assert small is not None
    assert small.id == real.run.id
    assert (small.socket or default_socket(small.id)) == real.socket
    assert (small.state_dir or default_state_dir(small.id)) == real.state_dir
    assert which.of_file(path) == which.Here(real.run.id, real.socket, real.state_dir, path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not toml",
        '[run]\nid = "w"\n[run]\n',
        '[run]\nname = "w"',
        '[run]\nid = "-w"',
        '[run]\nid = "w\\n"',
        "[run]\nid = 3",
        '[run]\nid = "w"\nstate_dir = 3',
        '[api]\nsocket = "/run/s"',
        'run = "w"',
    ],
)
def test_what_names_no_run_is_complained_of_in_the_words_of_the_real_one(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text:  # the child that finds the words is started once
        monkeypatch.setattr(state_folder, "ask_child", read_here)
    path = tmp_path / "w.toml"
    path.write_text(text + REST)
    assert read_place(path) is None
    with pytest.raises(ConfigError) as real:
        settings.load(path)
    with pytest.raises(ConfigError) as told:
        which.of_file(path)
    assert str(told.value) == str(real.value)


def test_a_folder_and_a_pipe_are_no_run_files_and_nothing_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_folder, "ask_child", read_here)
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "folder.toml").mkdir()
    for name, word in (("pipe", "not a plain file"), ("folder", "is a folder"), ("none", "does not exist")):
        assert read_place(tmp_path / f"{name}.toml") is None
        with pytest.raises(ConfigError, match=word):
            which.of_file(tmp_path / f"{name}.toml")


def test_a_mistake_elsewhere_in_the_file_still_names_the_run(tmp_path: Path) -> None:
    """The daemon that was started with it lives on, and its state has to be asked for."""
    path = tmp_path / "w.toml"
    path.write_text(f'[run]\nid = "w"\nstate_dir = "{tmp_path}/w"{REST}[dsk]\nfree = 3\n')
    with pytest.raises(ConfigError, match="there is no section"):
        settings.load(path)
    assert which.of_file(path) == which.Here("w", default_socket("w"), tmp_path / "w", path)


def test_what_the_child_cannot_do_is_said_as_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the last one leaves a file with the details
    with pytest.raises(UnclearError, match="says nothing: it holds no attempts"):
        state_folder.read("logs", tmp_path, attempt=None)
    (tmp_path / "attempts").mkdir()
    with pytest.raises(NotThereError, match="Nothing was ever started"):
        state_folder.read("logs", tmp_path, attempt=None)
    with pytest.raises(
        UnclearError, match=r"rl-supervisor could not read .* failed in a way it does not know: KeyError"
    ):
        state_folder.read("nonsense", tmp_path)


def test_a_child_that_fails_costs_the_status_no_more_than_what_it_would_have_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.toml"
    path.write_text(f'[run]\nid = "w"\nstate_dir = "{tmp_path}/w"{REST}')
    (tmp_path / "w").mkdir()
    (tmp_path / "w/journal.db").touch()

    def fails(what: str, path: str, query: str) -> str:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(state_folder, "ask_child", fails)
    assert ctl.main(["status", str(path)]) == 3
    said = capsys.readouterr().out
    assert said.startswith("w  NOT RUNNING  No daemon answers for w ("), said
    assert "could not read" in said
    assert "Cannot allocate memory" in said
