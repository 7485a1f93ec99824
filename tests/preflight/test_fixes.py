"""The certain remedies as a patch: what it changes, what it leaves, and how it is put into a person's file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from supervisor.cli import fixing
from supervisor.preflight import fixes
from supervisor.preflight.finding import Edit, Finding, Where
from supervisor.preflight.fixes import FixError, Patch

TEXT = "a = 1\nb = 2\nc = 3\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rl.toml"
    path.write_text(TEXT)
    return path


def finding(file: Path, *edits: tuple[int, int, str], name: str = "run-file") -> Finding:
    """A finding whose edits put text (lines; empty: none) in the place of lines."""
    made = tuple(Edit(file, first, last, tuple(text.splitlines())) for first, last, text in edits)
    return Finding(name, "It is wrong.", Where(str(file), edits[0][0]), edits=made)


def after(file: Path, *found: Finding) -> str:
    [patch] = fixes.fixes(found).patches
    assert patch.file == file
    return patch.after.decode()


@pytest.mark.parametrize(
    ("edits", "text"),
    [
        ([(2, 2, "b = 9")], "a = 1\nb = 9\nc = 3\n"),
        ([(2, 2, "")], "a = 1\nc = 3\n"),
        ([(1, 0, "z = 0")], "z = 0\na = 1\nb = 2\nc = 3\n"),
        ([(4, 3, "d = 4\ne = 5")], "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\n"),
        ([(1, 2, "x = 0")], "x = 0\nc = 3\n"),
        ([(1, 1, ""), (4, 3, "a = 1")], "b = 2\nc = 3\na = 1\n"),
        ([(2, 1, "p = 0"), (2, 1, "q = 0"), (2, 2, "b = 9")], "a = 1\np = 0\nq = 0\nb = 9\nc = 3\n"),
    ],
)
def test_lines_are_replaced_deleted_and_inserted(file: Path, edits: list[tuple[int, int, str]], text: str) -> None:
    assert after(file, finding(file, *edits)) == text


def test_several_findings_make_one_patch_and_the_diff_shows_it(file: Path) -> None:
    found = [finding(file, (3, 3, "c = 30")), finding(file, (1, 1, "a = 10"))]
    made = fixes.fixes([*found, Finding("run-file", "Nothing certain.")])
    assert made.mended == found
    assert made.left == []
    assert made.patches[0].diff().splitlines()[2:] == [
        *("@@ -1,3 +1,3 @@", "-a = 1", "+a = 10", " b = 2", "-c = 3", "+c = 30"),
    ]


def test_of_two_that_change_the_same_lines_the_first_wins_and_the_other_is_named(file: Path) -> None:
    first = finding(file, (2, 3, "b = 9"))
    second = finding(file, (1, 1, "a = 9"), (3, 3, "c = 9"))
    made = fixes.fixes([first, second])
    assert made.patches[0].after == b"a = 1\nb = 9\n", "and of the other nothing is done by halves"
    assert made.left == [(second, f"another remedy changes the same lines of {file}")]


def test_the_same_edit_of_two_findings_is_made_once(file: Path) -> None:
    twice = [finding(file, (4, 3, "d = 4")), finding(file, (4, 3, "d = 4"))]
    assert after(file, *twice) == TEXT + "d = 4\n"
    assert fixes.fixes(twice).mended == twice


def test_an_edit_that_would_spoil_a_good_file_is_left_out(file: Path) -> None:
    made = fixes.fixes([finding(file, (2, 2, "a = 2"))])
    assert made.patches == []
    assert made.left[0][1] == f"{file} would not be TOML any more"


def test_a_file_that_is_no_toml_may_be_mended_by_and_by(file: Path) -> None:
    file.write_text("a = x\nb = y\n")
    assert after(file, finding(file, (1, 1, 'a = "x"'))) == 'a = "x"\nb = y\n'


def test_lines_that_are_not_there_any_more_change_nothing(file: Path) -> None:
    made = fixes.fixes([finding(file, (7, 7, "x = 1"))])
    assert (made.patches, made.left[0][1]) == ([], f"{file} has no lines 7 to 7 any more")
    file.unlink()
    assert "cannot be read" in fixes.fixes([finding(file, (1, 1, ""))]).left[0][1]


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        (b"a = 1\r\nb = 2\r\n", b"a = 1\r\nb = 9\r\n"),
        (b"\xef\xbb\xbfa = 1\nb = 2\n", b"\xef\xbb\xbfa = 1\nb = 9\n"),
        (b"a = 1\nb = 2", b"a = 1\nb = 9\n"),
        ('a = "\u2028\x0c"\nb = 2\n'.encode(), 'a = "\u2028\x0c"\nb = 9\n'.encode()),
    ],
)
def test_line_ends_marks_and_odd_characters_stay_as_they_were(file: Path, before: bytes, wanted: bytes) -> None:
    file.write_bytes(before)
    [patch] = fixes.fixes([finding(file, (2, 2, "b = 9"))]).patches
    assert patch.after == wanted
    shown = [line[1:] for line in patch.diff().split("\n")[3:] if line[:1] in (" ", "-")]
    assert "\n".join(shown) == before.decode().removesuffix("\n"), "`patch` compares with the very text"


def test_a_last_line_without_an_end_gets_one_before_what_follows(file: Path) -> None:
    file.write_text("a = 1")
    made = fixes.fixes([finding(file, (2, 1, "b = 2"))])
    assert made.patches[0].after == b"a = 1\nb = 2\n"
    assert "\\ No newline at end of file" in made.patches[0].diff()


# ---------------------------------------------------------------- writing


def test_the_file_gets_its_new_text_with_its_owner_and_mode_and_the_old_one_is_kept(file: Path) -> None:
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 1234, 2345)
    owner = (file.stat().st_uid, file.stat().st_gid)
    kept = fixes.write(Patch(file, TEXT.encode(), b"new = 1\n"))
    assert (file.read_text(), kept.read_text(), kept.name) == ("new = 1\n", TEXT, "rl.toml.orig")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert (file.stat().st_uid, file.stat().st_gid) == owner == (kept.stat().st_uid, kept.stat().st_gid)
    assert fixes.write(Patch(file, b"new = 1\n", b"newer = 1\n")).name == "rl.toml.orig2"
    assert kept.read_text() == TEXT, "an older text is never written over"
    assert sorted(path.name for path in file.parent.iterdir()) == ["rl.toml", "rl.toml.orig", "rl.toml.orig2"]


def test_a_file_that_was_changed_meanwhile_is_left_as_it_is(file: Path) -> None:
    patch = Patch(file, TEXT.encode(), b"new = 1\n")
    file.write_text(TEXT + "d = 4\n")
    with pytest.raises(FixError, match="was changed meanwhile, and is left as it is"):
        fixes.write(patch)
    assert file.read_text() == TEXT + "d = 4\n"
    assert list(file.parent.iterdir()) == [file]


def test_a_link_is_followed_and_stays_one(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.toml"
    link.symlink_to(file)
    fixing.show([finding(link, (1, 1, "new = 1"))], write=True, command="check")
    told = capsys.readouterr().err
    assert f"{link}, a link to {file}, is written; its former text is {file}.orig." in told
    assert link.is_symlink()
    assert file.read_text() == link.read_text() != TEXT
    assert Path(f"{file}.orig").read_text() == TEXT


def test_a_file_with_two_names_keeps_both(file: Path) -> None:
    file.chmod(0o640)
    other = file.with_name("other.toml")
    other.hardlink_to(file)
    kept = fixes.write(Patch(file, TEXT.encode(), b"new = 1\n"))
    assert other.read_text() == file.read_text() == "new = 1\n"
    assert kept.read_text() == TEXT
    assert (other.stat().st_ino, other.stat().st_nlink, other.stat().st_mode & 0o777) == (file.stat().st_ino, 2, 0o640)
    assert sorted(one.name for one in file.parent.iterdir()) == sorted([file.name, "other.toml", kept.name])


def test_a_folder_that_may_not_be_written_is_one_sentence(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(file.parent))

    monkeypatch.setattr(fixes.shutil, "copy2", refused)
    with pytest.raises(FixError, match=r"rl\.toml is left as it is: Permission denied"):
        fixes.write(Patch(file, TEXT.encode(), b"new = 1\n"))
    assert file.read_text() == TEXT


def test_a_file_that_may_not_be_written_gets_no_copy_beside_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Path, mode: str = "r", *rest: object, **more: object) -> object:
        if path == file and mode != "rb":
            raise PermissionError(13, "Permission denied", str(path))
        return true(path, mode, *rest, **more)  # type: ignore[call-overload]

    true = Path.open
    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(FixError, match=r"rl\.toml is left as it is: Permission denied"):
        fixes.write(Patch(file, TEXT.encode(), b"new = 1\n"))
    assert list(file.parent.iterdir()) == [file]


def test_a_copy_for_which_there_is_no_room_leaves_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(_: Path, kept: Path) -> None:
        kept.write_text("a =")
        raise OSError(28, "No space left on device", str(kept))

    monkeypatch.setattr(fixes.shutil, "copy2", torn)
    with pytest.raises(FixError, match=r"rl\.toml is left as it is: No space left on device"):
        fixes.write(Patch(file, TEXT.encode(), b"new = 1\n"))
    assert (file.read_text(), list(file.parent.iterdir())) == (TEXT, [file])


def test_where_there_is_no_room_the_file_is_as_it_was(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_over = fixes._write_over

    def full(path: Path, content: bytes) -> None:
        write_over(path, content[:4])
        if content != TEXT.encode():
            raise OSError(28, "No space left on device", str(path))
        write_over(path, content)

    monkeypatch.setattr(fixes, "_write_over", full)
    with pytest.raises(FixError, match=r"rl\.toml is left as it is: No space left on device"):
        fixes.write(Patch(file, TEXT.encode(), b"new = 1\n"))
    assert file.read_text() == TEXT
    assert list(file.parent.iterdir()) == [file]
