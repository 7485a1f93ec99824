"""Tracebacks in a stream of lines: which exception, raised where, and the last frame that is the user's own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

MOST_LINES: Final = 400  # of one traceback; what goes on for longer is none
CODE: Final = 160  # characters that are kept of a line of a program
MOST_OPEN: Final = 64  # processes that write one at the same time

IGNORED: Final = "Exception ignored "  # in a destructor, mostly while the program ends
IN_THREAD: Final = "Exception in thread "  # which ends; its process goes on (Python's threading.excepthook)
_BEGIN = "Traceback (most recent call last)"
# Ray puts this in its place where a worker raised: the frames follow.
_REMOTE = re.compile(r".{0,120}ray::[\w.<>:-]{1,160}\(\) \(pid=\d")
_FRAME = re.compile(
    r"[\s>|+]{0,20}File \"(?P<path>[^\"\n]{1,400})\", line (?P<line>\d{1,7}), in (?P<function>\S.{0,200})"
)
_RICH = re.compile(r"\s{0,4}\u2502\s(?P<path>\S{1,300}\.py):(?P<line>\d{1,7}) in (?P<function>\S{1,200})\s")
_NOTEBOOK = re.compile(
    r"(?:File )?(?P<path>[~/]\S{1,300}?\.py|Cell In ?\[\d{1,6}\])(?::|, line )(?P<line>\d{1,7})"
    r"(?:, in (?P<function>\S{1,200}))?"
)
# A bare "Error: ..." is what a program prints: Python writes the module before the name of such a class.
_EXCEPTION = re.compile(
    r"(?P<type>(?!Error(?::|$))(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z_]\w{0,80}|"
    r"(?:[a-z_]\w{0,40}\.){1,4}(?:\w{0,20}error|timeout))"  # socket.gaierror, zlib.error
    r"(?::(?: (?P<message>.*))?)?$",
    re.S,
)
_CHAINS = ("During handling of the above exception", "The above exception was the direct cause")
_GROUP = re.compile(r"\s{0,12}(?:[|+]-{0,4}[+ ]?[- \d]{0,30}){1,4}(?=\S)")

_LIBRARY: Final = re.compile(
    r"^<|/lib/python\d|/prime_rl/|/prime-rl/src/|/(?:prime-rl|verifiers|vllm)/(?!environments/)[\w/]{0,200}\.py$|/torchrun$"
    r"|/bin/[\w.-]{1,60}$"  # a package's command
    r"|/\.cache/|\.(?:pyx|px[di]|cuh?|cc|cpp|h)$"  # made at run time, or compiled code that names its source
)
_PACKAGE: Final = re.compile(r"/(?:site|dist)-packages/([\w.-]{1,80})")
# Packages of the stack itself: what else lies among the installed ones may be the user's environment.
_KNOWN: Final = frozenset({
    "accelerate", "aiohttp", "anyio", "apex", "asyncio", "attr", "axolotl", "beartype", "bitsandbytes", "click",
    "cloudpickle", "datasets", "deepspeed", "fastapi", "filelock", "flash_attn", "flashinfer", "fsspec", "gunicorn",
    "h11", "httpcore", "httpx", "huggingface_hub", "hydra", "jinja2", "liger_kernel", "loguru", "lightning",
    "math_verify", "megatron", "msgpack", "msgspec", "multiprocess", "networkx", "numba", "numpy", "openai", "pandas",
    "peft", "prime_cli", "prime_rl", "prime_sandboxes", "psutil", "pyarrow", "pydantic", "pydantic_config",
    "pydantic_core", "pydantic_settings", "ray", "renderers", "requests", "rich", "safetensors", "sentencepiece",
    "setproctitle", "sglang", "sgl_kernel", "six", "starlette", "sympy", "tenacity", "tokenizers", "toml", "tomli",
    "tomli_w", "tomllib", "torch", "torchao", "torchdata", "torchtitan", "torchvision", "tqdm", "transformer_engine",
    "transformers", "triton", "trl", "typer", "tyro", "unsloth", "unsloth_zoo", "urllib3", "uvicorn", "uvloop",
    "verifiers", "vllm", "vllm_router", "wandb", "websockets", "xformers", "yaml", "zmq",
})  # fmt: skip

# Trainers and engines, also where they run from their own folders: their users change them now and then.
_RL: Final = frozenset({
    "areal", "axolotl", "llamafactory", "megatron", "nemo_rl", "openrlhf", "prime_rl", "sglang", "skyrl_train", "slime",
    "torchtitan", "trl", "unsloth", "verifiers", "verl", "vllm",
})  # fmt: skip


@dataclass(frozen=True)
class Frame:
    """One place in a program."""

    path: str
    line: int
    function: str
    code: str = ""  # the line itself, where the traceback shows it

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" + (f" in {self.function}" if self.function else "")


@dataclass(frozen=True)
class Raised:
    """An exception with the frames that it came through. ``cause``: what had been raised before it in the chain."""

    type: str
    message: str
    first_line: int
    line: int  # of the exception itself
    last: Frame | None
    own: Frame | None
    cause: Raised | None = None
    in_thread: bool = False  # it ended a thread, and not the process
    trainer: str = ""  # the last trainer or engine in which a frame of it lies

    @property
    def text(self) -> str:
        """As Python writes it."""
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def package(self) -> str:
        """The package that it was raised in, or asked for what a module of torch does not have."""
        asked = self.last is not None and self.last.function == "__getattr__"
        return self.trainer if asked else package_of(self.last)

    @property
    def place(self) -> Frame | None:
        """The user's own frame, of this one or of what it began with."""
        return self.own or (self.cause.place if self.cause else None)


