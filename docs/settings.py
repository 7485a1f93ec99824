"""Writes the tables of docs/settings.md from the run file's models, so that the two cannot differ.

python docs/settings.py           print it
python docs/settings.py --write   put it into docs/settings.md
"""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pages import main
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from supervisor.config.section import describe_settings
from supervisor.config.settings import RunFile

PAGE = Path(__file__).with_name("settings.md")


def tables() -> str:
    """Markdown: a heading and a table for each section of the run file."""
    return "\n".join(
        _section(name, model) for name, field in RunFile.model_fields.items() if (model := _model(field)) is not None
    )


def _section(name: str, model: type[BaseModel]) -> str:
    parts = [f"\n**`[{name}]`** {_text(model.__doc__)}\n", "| setting | default | what it is |", "| --- | --- | --- |"]
    inner = []
    # The table's own settings come before those that it takes from the core.
    for key, setting in sorted(model.model_fields.items(), key=lambda item: item[0] not in model.__annotations__):
        below = _model(setting)
        if below is not None:
            inner.append(_section(f"{name}.{key}", below))
            continue
        parts.append(f"| `{key}` | {_default(setting)} | {_text(describe_settings(model).get(key))} |")
    return "\n".join([*parts, *inner, ""])


def _model(field: FieldInfo) -> type[BaseModel] | None:
    kinds = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, (BaseModel, NoneType)):
        return ""
    return f"`{json.dumps(str(value) if isinstance(value, Path) else value)}`"


def _text(text: str | None) -> str:
    """One line of Markdown; in a table, a bar would end the cell."""
    return " ".join((text or "").split()).replace(" Required.", "").replace("|", "\\|")


def parts() -> dict[str, str]:
    """What stands between which marks of the page."""
    return {"settings": tables()}


if __name__ == "__main__":
    main(PAGE, parts())
