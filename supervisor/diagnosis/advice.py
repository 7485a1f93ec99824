"""What mostly helps against an error that has no entry, by what it says itself."""

from __future__ import annotations

import re
from typing import Final

from supervisor.diagnosis.frames import Raised
from supervisor.diagnosis.own_words import name_settings

_ADVICE: Final = {
    re.compile(r".*(?:\b504\b|[Tt]imed? ?out|TimeoutError)"): "What it waited for was too slow: send it fewer requests "
    "at once (max_concurrent), give it more time (timeout=...; max_retries=0, where a request must not be sent twice), "
    "or more engines.",
    re.compile(
        r".*(?:\b40[13]\b|[Uu]nauthorized|[Ff]orbidden|[Aa]ccess ?[Dd]enied)"
    ): "The key or token is missing, of another account, or may not do this: set the one that the message asks for.",
    re.compile(
        r".*(?:\b(?:404|422)\b|Bad Request|\b400\b)"
    ): "The server does not know the address or a field that it was "
    "sent: its own log says which; look at base_url (http://HOST:PORT/v1) and the model's name, and take versions of "
    "client and server that belong together.",
    re.compile(
        r".*(?:\b50[0-3]\b|Internal Server Error)"
    ): "The server failed or was not up: its own log of that moment says why (an engine: no memory, a prompt beyond "
    "max_model_len).",
    re.compile(
        r".*(?i:\b(?:nan|inf)\b.*(?:grad|loss|logit|weight)|(?:grad|loss|logit|weight).*\b(?:nan|inf)\b)"
    ): "Go back to a step before it; lower the learning rate, use bf16, look at the batch that it came from.",
    re.compile(r"ModuleNotFoundError: "): "Install the package that it names where this part runs (uv pip install "
    "NAME; for an environment also into its pyproject.toml), or a newer version of what imports it.",
    re.compile(
        r"(?:NameError|UnboundLocalError|SyntaxError|IndentationError)\b"
    ): "A mistake in that code itself: mend the line; in an installed package take another version of it.",
    re.compile(
        r"TypeError: (?:string|list) indices must be"
        r"|AttributeError: '(?:str|list|dict|int|float)' object has no attribute"
    ): "The data has another form than this code expects (a text in place of a dict, messages whose content is a "
    "list): "
    "print it there, and compare with the dataset's columns or with what that version hands over.",
    re.compile(
        r"ValueError: (?:too many|not enough) values to unpack"
    ): "A function hands back another number of values than its caller takes: a reward or generate function of another "
    "version, or a package that changed what it returns; upgrade or pin the one that was called.",
    re.compile(r"(?:AttributeError|ImportError): "): "Mostly two packages are of versions that do not belong together: "
    "upgrade or pin (downgrade) the one that it was raised in, or the one that calls it.",
    re.compile(
        r"(?:\w+Error|AssertionError): .*(?:[Uu]nsupported|not (?:yet )?support|[Uu]nrecognized|[Uu]nknown|[Ii]nvalid)"
    ): "This version does not take that value: change the option that it names, or upgrade the package.",
    re.compile(
        r"(?:IndexError|ZeroDivisionError)\b"
    ): "Something is empty or shorter than expected: look at the batch or "
    "the list that it was made of (no sample left after filtering, a dataset smaller than the batch).",
    re.compile(r"KeyError: ['\"]"): "A part misses this key: compare it with the dataset's columns (preprocess it for "
    "this trainer), the weights' names, or the answer that was read.",
    re.compile(
        r"(?:TypeError|AttributeError): '?NoneType'?"
    ): "Something before it gave nothing: look for a request, a file or an option above that failed or is not set.",
    re.compile(
        r"(?:AssertionError|ValueError|RuntimeError): .*(?:\b(?:size|shape|length|dimension|rank)s?\b|!=|\blen\()"
    ): "Two sizes do not fit: look at what made each (a custom generate or reward function, the parallel sizes, a "
    "dataset, for validation too, that is no multiple of the batch, a checkpoint of another layout).",
    re.compile(
        r"NotImplementedError\b"
    ): "This version cannot combine these options: turn one off, or change the version.",
    re.compile(r"(?:json\.decoder\.)?JSONDecodeError: (?!.*\(char 0\))"): "What a model or a server wrote is no whole "
    "JSON: catch the error (give it back to the model, or no reward), let it write more tokens (max_tokens), force the "
    "form (structured output), and upgrade the package that reads it.",
    re.compile(r"(?:UnicodeDecodeError|(?:json\.decoder\.)?JSONDecodeError)\b"): "A file or an answer is not what was "
    "expected: print its beginning (an error page, an empty or a cut file).",
    re.compile(r"RecursionError\b"): "The input nests too deep: limit the depth, or catch it and give no reward.",
    re.compile(
        r".*(?:Operation not permitted|EPERM)"
    ): "The container lacks a right: start it with what the call needs "
    "(--cap-add SYS_PTRACE, --ipc=host), or turn off the option that needs it.",
    re.compile(
        r"(?:.*\.)?(?:FileNotFoundError|NotADirectoryError)\b"
    ): "See whether the path exists here, whole and in the layout that this version reads.",
    re.compile(
        r".*(?:[Oo]ut of memory|\bOOM\b|(?:not|[Cc]annot|[Uu]nable to|[Ff]ailed to) (?:enough memory|allocate))"
    ): (
        "Memory ran out: nvidia-smi and free -g say which. A smaller batch, shorter sequences, fewer workers or "
        "processes, offloading; end what is left of an earlier start."
    ),
    re.compile(
        r".*(?i:no space|quota|read-only file|disk (?:is )?full)"
    ): "A disk is full or may not be written: df -h, "
    "df -i, quota -s; delete old checkpoints and caches, or write to another folder.",
    re.compile(
        r".*(?i:connect(?:ion|or)?\b.*(?:error|refused|reset|fail|lost|closed|abort)|unreachable|(?:resolve|lookup) "
        r"|\bDNS\b|\bssl\b|certificate|proxy|connection (?:error|refused))"
    ): "A server was not reached: see from this machine whether it answers (curl -v ADDRESS), whether its name is "
    "known (getent hosts NAME), and whether a proxy or firewall is between (NO_PROXY); look at the server's own log.",
    re.compile(
        r".*(?i:permission|not permitted|not allowed|privilege)"
    ): "The user of the job may not do that: ls -ld the "
    "path and id, chown or another folder; in a container another user or one more capability.",
    re.compile(
        r".*(?i:no such file|does not exist|not found|cannot find|could not find|missing file)"
    ): "See whether what "
    "it names exists on this machine (ls, command -v, pip show), under that very name and as the job's user sees it; "
    "make, mount, download or install it first.",
    re.compile(
        r".*(?i:checkpoint|state_dict|safetensors|shard)"
    ): "The checkpoint does not fit what is started, or is not "
    "whole: load it with the versions, sizes and options that wrote it, or go back to an earlier one.",
    re.compile(
        r".*(?i:tokeniz|chat template|vocab)"
    ): "Tokenizer, template and model have to belong together: take all "
    "from one folder or revision, and compare len(tokenizer) with the model's vocab_size.",
    re.compile(r".*(?i:bfloat16|float16|\bdtype|\bhalf\b|fp8|fp16|bf16)"): "Number formats do not fit: load all in one "
    "(dtype=bfloat16), train under autocast, and compare with what this GPU can (fp8: Hopper; bf16: Ampere).",
    re.compile(r".*(?i:\bcuda|\bgpu|nccl|nvidia|cudnn|cublas|triton)"): "Look at nvidia-smi and at the kernel's log "
    "(dmesg | grep -i nvrm); CUDA_LAUNCH_BLOCKING=1 names the line; compare the versions of driver, torch and the "
    "package that failed (python -m torch.utils.collect_env).",
    re.compile(
        r".*(?i:deprecat|removed in|no longer|upgrade|newer version|older version|requires|pip install)"
    ): "It wants another version of a package: install the one that the line or the trainer's requirements name.",
    re.compile(
        r".*(?i:not (?:been )?initiali[sz]ed|before calling|must be called|already (?:been )?(?:initiali|called|exist))"
    ): "Something is called too early or twice: follow the order of the library's own example, and end what is left of "
    "an earlier start.",
    re.compile(
        r".*(?i:must be|should be|expected|has to be|is required|got )"
    ): "A value is not what is expected: the line says both; change that option, argument or column.",
}


_READ = re.compile(r"\b(?:config|args|cfg|settings|self\.config)((?:\.[a-z]\w{0,60}){1,5})\b(?!\()")
"""A setting that a line of a program reads."""


def where_to_look(raised: Raised | None, text: str) -> str:
    """What a person can do about an error that has no entry. ``text``: its line."""
    package = raised.package if raised else ""
    own = raised.place if raised else None
    look = f"Look at {own} first. " if own else "Read the lines around it. "
    said = raised.text if raised is not None else text
    look += next((advice + " " for pattern, advice in _ADVICE.items() if pattern.match(said)), "")
    if names := name_settings(said):
        look += names + " "
    elif raised is not None and raised.last is not None and (read := _READ.search(raised.last.code)):
        look += f"That line reads {read[1][1:]}: compare this setting. "
    if raised is not None and raised.trainer and raised.trainer != package:
        look += f"It came through {raised.trainer}: upgrade {raised.trainer}, too. "
    if package:
        package = package.replace("_", "-")
        look += (
            f"It was raised inside {package}: look for this line among its issues, and upgrade {package}, or take the "
            "version that the trainer was made for (uv sync). "
        )
    return look + "When you know what helps, add an entry to a data file: docs/diagnosis.md says how."
