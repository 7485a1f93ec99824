"""What every table of the run file is made from."""

from __future__ import annotations

import ast
import inspect
from dataclasses import is_dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A table of the run file; unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """The settings that a table takes from the core (``core/settings.py``) keep their docstrings."""
        for declared in filter(is_dataclass, cls.__bases__):
            lines = ast.parse(inspect.getsource(declared)).body[0].body  # type: ignore[attr-defined]
            for line, text in pairwise(lines):
                if isinstance(line, ast.AnnAssign) and isinstance(text, ast.Expr):
                    cls.model_fields[line.target.id].description = text.value.value  # type: ignore[attr-defined,union-attr]