def is_exception(text: str) -> bool:
    """Is it a line that a traceback ends with?"""
    return _EXCEPTION.match(text) is not None


def bare(text: str, line: int) -> Raised | None:
    """An exception of which no traceback is there, where the text is surely the end of one."""
    found = _EXCEPTION.match(text)
    if found is None or not found["type"].endswith(("Error", "Exception")) or not found["message"]:
        return None
    return Raised(found["type"], found["message"].strip(), line, line, None, None)


def own(path: str) -> int:
    """How much a file is the user's: 2 it is, 1 perhaps (installed, but not of the stack), 0 it is not."""
    if path.startswith("<"):
        return 0
    if found := _PACKAGE.search(path):
        name = found[1].removesuffix(".py").lower().replace("-", "_")
        return 0 if name in _KNOWN or name.startswith(("nvidia", "torch_", "vllm_", "flash_attn", "_")) else 1
    if _LIBRARY.search(path):
        return 0
    return 2 if _RL.isdisjoint(path.split("/")[:-1]) else 1


def package_of(frame: Frame | None) -> str:
    """The package that a frame is of; "" where it is the user's, or Python's own."""
    if frame is None:
        return ""
    if found := _PACKAGE.search(frame.path):
        return found[1].removesuffix(".py")
    parts = frame.path.split("/")[:-1]
    return next((part for part in reversed(parts) if part in _RL), "")


def nearer(frame: Frame, other: Frame | None) -> bool:
    """Is it rather the user's own than the other one?"""
    return other is None or own(frame.path) > own(other.path)


@dataclass
class _Open:
    line: int
    cause: Raised | None
    lines: int = 0
    end: int = 0  # the last line of it so far
    last: Frame | None = None
    own: dict[int, Frame] = field(default_factory=dict)
    trainer: str = ""
    source: str | None = None  # the line of code of the last frame; None: it comes next
    ignored: bool = False  # Python says that it goes on
    in_thread: bool = False


class Tracebacks:
    """Puts tracebacks together, each process's apart, however their lines are mixed."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._last: dict[str, Raised] = {}
        self._chains: set[str] = set()  # those that said that the next one goes on from the last
        self._ignoring: set[str] = set()  # those that said that the next one is ignored
        self._in_thread: set[str] = set()  # those that said that the next one ends a thread

    def __contains__(self, key: str) -> bool:
        return key in self._open

    @property
    def idle(self) -> bool:
        """Is none being read?"""
        return not self._open

    def describe_open_traceback(self, number: int) -> str:
        """Where the log ends inside a traceback, which goes on to line ``number``; nothing where it does not."""
        found = next((one for one in reversed(self._open.values()) if one.end >= number and not one.ignored), None)
        if found is None:
            return ""
        return (
            f"the last place in its traceback is {found.last}"
            if found.last
            else f"its traceback begins in line {found.line}"
        )

    def feed(self, key: str, number: int, text: str) -> Raised | None:
        """One line of the process ``key``; an exception where it was the last line of a traceback."""
        if _BEGIN in text[:200]:
            cause = self._last.get(key) if key in self._chains else None
            self._chains.discard(key)
            if len(self._open) < MOST_OPEN or key in self._open:
                ignored, in_thread = key in self._ignoring, key in self._in_thread
                self._open[key] = _Open(number, cause, end=number, ignored=ignored, in_thread=in_thread)
            self._ignoring.discard(key)
            self._in_thread.discard(key)
            return None
        now = self._open.get(key)
        if self._open and number - (oldest := next(iter(self._open.items())))[1].end > MOST_LINES:
            del self._open[oldest[0]]  # its process says nothing more
            now = self._open.get(key)
        if now is None:
            if "ray::" in text[:200] and _REMOTE.match(text):
                cause = self._last.get(key) if key in self._chains else None
                self._chains.discard(key)
                if len(self._open) < MOST_OPEN:
                    self._open[key] = _Open(number, cause, end=number)
                return None
            if any(text.lstrip(" |").startswith(words) for words in _CHAINS):
                self._chains.add(key)
            elif text.startswith(IGNORED):
                self._ignoring.add(key)
            elif text.startswith(IN_THREAD):
                self._in_thread.add(key)
            return None
        now.lines += 1
        if now.lines > MOST_LINES:
            del self._open[key]
            return None
        if frame := _FRAME.match(text) or _RICH.match(text) or _NOTEBOOK.match(text):
            now.last = Frame(frame["path"], int(frame["line"]), (frame["function"] or "").partition("(")[0].strip())
            now.own[own(now.last.path)] = now.last
            now.end, now.source = number, None
            now.trainer = package if (package := package_of(now.last)) in _RL else now.trainer
            return None
        text = _GROUP.sub("", text) if text.lstrip().startswith(("|", "+")) else text
        if not text.strip() or text[0] in " \t\u2502\u2570\u256d^~>":
            now.end = number
            if now.source is None:
                now.source = text.strip()
                if now.last is not None:
                    now.last = now.own[own(now.last.path)] = replace(now.last, code=now.source[:CODE])
            return None
        found = _EXCEPTION.match(text)
        if found is None or now.last is None:
            return None
        del self._open[key]
        if now.ignored:
            return None
        mine = now.own.get(2) or now.own.get(1)
        message = (found["message"] or "").strip()
        if not message and found["type"] == "AssertionError" and (now.source or "").startswith("assert "):
            message = now.source or ""  # a bare assertion says in its code alone what is wrong
        raised = Raised(found["type"], message, now.line, number, now.last, mine, now.cause, now.in_thread, now.trainer)
        if len(self._last) >= MOST_OPEN:
            self._last.clear()
        self._last[key] = raised
        return raised
