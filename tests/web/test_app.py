"""The page's program over real HTTP: GET alone, no way in without the token, and no answer that a site could use."""

from __future__ import annotations

import gzip
import http.client
import json
import random
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from supervisor.jobs.environment import environment_of_commands
from supervisor.web import app
from supervisor.web.app import freeze_page
from supervisor.web.history import Piece
from supervisor.web.page import curves_of_run, page_of_run
from supervisor.web.sources import Seen
from tests.web.served import NOW, SCRIPT, Told, seen, serve

TOKEN = "token-of-the-tests-0123456789"
PAGES = (
    "/",
    "/runs.json",
    "/run.json?run=swe",
    "/charts.json?run=swe",
    "/log.txt?run=swe&name=trainer",
    "/static/page.js",
    "/static/plotly.js",
)


def ask(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_a_run_is_told_whole() -> None:
    with serve({"swe": Told(seen(), {"trainer": "step 50\n\x1b[31mred\x1b[0m"})}) as address:
        told = json.loads(ask(address, "/run.json?run=swe")[2])
        told |= json.loads(ask(address, "/charts.json?run=swe")[2])
        assert [one["id"] for one in told["charts"]] == ["reward", "loss", "step", "gpu-memory", "gpu-load", "disk"]
        assert told["money"] == {
            "hours": 1.11,
            "useful": 0.9,
            "per_hour": 2.0,
            "dollars": 2.22,
            "per_useful_hour": 2.22,
        }
        assert [one["share"] for one in told["time"]] == ["90.0 %", "7.5 %", "2.5 %"]
        assert [(one["step"], one.get("here"), one.get("store"), one.get("told")) for one in told["steps"]] == [
            (50, "complete", None, None),
            (40, None, "published", "quarantined"),
        ]
        assert [one["id"] for one in told["incidents"]] == [2, 1]
        [runs] = json.loads(ask(address, "/runs.json")[2])["runs"]
        assert (runs["run"], runs["state"], runs["step"]) == ("swe", "running", 50)
        assert ask(address, "/log.txt?run=swe&name=trainer")[2] == b"step 50\nred"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_is_ordered_here(method: str) -> None:
    with serve({"swe": Told(seen())}) as address:
        assert {ask(address, path, method)[0] for path in PAGES} == {405}


def test_every_answer_forbids_what_a_page_of_another_site_could_do() -> None:
    with serve({"swe": Told(seen(), {"trainer": ""})}) as address:
        for path in (*PAGES, "/nothing", "/run.json?run=other", "/log.txt?run=swe&name=other"):
            status, headers, _ = ask(address, path)
            assert status == (200 if path in PAGES else 404), path
            assert "script-src 'self';" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in headers
            assert "server" not in headers


def test_on_loopback_another_name_for_it_is_refused() -> None:
    with serve({"swe": Told(seen())}) as address:
        assert ask(address, "/run.json?run=swe", Host="rebound.example:80")[0] == 403
        assert ask(address, "/run.json?run=swe", Host="localhost:8400")[0] == 200


def test_without_the_token_nothing_is_told_and_the_first_link_is_enough() -> None:
    told = Told(seen(), {"trainer": "secret of the run"})
    with serve({"swe": told}, TOKEN) as address:
        for path in PAGES:
            for wrong in (path, f"{path}{'&' if '?' in path else '?'}t=wrong", f"{path}#{TOKEN}"):
                status, _, body = ask(address, wrong, Cookie="rl-supervisor-token=wrong")
                assert status == 403
                assert b"step" not in body and b"secret" not in body
        assert told.looks == 0
        status, headers, _ = ask(address, f"/?run=swe&t={TOKEN}")
        assert (status, headers["location"]) == (303, ".?run=swe"), "also behind a proxy with a prefix of its own"
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert ask(address, "/run.json?run=swe", Cookie=cookie.partition(";")[0])[0] == 200


def test_two_pages_of_one_host_do_not_lock_each_other_out() -> None:
    with serve({"swe": Told(seen())}, TOKEN) as one, serve({"swe": Told(seen())}, f"other-{TOKEN}") as other:
        jar = "; ".join(
            ask(address, f"/?t={token}")[1]["set-cookie"].partition(";")[0]
            for address, token in ((one, TOKEN), (other, f"other-{TOKEN}"))
        )
        assert [ask(address, "/run.json?run=swe", Cookie=jar)[0] for address in (one, other)] == [200, 200]


def test_a_secret_that_a_run_printed_is_masked_wherever_it_stands() -> None:
    secret = "0123456789abcdef0123456789abcdef01234567"
    row = {"t": NOW, "event": "verdict", "level": "error", "sentence": f"WANDB_API_KEY={secret}"}
    status = {"state": "running", "sentence": f"It printed WANDB_API_KEY={secret}."}
    told = page_of_run(seen(status=status, pieces=[Piece("a", 1, [row])]), None)
    assert "WANDB_API_KEY" in told["sentence"] and "WANDB_API_KEY" in told["marks"][0]["sentence"]
    assert secret not in json.dumps(told)


def test_no_command_of_a_run_gets_the_token_of_its_page() -> None:
    assert environment_of_commands({"RL_SUPERVISOR_WEB_TOKEN": TOKEN, "PATH": "/bin"}) == {"PATH": "/bin"}


def test_charts_are_sent_again_only_when_something_was_added_and_made_once_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []
    monkeypatch.setattr(app, "curves_of_run", lambda seen: made.append(seen) or curves_of_run(seen))
    told = Told(seen())
    with serve({"swe": told}) as address:
        run, charts = (ask(address, f"/{name}.json?run=swe")[1]["etag"] for name in ("run", "charts"))
        told.seen = replace(told.seen, status={**(told.seen.status or {}), "sentence": "step 51 of 100"})
        assert ask(address, "/run.json?run=swe", If_None_Match=run)[0] == 200
        assert ask(address, "/charts.json?run=swe", If_None_Match=charts)[0] == 304
        told.seen = replace(told.seen, pieces=[*told.seen.pieces, Piece("b", 1, [{"t": NOW, "disk": 5e9}])])
        assert [ask(address, "/charts.json?run=swe", If_None_Match=charts)[0] for _ in range(5)] == [200] * 5
    assert len(made) == 2


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/page.html", "/static//etc/passwd"]
)
def test_no_other_file_is_served(path: str) -> None:
    with serve({"swe": Told(seen())}) as address:
        assert ask(address, path)[0] == 404


