"""A short document of paragraphs, lists and tables, as text for a terminal, as Markdown, or as one HTML file.

What a model or a log wrote stays text in each of them.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor import web
from supervisor.cli.render import safe, table, wrap

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~#])")
_MENTION = re.compile(r"(?<=[@#])(?=\w)")


@dataclass(frozen=True)
class Paragraph:
    """One or more sentences."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """The first row is the head; all but the first column are aligned to the right where ``numbers`` says so."""

    rows: Sequence[Sequence[str]]
    numbers: bool = False


Block = Paragraph | Bullets | Table


@dataclass(frozen=True)
class Section:
    """A heading, "" for the beginning, and what follows it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """A title and its sections; those without blocks are left out."""

    title: str
    sections: Sequence[Section]

    def list_sections(self) -> list[Section]:
        """Those that have something to say."""
        return [one for one in self.sections if one.blocks]


# ---------------------------------------------------------------- text


def to_text(document: Document) -> list[str]:
    """Lines for a terminal."""
    lines = wrap(document.title)
    for section in document.list_sections():
        lines += ["", section.title] if section.title else []
        indent = "  " if section.title else ""
        for block in section.blocks:
            lines += _text_of_block(block, indent)
    return lines


def _text_of_block(block: Block, indent: str) -> Iterable[str]:
    match block:
        case Paragraph(text):
            return wrap(text, indent)
        case Bullets(told):
            return [part for line in told for part in wrap(line, f"{indent}- ", hang=f"{indent}  ")]
        case Table(rows):
            return _text_of_table([[safe(cell) for cell in row] for row in rows], indent)


def _text_of_table(rows: Sequence[Sequence[str]], indent: str) -> Iterable[str]:
    """The last column is broken into lines below each other."""
    fronts = table([(*row[:-1], "|") for row in rows])
    for front, row in zip(fronts, rows, strict=True):
        head = f"{indent}{front.rstrip('|')}"
        yield from wrap(row[-1], head, hang=" " * len(head)) or [head.rstrip()]


# ---------------------------------------------------------------- Markdown


def to_markdown(document: Document) -> str:
    """As issues and chats take it."""
    parts = [f"# {mark_down(document.title)}"]
    for section in document.list_sections():
        parts += [f"## {mark_down(section.title)}"] if section.title else []
        parts += [_markdown_of_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def mark_down(text: str) -> str:
    """Text that stays text in Markdown: no markup, no HTML, no link to a person or an issue."""
    return _MENTION.sub("\u200b", _MARKDOWN.sub(r"\\\1", safe(text)))


def _markdown_of_block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return mark_down(text)
        case Bullets(told):
            return "\n".join(f"- {mark_down(line)}" for line in told)
        case Table(rows, numbers):
            head, *rest = ([mark_down(cell) for cell in row] for row in rows)
            rule = ["---", *(["---:" if numbers else "---"] * (len(head) - 1))]
            return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rest))


# ---------------------------------------------------------------- HTML


def to_html(document: Document) -> str:
    """One file that needs nothing else, in the style of the page."""
    style = (Path(web.__file__).parent / "static" / "page.css").read_text(encoding="utf-8")
    title = html.escape(safe(document.title))
    parts = [f"<h1>{title}</h1>"]
    for section in document.list_sections():
        parts += [f"<h2>{html.escape(safe(section.title))}</h2>"] if section.title else []
        parts += [_html_of_block(block) for block in section.blocks]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta http-equiv="content-security-policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
    )
    body = "\n".join(parts)
    return f"{head}<style>{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"


def _html_of_block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return f"<p>{html.escape(safe(text))}</p>"
        case Bullets(told):
            return f"<ul>{''.join(f'<li>{html.escape(safe(line))}</li>' for line in told)}</ul>"
        case Table(rows):
            head, *rest = rows
            lines = [("th", head), *(("td", row) for row in rest)]
            cells = (
                "<tr>" + "".join(f"<{tag}>{html.escape(safe(cell))}</{tag}>" for cell in row) + "</tr>"
                for tag, row in lines
            )
            return f"<table>{''.join(cells)}</table>"
