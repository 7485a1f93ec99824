"""Counts listed words that make sentences hard to read, per 1,000 words of docs, messages, docstrings and comments.

python docs/words.py           the figures; exit code 1 where one is above its ceiling (`make lint` calls this)
python docs/words.py --where   each place, as FILE:LINE: the text around it

The readers are engineers of every mother tongue, tired, at night. Name the actor instead: "no process", "another user",
"the pod that holds the run". A ceiling only ever goes down: when a figure has fallen, lower the ceiling here.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LISTED = re.compile(
    r"\b(?:nobody|somebody|anybody|everybody|whoever|whom|whose|all the same|to be had)\b", re.IGNORECASE
)
WORD = re.compile(r"[A-Za-z']+")
CODE = re.compile(r"`[^`\n]+`")
GENERATED = re.compile(r"<!-- [\w-]+: written by .*?<!-- end of [\w-]+ -->", re.DOTALL)
CEILINGS = {  # listed words per 1,000 words
    "docs": 0.2,
    "messages": 0.2,
    "docstrings": 0.2,
    "comments": 0.2,
}


@dataclass(frozen=True)
class Text:
    """One passage that a person reads."""

    kind: str  # a key of CEILINGS
    file: Path
    line: int
    text: str


def texts(root: Path = ROOT) -> Iterator[Text]:
    """All passages of the project. What a script wrote into a page counts where it comes from, as a message."""
    pages = [*root.glob("*.md"), *(root / "docs").glob("*.md"), *(root / ".github").rglob("*.md")]
    for page in sorted(pages):
        own = str(page.relative_to(root))
        kind = own if own in CEILINGS else "docs"
        text = GENERATED.sub(lambda found: "\n" * found[0].count("\n"), page.read_text())
        lines = enumerate(CODE.sub("", text).splitlines(), 1)
        yield from (Text(kind, page, number, line) for number, line in lines)
    for file in sorted([*(root / "configs").iterdir(), *(root / "units").iterdir(), *root.glob("*.toml")]):
        yield from (Text("docs", file, number, line) for number, line in comments_of_text(file.read_text()))
    for file in sorted((root / "supervisor").rglob("*.toml")):
        yield from (
            Text("messages", file, number, line) for number, line in enumerate(file.read_text().splitlines(), 1)
        )
    for file in sorted((root / "supervisor").rglob("*.py")):
        yield from of_python(file)


def comments_of_text(text: str) -> Iterator[tuple[int, str]]:
    """The comments of TOML, shell and units, with their lines."""
    for number, line in enumerate(text.splitlines(), 1):
        found = re.search(r"(?:^|\s)#(.*)", line)
        if found:
            yield number, found[1]


def of_python(file: Path) -> Iterator[Text]:
    """Docstrings, comments, and as messages all other constants of three words or more."""
    source = file.read_text()
    tree = ast.parse(source)
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings:
                yield Text("docstrings", file, node.lineno, node.value)
            elif len(WORD.findall(node.value)) >= 3:
                yield Text("messages", file, node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text("comments", file, token.start[0], token.string)


def figures(root: Path = ROOT) -> dict[str, tuple[int, int]]:
    """Of each kind: how many listed words, and how many words in all."""
    counts = dict.fromkeys(CEILINGS, (0, 0))
    for one in texts(root):
        listed, words = counts[one.kind]
        counts[one.kind] = (listed + len(LISTED.findall(one.text)), words + len(WORD.findall(one.text)))
    return counts


def rate(listed: int, words: int) -> float:
    """Listed words per 1,000 words."""
    return 1000 * listed / max(1, words)


def above(counts: dict[str, tuple[int, int]]) -> list[str]:
    """A sentence for each kind that is above its ceiling."""
    return [
        f"{kind}: {rate(*count):.2f} listed words per 1,000 words, at most {CEILINGS[kind]} are allowed: "
        "python docs/words.py --where"
        for kind, count in counts.items()
        if rate(*count) > CEILINGS[kind]
    ]


def places(root: Path = ROOT) -> Iterator[str]:
    """Each listed word with its file, its line, and the text around it."""
    for one in texts(root):
        for found in LISTED.finditer(one.text):
            line = one.line + one.text.count("\n", 0, found.start())
            around = " ".join(one.text[max(0, found.start() - 60) : found.end() + 60].split())
            yield f"{one.file.relative_to(root)}:{line}: {one.kind}: {around}"


def main() -> int:
    """Prints the figures, or with --where the places."""
    if sys.argv[1:] == ["--where"]:
        print("\n".join(places()))  # noqa: T201
        return 0
    counts = figures()
    for kind, count in counts.items():
        print(f"{kind}: {rate(*count):.2f} listed words per 1,000 ({count[0]} of {count[1]}), ceiling {CEILINGS[kind]}")  # noqa: T201
    problems = above(counts)
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)  # noqa: T201
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
