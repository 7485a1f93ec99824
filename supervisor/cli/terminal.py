"""How every command ends: one sentence and an exit code, never a traceback on a person's screen."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO, cast

from supervisor.base.errors import EXIT_TRY_AGAIN, EXIT_USAGE, SupervisorError
from supervisor.base.secrets import mask_secrets, remember_environment
from supervisor.cli.render import log_text, safe


class OutputError(SupervisorError):
    """What was to be said cannot be written."""

    exit_code = EXIT_TRY_AGAIN


def run_cli(command: Callable[[], int], program: str, *, contract: bool = False) -> int:
    """Run ``command``: a SupervisorError becomes its sentence, a crash one sentence and a file with the traceback.

    The exit code of both is 1 (2 for wrong usage, 75 where the store stayed away); with ``contract`` it is that of
    ``supervisor.base.errors``: the error's own, and "try again" for a crash.
    """
    os.umask(os.umask(0o022) | 0o022)  # only the caller may change what a command writes
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a sentence may hold what the terminal's encoding does not
            stream.reconfigure(errors="replace")
    remember_environment()
    with contextlib.redirect_stdout(_flush_stream(sys.stdout)), contextlib.redirect_stderr(_flush_stream(sys.stderr)):
        return _end_quietly(command, program, contract=contract)


def _end_quietly(command: Callable[[], int], program: str, *, contract: bool) -> int:
    try:
        return _run_command(command)
    except SupervisorError as error:
        _print_error(_as_whole_sentence(error))
        if contract or error.holds_by_hand:
            return error.exit_code
        return EXIT_USAGE if error.exit_code == EXIT_USAGE else 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the outermost edge: a person gets a sentence, the file gets the rest
        _print_error(f"{program} failed in a way it does not know: {crash_note(program, error)}")
        return EXIT_TRY_AGAIN if contract else 1


class _Outgoing(io.TextIOBase):
    """Standard output or error of a command: what a job said may hold secrets, and orders to the terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write it masked, and of all that a terminal obeys only colours and what ends or clears a line."""
        self._stream.write(log_text(mask_secrets(text)))
        return len(text)

    def flush(self) -> None:
        """Write what is still buffered."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Is it a terminal?"""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Its descriptor."""
        return self._stream.fileno()


def _flush_stream(stream: TextIO | None) -> TextIO | None:
    return None if stream is None else cast("TextIO", _Outgoing(stream))  # it was closed before the start


def reply(run: str, done: bool, sentence: str, *, as_json: bool) -> int:
    """What a daemon answered to an order, for a person or as JSON; returns the exit code."""
    if as_json:
        print(json.dumps({"run": run, "ok": done, "sentence": sentence}, ensure_ascii=False))
    else:
        told = safe(f"{run}: {sentence}" if run and not sentence.startswith(f"{run} ") else sentence)
        print(told, file=sys.stdout if done else sys.stderr, flush=True)
    return 0 if done else 1


def _run_command(command: Callable[[], int]) -> int:
    """``supervisorctl ... | head`` ends quietly when head has seen enough."""
    code = 0
    try:
        code = command()
        say()
    except BrokenPipeError:
        _drop_output()
    return code


def say(text: str = "") -> None:
    """Print it, and what is still buffered. Raises OutputError where it cannot be written: the disk is full."""
    if sys.stdout is None:  # it was closed before the start
        return
    try:
        print(text, end="\n" if text else "", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise OutputError(f"Standard output cannot be written: {error.strerror}.") from None


def _drop_output() -> None:
    """What is still buffered must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def crash_note(program: str, error: BaseException) -> str:
    """Write the traceback of ``error`` to a file, secrets masked; the end of a sentence that says where it is."""
    text = mask_secrets("".join(traceback.format_exception(error)))
    summary = f"{type(error).__name__}: {error}"
    try:
        fd, path = tempfile.mkstemp(prefix=f"{program}-crash-", suffix=".txt")
        with os.fdopen(fd, "w", errors="replace") as file:
            file.write(text)
    except OSError:
        return f"{summary}. No file could be written, so here it all is:\n{text}"
    return f"{summary}. Please report it with {Path(path)}, which holds the details."


def _as_whole_sentence(error: SupervisorError) -> str:
    """The store's errors are clauses, since others quote them; alone, one is a sentence."""
    text = str(error)
    if not error.is_clause or not text:
        return text
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")


def _print_error(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        pass  # stderr is closed: there is no reader
