"""The audit of what the daemon runs with: a finding fails, a service that is away does not, and both are told apart."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import audit

FLAW = {"id": "PYSEC-2026-1", "fix_versions": ["99.0"], "aliases": ["CVE-2026-1"], "description": "It is bad."}
AWAY = "ERROR:pip_audit._cli:Could not connect to the service: [Errno 111] Connection refused"


def stand_in(tmp_path: Path, out: str, err: str, code: int) -> str:
    """A program that ends as pip-audit does."""
    script = tmp_path / "pip-audit"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nprint({out!r})\nprint({err!r}, file=sys.stderr)\nsys.exit({code})\n"
    )
    script.chmod(0o755)
    return str(script)


def told(*dependencies: dict[str, Any]) -> str:
    return json.dumps({"dependencies": list(dependencies), "fixes": []})


def asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, *more: str
) -> tuple[int, str]:
    monkeypatch.setenv("PIP_AUDIT", command)
    return audit.main(["--", *more] if more else []), capsys.readouterr().out


GOOD = {"name": "psutil", "version": "7.2.2", "vulns": []}
BAD = {"name": "urllib3", "version": "2.8.0", "vulns": [FLAW]}
UNKNOWN = {"name": "requests", "skip_reason": "Dependency not found"}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("out", "err", "code", "ends", "says"),
    [
        (told(GOOD), "No known vulnerabilities found", 0, 0, "No known vulnerability in 1 of"),
        (
            told(GOOD, BAD),
            "Found 1 known vulnerability",
            1,
            1,
            "urllib3 2.8.0: PYSEC-2026-1 (CVE-2026-1), mended in 99.0",
        ),
        (told(GOOD, UNKNOWN), "", 0, 0, "Not looked at: requests (Dependency not found)."),
        (told(UNKNOWN), "No known vulnerabilities found", 0, 0, "did not run: the service knows none of the packages."),
        ("", AWAY, 1, 0, f"did not run: {AWAY}."),
        (
            "",
            "/usr/bin/python: No module named pip_audit",
            1,
            0,
            "did not run: /usr/bin/python: No module named pip_audit.",
        ),
        ('{"dependencies": 5}', "half a word", 1, 0, "did not run: half a word."),
        (told(GOOD), "killed", 137, 0, "did not run: killed."),
    ],
)
def test_only_a_finding_fails_and_what_did_not_run_is_said(  # noqa: PLR0917
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    out: str,
    err: str,
    code: int,
    ends: int,
    says: str,
) -> None:
    found, text = asked(monkeypatch, capsys, stand_in(tmp_path, out, err, code))
    assert says in text
    assert found == ends


def test_without_the_program_it_did_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, text = asked(monkeypatch, capsys, str(tmp_path / "none"))
    assert (code, "did not run" in text, "No such file" in text) == (0, True, True)


def test_what_is_asked_is_what_the_daemon_runs_with_in_pinned_versions() -> None:
    names = audit.runtime()
    assert {"pydantic", "psutil", "b2sdk", "urllib3"} <= names
    assert not names & {"pytest", "hypothesis", "botocore", "matplotlib"}
    lines = audit.requirements(names, audit.pinned((audit.ROOT / "constraints.txt").read_text()))
    assert all("==" in line for line in lines)
    with pytest.raises(SystemExit, match="no version of psutil"):
        audit.requirements({"psutil"}, {})


# ---------------------------------------------------------------- the real program, and a service of our own


@contextmanager
def service(flawed: str) -> Iterator[str]:
    """The address of a service that speaks OSV's protocol (osv.dev/docs, POST /v1/query) and knows one flaw."""

    class Pages(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            name = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]["name"]
            package = {"name": name, "ecosystem": "PyPI"}
            ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "999.0"}]}]
            flaw = {"id": "PYSEC-2026-7", "summary": "bad", "affected": [{"package": package, "ranges": ranges}]}
            body = json.dumps({"vulns": [flaw]} if name == flawed else {}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/query"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.soak
@pytest.mark.skipif(find_spec("pip_audit") is None, reason="pip-audit is not installed here")
def test_the_real_program_is_understood_with_a_flaw_without_one_and_with_no_service() -> None:
    def run(url: str) -> tuple[int, str]:
        words = [sys.executable, "-m", "tests.audit", "--", "--vulnerability-service", "osv", "--osv-url", url]
        done = subprocess.run(words, cwd=audit.ROOT, capture_output=True, text=True, timeout=200, check=False)
        return done.returncode, done.stdout + done.stderr

    with service("psutil") as url:
        code, text = run(url)
        assert (code, "psutil" in text, "PYSEC-2026-7" in text) == (1, True, True), text
    with service("") as url:
        code, text = run(url)
        assert (code, "No known vulnerability in" in text) == (0, True), text
    code, text = run(url)  # it is gone
    assert (code, "did not run: " in text) == (0, True), text
