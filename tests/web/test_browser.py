"""The page in a real browser (Debian's chromium): what a person sees, and what a hostile text cannot do."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.web.app import freeze_page
from supervisor.web.history import Piece
from supervisor.web.page import page_of_run
from tests.web.served import NOW, SCRIPT, Told, seen, serve

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
SHOTS = Path(__file__).parents[2] / "build/screenshots"
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium: apt-get install --no-install-recommends chromium"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


class Tab:
    """A page, with all that it asked for and complained of.

    Without ``charts`` nothing is drawn: most of what a page costs is to read plotly.
    """

    def __init__(self, browser: Any, address: str, *, charts: bool = True, **words: Any) -> None:
        self.page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}, **words})
        if not charts:
            nothing = "window.Plotly = { react() {}, purge() {} };"
            self.page.route("**/plotly.js", lambda route: route.fulfill(body=nothing, content_type="text/javascript"))
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.page.on("request", lambda one: self.asked.append(one.url))
        self.page.on("console", lambda one: self.wrong.append(one.text) if one.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda one: self.wrong.append(str(one)))
        self.page.goto(address)

    def wait_for_charts(self) -> None:
        self.page.wait_for_selector("#charts .main-svg")

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def keep_shot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(SHOTS / name), full_page=True)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve({"swe": Told(seen(), {"trainer": f"line one\nline two {SCRIPT}\n"})}) as found:
        yield found


@pytest.fixture(scope="module")
def opened(browser: Any, address: str) -> Iterator[Tab]:
    """One page for those that only read it or put back what they did: a page with its charts takes seconds."""
    tab = Tab(browser, address)
    tab.wait_for_charts()
    yield tab
    tab.page.close()


@pytest.fixture
def tab(opened: Tab) -> Iterator[Tab]:
    """It as it was opened: all of the time, no incident unfolded, the log whole."""
    yield opened
    if opened.page.get_attribute("button[data-hours='0']", "aria-pressed") != "true":
        opened.page.click("button[data-hours='0']")
        opened.wait_for_charts()
    opened.page.evaluate("document.querySelectorAll('#incidents details').forEach(one => { one.open = false })")
    opened.page.fill("#log-find", "")


def test_each_panel_says_what_is_known(tab: Tab) -> None:
    assert tab.text("#sentence").startswith("step 50 of 100, 60 s ")
    assert "$2.22 so far at $2.00 an hour, $2.22 a useful hour · 90.0 % of 1 h 6 min were useful" in tab.text("#told")
    assert "step 40" in tab.text("#facts")
    drawn = tab.page.locator("#charts .annotation-text").all_text_contents()
    titles = [" ".join(one.split()) for one in drawn]
    wanted = ["Reward", "Loss", "Seconds a step (s)", "GPU memory (GiB)", "GPU busy (%)", "Disk free (GB)"]
    assert [title.startswith(start) for title, start in zip(titles, wanted, strict=True)] == [True] * 6, titles
    assert "GPU 0, inference" in titles[3] and "GPU 1, trainer" in titles[3]
    assert tab.page.locator("#charts .scatterlayer .trace").count() >= 10
    assert tab.page.locator("#charts .shapelayer path").count() >= 4  # two attempts and two incidents
    assert "training: steps that stayed: 90.0 %" in tab.text("#times")
    summaries = tab.page.locator("#incidents summary").all_inner_texts()
    assert ["(open)" in one for one in summaries] == [True, False]
    assert tab.page.locator("#steps tbody tr").all_inner_texts()[1].split("\t") == [
        "40",
        "",
        "published",
        "47",
        "quarantined",
    ]
    assert tab.page.get_attribute("#state", "class") == "alarm"  # an incident is open
    tab.page.wait_for_function("document.querySelector('#log').textContent.includes('line two')")
    assert tab.wrong == []


def test_text_of_the_run_is_text_and_nothing_leaves_the_machine(tab: Tab, address: str) -> None:
    for summary in tab.page.locator("#incidents summary").all():
        summary.click()
    tab.page.wait_for_function("document.querySelector('#log').textContent.includes('line two')")
    tab.page.fill("#log-find", "line two")
    assert tab.text("#log").strip() == f"line two {SCRIPT}"
    for selector in ("#sentence", "#notes", "#incidents"):
        assert SCRIPT in tab.text(selector)
    assert tab.page.locator("img").count() == 0
    assert tab.page.title() == "swe: running"
    assert [url for url in tab.asked if not url.startswith(address)] == []
    assert tab.wrong == []


def can_be_read(tab: Tab, scheme: str) -> None:
    ink, paper = (
        tab.page.evaluate(f"getComputedStyle(document.body).{name}.match(/\\d+/g).slice(0, 3).map(Number)")
        for name in ("color", "backgroundColor")
    )
    assert (sum(paper) < sum(ink)) == (scheme == "dark")
    assert abs(sum(ink) - sum(paper)) > 500  # of 765


@pytest.mark.soak
def test_it_fits_a_phone_and_then_a_wall_in_dark_and_light(browser: Any, address: str) -> None:
    tab = Tab(browser, address, viewport={"width": 400, "height": 900}, color_scheme="dark")
    tab.wait_for_charts()
    for width in (400, 1600):
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.page.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")
        for scheme in ("dark", "light"):
            tab.page.emulate_media(color_scheme=scheme)
            can_be_read(tab, scheme)
    assert tab.wrong == []
    tab.page.close()


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_it_fits_where_it_is_opened(browser: Any, address: str, width: int, scheme: str) -> None:
    tab = Tab(browser, address, viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab.wait_for_charts()
    assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    can_be_read(tab, scheme)
    tab.keep_shot(f"{width}-{scheme}.png")
    assert tab.wrong == []
    tab.page.close()


def test_a_keyboard_is_enough(tab: Tab) -> None:
    tab.page.focus("button[data-hours='1']")
    tab.page.keyboard.press("Enter")
    assert tab.page.get_attribute("button[data-hours='1']", "aria-pressed") == "true"
    tab.wait_for_charts()
    tab.page.focus("#incidents summary")
    tab.page.keyboard.press("Enter")
    assert "The job was stopped." in tab.text("#incidents")


@pytest.mark.soak
def test_one_sample_between_two_gaps_and_a_line_at_zero_are_seen(browser: Any) -> None:
    rows = [{"t": NOW - 4000, "waiting": 7}, *({"t": NOW - 900 + 30 * n, "running": 0} for n in range(9))]
    pieces = [Piece("a", 1, rows), Piece("a", 2, [{"t": NOW, "waiting": 9}])]
    with serve({"swe": Told(seen(pieces=pieces), {"trainer": ""})}) as address:
        tab = Tab(browser, address)
        tab.wait_for_charts()
        assert tab.page.locator("#charts .scatterlayer .trace .point").count() >= 2
        line, axis = (
            tab.page.locator(one).first.bounding_box() for one in ("#charts path.js-line", "#charts .bglayer")
        )
        assert line is not None and axis is not None
        assert line["y"] < axis["y"] + axis["height"] - 3
        assert tab.wrong == []
        tab.page.close()


@pytest.mark.soak
def test_a_page_without_an_answer_says_since_when_and_goes_on_by_itself(browser: Any) -> None:
    told = Told(seen(), {"trainer": "a line"})
    with serve({"swe": told}) as address:
        tab = Tab(browser, address, charts=False)
        tab.page.wait_for_selector("#incidents summary")
        assert not tab.page.is_visible("#old")
        tab.page.route("**/run.json*", lambda route: route.abort())
        tab.page.wait_for_selector("#old:not([hidden])")
        assert "This page is old: no answer since 20" in tab.text("#old")
        told.logs["trainer"] = "what came later"
        tab.page.check("#log-follow")
        tab.page.unroute("**/run.json*")
        tab.page.wait_for_selector("#old", state="hidden")
        # Nothing else changed, and a log is followed all the same.
        tab.page.locator("#log", has_text="later").wait_for()
        tab.page.close()


def test_several_runs_are_a_list_and_one_click_leads_into_one(browser: Any) -> None:
    logs = {"trainer": "a line"}
    with serve({"swe": Told(seen(), logs), "other": Told(replace(seen(), run="other"), logs)}) as address:
        tab = Tab(browser, address, charts=False)
        tab.page.wait_for_selector("#runs a")
        names = [one.partition("step")[0].strip() for one in tab.page.locator("#runs a").all_inner_texts()]
        assert names == ["swe", "other"]
        assert not tab.page.locator("#run").is_visible()
        tab.page.click("text=other")
        tab.page.wait_for_selector("#incidents summary")
        assert tab.text("#name") == "other"
        assert tab.wrong == []
        tab.page.close()


@pytest.mark.soak
def test_a_report_opens_from_disk_without_a_network(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(freeze_page(page_of_run(seen(), 2.0)))
    tab = Tab(browser, path.as_uri(), java_script_enabled=True, offline=True)
    tab.wait_for_charts()
    assert tab.text("#sentence").startswith("step 50 of 100")
    assert not tab.page.locator("#log").is_visible()
    assert tab.asked == [path.as_uri()]
    assert tab.wrong == []
    tab.page.close()


@pytest.mark.soak
def test_a_live_run_shows_its_incident_within_five_seconds_of_the_verdict(browser: Any, tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    demo = [sys.executable, "-m", "tests.demo.demo", "--keep", str(tmp_path / "demo"), "--steps", "40"]
    run_file = tmp_path / "demo/run.toml"
    program = "import sys; from supervisor.cli.main import main; sys.exit(main(sys.argv[1:]))"
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    web = [sys.executable, "-c", program, "web", str(run_file), "--listen", listen]
    with subprocess.Popen(demo, env=environ, stdout=subprocess.DEVNULL) as job:
        try:
            until_there(run_file)
            series = tmp_path / "demo/state/series/0001.jsonl"
            until_there(series)
            with subprocess.Popen(web, env=environ, stdout=subprocess.PIPE, text=True) as server:
                assert server.stdout is not None
                address = server.stdout.readline().split()[-1]
                tab = Tab(browser, address)
                tab.page.wait_for_selector("#incidents summary", timeout=120_000)
                shown = time.time()
                tab.keep_shot("live.png")
                told = tab.text("#incidents summary")
                tab.page.close()
                server.terminate()
        finally:
            job.terminate()
    assert "vLLM died silently" in told
    [verdict] = [line for line in series.read_text().splitlines() if '"verdict"' in line]
    at = float(verdict.partition('"t":')[2].partition(",")[0])
    assert shown - at <= 10.0, "five on a quiet machine"


def until_there(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)
