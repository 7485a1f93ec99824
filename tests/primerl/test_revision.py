"""The commit of a checkout is read from its files; no git is needed."""

from __future__ import annotations

from pathlib import Path

from supervisor.primerl.revision import revision

A, B = "a" * 40, "b" * 40


def _git(folder: Path) -> Path:
    git = folder / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    return git


def test_a_branch_a_detached_head_and_packed_refs(tmp_path: Path) -> None:
    git = _git(tmp_path)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert revision(tmp_path) == ""
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{B} refs/heads/other\n{A} refs/heads/main\n^{B}\n")
    assert revision(tmp_path) == A
    (git / "refs" / "heads" / "main").write_text(f"{B}\n")
    assert revision(tmp_path) == B
    (git / "HEAD").write_text(f"{A}\n")
    assert revision(tmp_path) == A
    (tmp_path / "src").mkdir()
    assert revision(tmp_path / "src") == A


def test_a_worktree_is_followed_to_its_repository(tmp_path: Path) -> None:
    git = _git(tmp_path / "main")
    own = git / "worktrees" / "side"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/side\n")
    (own / "commondir").write_text("../..\n")
    (git / "refs" / "heads" / "side").write_text(f"{A}\n")
    (tmp_path / "side").mkdir()
    (tmp_path / "side" / ".git").write_text(f"gitdir: {own}\n")
    assert revision(tmp_path / "side") == A


def test_no_checkout_and_nonsense_are_empty(tmp_path: Path) -> None:
    git = _git(tmp_path)
    for head in ("", "ref: ../../etc/passwd", "not a commit", "ref: /etc/passwd"):
        (git / "HEAD").write_text(head)
        assert revision(tmp_path) == ""
