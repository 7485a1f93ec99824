"""Words of shell text are read as bash itself reads them; what only a running shell could know is called unknown."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from supervisor.cli.shell_text import read
from supervisor.cli.shell_words import Scope, Word

BASH = shutil.which("bash")
ENVIRON = {"HOME": "/root", "PATH": "/usr/bin:/bin", "NAME": "a b", "EMPTY": "", "ONE": "1"}

ALIKE = [
    *("a b c", "'a b' c", '"a b" c', "a\\ b c", "a'b'\"c\"d", "''", '""', '"" a', "a''", "--x='a b'", '--x="a b"'),
    *('"a\\"b"', "'a\\b'", '"a\\b"', '"\\$ONE"', "'$ONE'", "\\$ONE", "a\\\nb", '"a\\\nb"', "'a\\\nb'", "'a\nb'"),
    *(
        "$ONE",
        "${ONE}",
        '"$ONE"',
        "x${ONE}y",
        "$NAME",
        '"$NAME"',
        "x$NAME",
        "${NAME}x",
        '"x${NAME}y"',
        "$EMPTY",
        '"$EMPTY"',
    ),
    *("${GONE:-d}", "${GONE:-d e}", '"${GONE:-d e}"', "${EMPTY:-d}", "${ONE:-d}", "${GONE:-$ONE}", "${GONE:-${ONE}x}"),
    *("~/x", "~", "a~", "'~/x'", "--x ~/y", "$'a\\tb\\n'", '$"a"', "a#b", "a #b", "a # b", "{a}", "x=1 y=2"),
    *('\'["q", "k"]\'', '\'{"a": "b c"}\'', "a;b", "1.5e-6", "@ x.toml", "--n=-1", "a,b", "%", "a=b", "é"),
    *("$ONE$NAME$ONE", '$ONE"$NAME"$ONE', '"it\'s"', "'say \"x\"'", "a\tb", "  a  b  ", "a\\;b", '"a;b|c&d"', "$"),
]


@pytest.mark.skipif(BASH is None, reason="there is no bash to compare with")
@pytest.mark.parametrize("text", ALIKE)
def test_a_word_is_what_bash_makes_of_it(text: str) -> None:
    assert BASH is not None
    first = text.split(";", 1)[0] if text == "a;b" else text
    asked = subprocess.run(
        [BASH, "--norc", "-c", f"printf '%s\\0' x {first}"], env=ENVIRON, capture_output=True, timeout=20, check=True
    )
    theirs = asked.stdout.decode().split("\0")[1:-1]
    assert [word.text for word in words(f"x {first}")[1:]] == theirs


def words(text: str, **environ: str) -> list[Word]:
    scope = Scope({**ENVIRON, **environ})
    found: list[Word] = []
    for command in read(text).commands:
        for assignment in command.assignments:
            scope.assign(assignment)
        found = [word for one in command.words for word in scope.expand(one)] or found
    return found


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("x $(date +%s)", "$(date +%s)"),
        ("x `date`", "`date`"),
        ("x $((1 + 2))", "$((1 + 2))"),
        ("x ${ONE%1}", "${ONE%1}"),
        ("x ${#ONE}", "${#ONE}"),
        ("x $GONE", "$GONE"),
        ("x <(ls)", "(ls)"),
        ("x 2>(tee log)", "(tee log)"),
        ("for i\\\n in 1 2; do x $i; done", "$i"),
        ("x ${NAMES[0]}", "${NAMES[0]}"),
        ("for i in 1 2; do x $i; done", "$i"),
        ("x $WANDB_API_KEY", "$WANDB_API_KEY"),
    ],
)
def test_what_only_a_running_shell_knows_stays_as_it_is(text: str, unknown: str) -> None:
    (found,) = words(text, WANDB_API_KEY="0123456789")[1:]
    assert found.unknown == (unknown,)
    assert "0123456789" not in found.text


def test_defaults_may_stand_side_by_side_as_often_as_one_likes() -> None:
    many = " ".join(f"${{V{number}:-{number}}}" for number in range(40))
    assert words(f"x ${{ARGS:-{many}}}")[1:] == [Word(str(number)) for number in range(40)]
    deep = "0"
    for number in range(40):
        deep = f"${{V{number}:-{deep}}}"
    assert words(f"x {deep}")[1].unknown


def test_lists_and_assignments() -> None:
    assert [word.text for word in words('A=(1 "2 3")\nA+=(4)\nx "${A[@]}"')] == ["x", "1", "2 3", "4"]
    assert [word.text for word in words("A=1\nA+=2\nB=$A$A\nx $B")] == ["x", "1212"]
    assert [word.text for word in words('A="a b"\nx $A "$A"')] == ["x", "a", "b", "a b"]


def test_commands_their_lines_and_what_joins_them() -> None:
    text = "a && b || c; d | e &\n# no\nif f; then\n  g \\\n    h\nfi\n(i; j) > out 2>&1\n"
    found = read(text).commands
    shown = [(one.line, " ".join(one.words), one.before, one.after) for one in found if one.words]
    assert shown == [
        (1, "a", "\n", "&&"),
        (1, "b", "&&", "||"),
        (1, "c", "||", ";"),
        (1, "d", ";", "|"),
        (1, "e", "|", "&"),
        (3, "f", "\n", ";"),
        (4, "g h", "\n", "\n"),
        (7, "i", "(", ";"),
        (7, "j", ";", ")"),
    ]


def test_the_text_of_a_here_document_is_no_command() -> None:
    found = read("cat > a.toml <<'EOF'\nuv run rl @ no.toml\nEOF\nx\n")
    assert [" ".join(one.words) for one in found.commands] == ["cat", "x"]
    assert found.commands[-1].line == 4
