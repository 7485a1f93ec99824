"""What every table of the run file is made from."""

from __future__ import annotations

import inspect
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# To look for plugins (logfire), which are the job's business, pydantic 2 reads the metadata of all packages: a sixth of
# a daemon's start. PYDANTIC_DISABLE_PLUGINS would reach the job.
with suppress(ImportError):
    from pydantic.plugin import _loader

    _loader._plugins = {}
HostPort = Annotated[str, Field(pattern=r"^[\w.:\[\]-]+:\d{1,5}$")]


class Section(BaseModel):
    """A table of the run file; unknown keys are mistakes."""

    # Only whole run files are read: a validator for each of the thirty tables by itself would never be used.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


@cache
def describe_settings(table: type[BaseModel]) -> dict[str, str]:
    """The docstring of each setting of ``table``, also of those that it takes from the core (``core/settings.py``).

    They are read from the source on demand. A daemon needs none, and to parse them took a third of its start.
    """
    import ast

    found = {}
    for declared in reversed(table.__mro__):
        if not declared.__module__.startswith("supervisor."):
            continue
        lines = ast.parse(inspect.getsource(declared)).body[0].body  # type: ignore[attr-defined]
        for line, text in pairwise(lines):
            if isinstance(line, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[line.target.id] = inspect.cleandoc(text.value.value)  # type: ignore[attr-defined,union-attr]
    return found