def test_what_did_not_change_is_not_sent_again() -> None:
    with serve({"swe": Told(seen())}) as address:
        sign = ask(address, "/run.json?run=swe")[1]["etag"]
        assert ask(address, "/run.json?run=swe", If_None_Match=sign)[0] == 304


@pytest.mark.soak
def test_a_run_of_ten_thousand_steps_is_sent_within_its_limits() -> None:
    luck = random.Random(1)
    rows = [
        {"t": NOW - 60.0 * n, "step": 10_000 - n, "role": "trainer", "s": 60 + luck.random()}
        | {name: luck.random() for name in ("reward", "loss", "tps")}
        for n in range(10_000)
    ][::-1]
    gpus = {str(n): [luck.randrange(8 << 33), 8 << 33, 50] for n in range(8)}
    samples = [{"t": NOW - 30.0 * n, "disk": luck.random() * 1e12, "gpu": gpus} for n in range(20_000)][::-1]
    with serve({"swe": Told(seen(pieces=[Piece("a", 1, rows), Piece("b", 1, samples)]))}) as address:
        sizes = {}
        for path in (
            "/",
            "/runs.json",
            "/run.json?run=swe",
            "/charts.json?run=swe",
            "/static/page.js",
            "/static/page.css",
            "/static/plotly.js",
        ):
            _, headers, body = ask(address, path, Accept_Encoding="gzip")
            sizes[path] = len(body)
            assert headers.get("content-encoding") == "gzip" or len(body) < 1000
            assert gzip.decompress(body) if "content-encoding" in headers else body
        assert sum(sizes.values()) <= 2_000_000, sizes
        assert sizes["/run.json?run=swe"] + sizes["/charts.json?run=swe"] <= 200_000, sizes


def test_one_file_has_the_page_and_no_text_of_the_run_ends_its_element() -> None:
    page = freeze_page(page_of_run(seen(), 2.0))
    assert SCRIPT not in page and "<img src=x" not in page
    assert "http-equiv" not in page and 'src="static' not in page and 'href="static' not in page
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert SCRIPT in json.loads(data)["sentence"]


def test_a_run_of_which_the_store_alone_knows() -> None:
    rows = [{"t": NOW - 300, "event": "verdict", "level": "error", "sentence": "The pod was taken away."}]
    told = page_of_run(Seen("swe", NOW, newest={"step": 40, "wandb_run_id": "w"}, pieces=[Piece("a", 1, rows)]), None)
    assert told["sentence"] == "Step 40 is the newest that is published. 5 min ago: The pod was taken away."
    assert told["facts"] == [["published", "step 40"], ["W&B", "w"]]
    assert told["money"] is None
    assert page_of_run(Seen("swe", NOW, steps=[]), None)["sentence"] == "No step is published yet."
    assert page_of_run(Seen("swe", NOW), None)["sentence"] == "Nothing is known of this run."


def test_a_daemon_that_gives_no_answer_is_told_first_and_nothing_is_made_up_of_it() -> None:
    told = page_of_run(Seen("swe", NOW, newest={"step": 40}, silent="swe gave no answer in 5 s."), None)
    assert told["sentence"] == "swe gave no answer in 5 s. Step 40 is the newest that is published."
    assert (told["state"], told["is_live"]) == ("unknown", False)


def test_without_a_daemon_the_page_says_since_when_what_lives_and_who_starts_it_again() -> None:
    ended = {"since": NOW - 120, "last_words": {"sentence": "step 7 of 9"}, "job": {"attempt": 2}, "parent_pid": 5}
    told = page_of_run(Seen("swe", NOW, ended=ended), None)
    assert told["sentence"] == (
        "No daemon answers here for 2 min. The job lives on without it (attempt 2). It is started again by its parent. "
        "Before: step 7 of 9"
    )
    assert told["state"] == "unwatched"
    gone = page_of_run(Seen("swe", NOW, ended={"since": NOW - 7200, "why": "A person is needed."}), None)
    assert gone["sentence"] == (
        "No daemon answers here for 2 h. Nothing of the job runs. Nothing starts it again: `supervisorctl status` "
        "there says what to type. Before: A person is needed."
    )
    assert gone["state"] == "not running"
    over = page_of_run(Seen("swe", NOW, ended={"finished": True, "why": "The run is finished."}), None)
    assert (over["state"], over["sentence"]) == ("finished", "The run is finished. Its daemon has ended.")
