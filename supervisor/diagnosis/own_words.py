"""What helps as an error's own line has it: the packages and settings that it names, and the advice that it gives.

Entries are of classes of errors: which package is to be installed or upgraded stands in the line and its frames alone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from supervisor.diagnosis.frames import Raised
from supervisor.primerl.renames import renames

DATA: Final[Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("advice.toml").read_text(encoding="utf-8"))
"""Tables of names and sentences."""

_INSTALLED_AS: Final[Mapping[str, str]] = DATA["installed_as"]
_CLASSES: Final = {re.compile(pattern): package for package, pattern in DATA["owner"].items()}
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(?P<top>\w{1,80})(?P<rest>(?:\.\w{1,80})*)'")
_NO_NAME = re.compile(r"ImportError: cannot import name '(?P<name>\w{1,120})' from '(?P<top>\w{1,80})[.\w]{0,160}'")
_NO_ATTRIBUTE = re.compile(
    r"AttributeError: module '(?P<top>\w{1,80})[.\w]{0,160}' has no attribute '(?P<name>\w{1,120})'"
)
_NO_ARGUMENT = re.compile(
    r"TypeError: (?:(?P<cls>\w{1,80})\.)?(?P<call>\w{1,80})\(\) got an unexpected keyword argument '(?P<name>\w{1,80})'"
)
_NO_MEMBER = re.compile(
    r"AttributeError: (?:type object )?'(?P<cls>[A-Z]\w{1,80})'(?: object)? has no attribute '(?P<name>\w{1,120})'"
)
_OTHER_BUILD = re.compile(
    r"(?:ImportError|OSError): /\S{1,300}/(?:site|dist)-packages/(?P<top>\w{1,80})/\S{1,200}: undefined symbol: _Z"
)
_BOUND = re.compile(
    r"(?:ImportError: )?(?P<want>[A-Za-z][\w.-]{1,60}(?:[<>=!~]=?[\w.*]{1,20},?){1,4}) is required for a normal"
)
_REQUIRES = re.compile(
    r"(?:\b(?:requires?|needs?)(?: the)? )?[`'\"]?(?P<name>[A-Za-z][\w-]{1,40}(?:\[\w{1,20}\])?)[`'\"]?(?: package)?"
    r"(?: version)?:? ?[`'\"(]{0,2}(?P<sign>>=|==|<=|~=| with minimum required version) ?v?"
    r"(?P<version>\d{1,4}\.\d[\w.]{0,20})"
)
_TWINS = re.compile(
    r"(?P<one>[\w.-]{1,60}) version \(\S{1,60}\) does not match [\w.-]{1,60} version \((?P<version>[\w.]{1,40})"
)
_PIP = re.compile(
    r"(?:uv )?pip3? install (?:-{1,2}[\w-]{1,30} ){0,3}"
    r"(?:'[^'\n]{1,80}'|\"[^\"\n]{1,80}\"|[\w.,\[\]<>=~!@+-]{1,80})"
)
_NO_CHOICE = re.compile(
    r"(?P<program>[\w. -]{1,60}): error: (?:argument \S{1,60}(?: \S{1,40})?: )?"
    r"invalid choice: '?(?P<value>[\w.-]{1,60})"
)
_NO_ROOM = re.compile(r"(?:[\w.]{1,60}: )?CUDA (?:error: )?out of memory|(?:torch\.)?(?:cuda\.)?OutOfMemoryError\b")
_SAYS = re.compile(
    r"(?:^|(?<=[.!?:;,)'\"`] )|(?<=\n)|(?<= or ))(?:- )?(?P<says>(?:[Pp]lease|[Tt]ry|[Cc]onsider|Hint:"
    r"|You (?:can|may|might|need|should|must|have)|To (?:fix|avoid|disable|enable|allow|use|resolve|override|bypass)"
    r"|[Ss]et|[Uu]se|[Ii]ncrease|[Dd]ecrease|[Rr]educe|[Ll]ower|[Rr]aise|[Mm]ake sure|[Ee]nsure|[Rr]un|[Ii]nstall"
    r"|[Uu]pgrade|[Ss]pecify|[Pp]ass|[Ee]ither|[Dd]id you mean|[Ee]xpected one of|[Pp]ossible (?:values|choices))\b"
    r".{8,220}?)(?:(?=[.!] )|[.!]?(?=$|\n))"
)
_CHOICES = re.compile(
    r"(?P<says>(?:(?:[Mm]ust|[Ss]hould|has to) be (?:one of|either)|[Ee]xpected (?:one of|either)"
    r"|(?:[Ss]upported|[Aa]llowed|[Aa]vailable|[Vv]alid|[Kk]nown)(?: [\w-]{1,30}){0,3}?(?: are| is|:| one of))"
    r" .{3,160}?)(?:(?=[.!] )|[.!]?(?=$|\n))"
)
# What an error's text names is a setting where it has three words, a path of names, two hyphens, or a value.
_SETTING = re.compile(
    r"(?<![\w/.@:-])(?:--[a-z][\w-]{2,50}|[a-z]\w{1,30}(?:\.[a-z_]\w{1,40}){1,5}|[a-z]{2,20}(?:_[a-z0-9]{2,20}){2,6}"
    r"|[a-z]{2,20}(?:_[a-z0-9]{2,20}){1,6}(?= ?=| ?\(\d|`))(?![\w/-]|\(\)|\.\w)"
)
_NO_SETTING = re.compile(
    r"(?:torch|transformers|vllm|verl|trl|numpy|ray|peft|datasets|huggingface|pydantic|self|os|sys|np)\."
    r"|.*\.(?:py|so|json|toml|ya?ml|safetensors|log|txt|cc?|cpp|cuh?|hpp?|com|org|co|io|ai|net|svc|local)$"
)
_OF_PYDANTIC = re.compile(r" ?\[type=\w{1,60}, input_value=[^\n]*")
_MOST_SETTINGS: Final = 4
# Words that lead nowhere, or that come with each error of a kind.
_EMPTY = re.compile(
    r"(?i)\bissue|\binspect|\bcheck (?:the|your)\b|\breport|traceback|stack ?trace|\babove|root cause|contact"
    r"|TORCH_USE_CUDA_DSA|CUDA_LAUNCH_BLOCKING"
    r"|https?://\S+\.?$|for (?:more|further) (?:info|detail)|PYTORCH_(?:CUDA_)?ALLOC_CONF|HYDRA_FULL_ERROR"
)
_ANSWERED = re.compile(
    r"(?:\b|')(?P<code>[45]\d\d) ?(?:(?:Client|Server) Error|[A-Z][\w ]{2,30}'?)[^\n]{0,60}? for (?:url|URL):? ?'?"
    r"https?://(?:[^/@\s]{1,80}@)?(?P<host>[\w.-]{1,120})"
)
_MEANS: Final[Mapping[str, str]] = DATA["answered"]
_KEY = re.compile(r"(?:--)?([a-z][\w-]{1,60}(?:\.[\w-]{1,60}){0,6})$")
_OF_PACKAGES: Final = ("ImportError: ", "Exception: ", "RuntimeError: ", "ModuleNotFoundError: ", "ValueError: ")
_MEMORY: Final[Mapping[str, str]] = DATA["memory"]
_QUOTED: Final = "It says itself:"
_USUAL: Final = frozenset({"both", "install", "itself", "please", "says", "version", "where"})
_LONGEST: Final = 4096


def in_its_words(text: str, raised: Raised | None, more: Sequence[str] = (), *, of_settings: bool = False) -> str:
    """What to install, upgrade or set by an error's own words, as sentences; nothing where it names nothing.

    ``of_settings``: it is about these, so that the ones that it names are worth a look.
    """
    said = (raised.text if raised is not None else text)[:_LONGEST]
    whole = "\n".join((said, *more))
    if raised is not None and raised.trainer in _MEMORY and _NO_ROOM.match(said):
        return f"In {raised.trainer}: {_MEMORY[raised.trainer]}."
    if found := _ANSWERED.search(said):
        means = _MEANS.get(found["code"], "it failed, or was not up: its own log of that moment says why")
        return f"{found['host']} answered {found['code']}: {means}."
    if of_settings and (renamed := _say_renames((text, *more))):
        return renamed
    words = _name_packages(said, raised.package if raised is not None else "") or _quote_advice(whole)
    return words or (name_settings(whole) if of_settings else "")


def say_missing(said: str) -> str:
    """Which package is missing, as a sentence; nothing where the line does not name it."""
    found = _NO_MODULE.match(said)
    if found is None or found["rest"]:
        return ""
    return f"The Python package {found['top']} is missing in the job's interpreter, or its environment is not whole."


def missing_from(remedy: str, words: str) -> bool:
    """Do the words tell anything that the remedy does not say already?"""
    told = {word.lower() for word in re.findall(r"[\w-]{5,}", words)} - _USUAL
    known = sum(word in remedy.lower() for word in told)
    return known * 2 < max(len(told), 1) or (known < len(told) and not words.startswith(_QUOTED))


def installed_as(module: str) -> str:
    """The name by which a package is installed."""
    return _INSTALLED_AS.get(module, module.replace("_", "-"))


def _name_packages(said: str, caller: str) -> str:
    if found := _BOUND.match(said):
        return f"pip install '{found['want'].rstrip(',')}'."
    if found := _TWINS.search(said):
        return f"pip install '{found['one']}=={found['version']}', or both in one version."
    if found := _PIP.search(said):
        return f"{found[0].rstrip('.,')} (where the job runs)."
    if said.startswith(_OF_PACKAGES) and (found := _REQUIRES.search(said)):
        sign = found["sign"] if "=" in found["sign"] else ">="
        return f"pip install '{installed_as(found['name'])}{sign}{found['version'].rstrip('.')}'."
    if found := _NO_MODULE.match(said):
        if not found["rest"]:
            return f"uv pip install '{installed_as(found['top'])}'."
        return _say_two(f"the module {found['top']}{found['rest']}", found["top"], caller)
    if found := _NO_NAME.match(said) or _NO_ATTRIBUTE.match(said):
        return _say_two(f"{found['name']} of {found['top']}", found["top"], caller)
    if (found := _NO_ARGUMENT.match(said)) and (owner := _owner_of(found["cls"] or "")):
        asks = "" if owner == caller else caller  # it stands in its own file where the argument came from outside
        return _say_two(f"the argument {found['name']} of {found['cls']} ({owner})", owner, asks)
    if found := _NO_MEMBER.match(said):
        owner, asks = _owner_of(found["cls"]), installed_as(caller)
        if owner and owner != caller:
            return _say_two(f"{found['name']} of {found['cls']} ({owner})", owner, caller)
        if asks:
            return f"{asks} expects {found['name']} of {found['cls']}: upgrade {asks}, or pin what that class is of."
    if found := _NO_CHOICE.match(said):
        return (
            f"This version of {found['program']} has no {found['value']}: upgrade it, or take one that the line lists."
        )
    if found := _OTHER_BUILD.match(said):
        package = installed_as(found["top"])
        return f"{package} was built for another torch: pip install --force-reinstall --no-cache-dir {package}."
    return ""


def _owner_of(name: str) -> str:
    return next((package for cls, package in _CLASSES.items() if cls.match(name)), "")


def _say_two(what: str, owner: str, caller: str) -> str:
    """Two packages that do not belong together."""
    owner, asks = installed_as(owner), installed_as(caller)
    if not caller:
        return (
            f"The code wants {what}, which the installed {owner} does not have: pip install -U "
            f"{owner} where it is new, else take the name that it has now, or pin {owner} to an older version."
        )
    if asks == owner:
        return f"{owner} has files of two versions: pip uninstall -y {owner}; pip install --no-cache-dir {owner}."
    return (
        f"{asks} wants {what}, which the installed {owner} does not have: pip install -U {asks} where {owner} is the "
        f"newer one, else pip install -U {owner}; or pin {owner} to the version that {asks} was made for."
    )


def name_settings(text: str) -> str:
    """The settings that an error's text names; nothing where there are none."""
    text = _OF_PYDANTIC.sub("", text)
    found = [one[0] for one in _SETTING.finditer(text) if not _NO_SETTING.match(one[0])]
    names = list(dict.fromkeys(found))[:_MOST_SETTINGS]
    return f"Change what does not hold of what it names, or leave it out: {', '.join(names)}." if names else ""


def _say_renames(lines: Sequence[str]) -> str:
    """What prime-rl calls a setting that it refused now, or called it before."""
    for key in (found[1].replace("-", "_") for line in lines if (found := _KEY.match(line.strip()))):
        for part in ("", "trainer.", "orchestrator.", "inference."):
            now, last = part + key, None
            for one in renames():
                if (then := one.apply(now)) != now or one.old == now:
                    now, last = then, one
            if last is not None:
                said = f"{key} is {now} since {last.day}." if last.new else f"{key} went with prime-rl of {last.day}."
                return " ".join((said, last.note)).rstrip()
            if (newer := next((one for one in renames() if one.new and one.new == part + key), None)) is not None:
                return f"{key} is the name since {newer.day}: before, it was {newer.old} (or upgrade prime-rl)."
    return ""


def _quote_advice(whole: str) -> str:
    for found in (*_SAYS.finditer(whole), *_CHOICES.finditer(whole)):
        says = found["says"].strip(" '\"`,;:")
        if not _EMPTY.search(says):
            return f'{_QUOTED} "{says}".'
    return ""
