"""Where a job's downloads from the Hugging Face Hub arrive, by the environment that the job will have.

Names and defaults: huggingface_hub/constants.py at 03333b689b5a. A file arrives as ``blobs/<hash>.incomplete`` and is
renamed when it is whole (file_download.py), so its bytes count before and after.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def hub_cache(env: Mapping[str, str], cwd: Path) -> Path:
    """The hub's cache of a job with the environment ``env`` that runs in ``cwd``."""
    return cwd / _expand_variables(
        env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or f"{_hub_home(env)}/hub", env
    )


def token_file(env: Mapping[str, str], cwd: Path) -> Path:
    """Where a login for the Hub is kept for that job."""
    return cwd / _expand_variables(env.get("HF_TOKEN_PATH") or f"{_hub_home(env)}/token", env)


def _hub_home(env: Mapping[str, str]) -> str:
    return env.get("HF_HOME") or f"{env.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"


def _expand_variables(text: str, env: Mapping[str, str]) -> str:
    text = _VARIABLE.sub(lambda found: env.get(found[1] or found[2], found[0]), text)
    if text == "~" or text.startswith("~/"):
        text = (env.get("HOME") or str(Path.home())) + text[1:]
    return text


def arriving_folders(env: Mapping[str, str], cwd: Path) -> list[Path]:
    """The folders of what is downloaded, one for each model and data set. Raises OSError."""
    cache = hub_cache(env, cwd)
    return [path for path in sorted(cache.glob("*--*/blobs")) if path.is_dir()]
