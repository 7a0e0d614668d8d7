"""The dashboard in a browser: what a user sees of a job, and that nothing a job prints can take it over."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import PROGRAM, Browser
from launching import MUSTER, PLAIN, Job, end_pages, pages
from tests.unit.sample_job import BEGIN, HOSTILE, ended, job, rank_of, write_folder
from waiting import end, ending, patience, wait_until

from muster.dashboard.address import address, new_token
from muster.jobs.state import AttemptState, Failure, HostChangeState, HostState, JobState

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium: apt-get install chromium-headless-shell")

EIGHT = "document.querySelectorAll('.tile b').length === 8"


class Page:
    """The dashboard of a job that has ended, from a server that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.token = new_token()
        self._folder = folder
        # Kept, so that the port is nobody else's while there is no server; not listening, so that one can be there.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        self.address = address(self._port, self.token)
        self.begin()

    def begin(self) -> None:
        code = (
            "import sys; from pathlib import Path; "
            "from muster.dashboard.address import listen; from muster.dashboard.server import DashboardServer; "
            "from muster.dashboard.job_list import JobList; "
            "DashboardServer(listen(int(sys.argv[1])), sys.argv[2], JobList(Path(sys.argv[3]))).serve_forever()"
        )
        port = self.address.split(":")[2].split("/")[0]
        self._process = subprocess.Popen([sys.executable, "-c", code, port, self.token, str(self._folder)])
        wait_until("the server", self._answers, 40)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.address, timeout=20).close()
        except OSError:
            return False
        return True

    def end(self) -> None:
        end(self._process)

    def __del__(self) -> None:
        self._port.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("jobs") / "20261115-101500-train-3f9a"
    made = Page(write_folder(folder, ended(job())))
    yield made
    made.end()


@pytest.fixture
def opened(browser: Browser, page: Page) -> Browser:
    """The dashboard of the sample job, on a screen of usual size, in light colors."""
    browser.resize(1280, 900)
    browser.colours("light")
    browser.said.clear()
    browser.requests.clear()
    browser.open(page.address)
    browser.wait(EIGHT)
    browser.wait("document.querySelectorAll('#lines span').length > 0")
    return browser


# --- what is seen -------------------------------------------------------------------------------------------


def test_the_grid_shows_every_rank_by_host_and_the_failed_one_in_words(opened: Browser):
    ask = "[...document.querySelectorAll('.host')].map(h => [h.dataset.host, h.querySelectorAll('.tile').length])"
    assert opened.js(ask) == [["gpu01", 4], ["gpu02", 4]]
    assert opened.text("#rank-5") == "5\nfailed first"
    label = opened.js("document.querySelector('#rank-5').getAttribute('aria-label')")
    assert label == "Rank 5 on gpu02: failed first, exit code 1"
    shapes = opened.js("[...document.querySelectorAll('.tile path')].map(p => p.getAttribute('d'))")
    assert len({shapes[0], shapes[2], shapes[5]}) == 3  # waiting, running and failed differ without their color
    assert opened.text("#phase") == "failed 1"


def test_it_opens_on_the_failed_rank_with_its_traceback(opened: Browser):
    opened.resize(1440, 900)
    assert opened.js("document.querySelector('#log-rank').value") == "5"
    assert opened.js("document.querySelector('#rank-5').getAttribute('aria-pressed')") == "true"
    failure = opened.text("#failures")
    assert "rank 5 on gpu02 failed first, 93.0 s after the start: ValueError: loss is nan (train.py:91)" in failure
    assert "Fix: lower the learning rate" in failure
    assert "7 ranks stopped by Muster because of it" in failure
    assert opened.text("#failures pre").endswith("ValueError: loss is nan")
    assert opened.js("document.querySelector('#failures pre').getBoundingClientRect().bottom") < 900
    assert "failed at\ntrain.py:91" in opened.text("#rank-facts")
    opened.click("#rank-3")  # what the user picks stays picked
    opened.js("document.dispatchEvent(new Event('visibilitychange'))")
    opened.wait("document.querySelector('#lines').innerText.includes('rank 3')")
    assert opened.js("document.querySelector('#log-rank').value") == "3"


def test_ranks_that_muster_stopped_have_no_check_mark_and_a_hung_one_is_not_green(browser: Browser, tmp_path: Path):
    states = ("canceled", "ended", "hung", "running", "waiting")
    ranks = tuple(replace(rank_of(number, 3, None), state=state) for number, state in enumerate(states))
    state = replace(ended(job(ranks=5)), ranks=ranks, slow=(4,))
    page = Page(write_folder(tmp_path / "20261115-101500-train-3f9a", state))
    try:
        browser.open(page.address)
        browser.wait("document.querySelectorAll('.tile b').length === 5")
        of_each = "[...document.querySelectorAll('.tile')].map(t => {})"
        canceled, done, hung, running, slow = browser.js(of_each.format("t.querySelector('path').getAttribute('d')"))
        assert len({canceled, done, hung, running, slow}) == 5
        assert browser.text("#rank-0") == "0\nstopped"
        assert browser.text("#rank-2") == "2\nhung"
        colors = browser.js(of_each.format("getComputedStyle(t.querySelector('span')).color"))
        assert colors[2] != colors[3]
        legend = browser.js("[...document.querySelectorAll('#legend li')].map(item => item.innerText)")
        assert legend == ["1 hung", "1 slow", "1 running", "1 stopped by Muster", "1 finished"]
    finally:
        page.end()


def test_no_half_of_a_desktop_screen_is_empty(browser: Browser, tmp_path: Path):
    state = replace(ended(job(failed=None)), exit_code=0, failures=(), reports=(), sentence="")
    page = Page(write_folder(tmp_path / "20261115-101500-train-3f9a", state))
    try:
        browser.resize(1440, 900)
        browser.open(page.address)
        browser.wait(EIGHT)
        browser.wait("document.querySelectorAll('#lines span').length > 0")
        left, right = browser.js(
            "['.side', '#log'].map(s => document.querySelector(s).getBoundingClientRect())"
            ".map(({left, top, right, bottom}) => [left, top, right, bottom])"
        )
        assert left[1] == right[1] < 250
        assert left[2] < right[0]
        assert 850 < right[3] <= 900
        assert left[3] > 850
    finally:
        page.end()


def test_the_use_of_each_host_is_drawn_over_time(opened: Browser):
    sparks = "[...document.querySelectorAll('.host:first-child .spark')]"
    ask = f"{sparks}.map(s => [s.innerText, s.querySelector('.main')?.getAttribute('d').length > 100])"
    assert opened.js(ask) == [
        ["CPU\n41 % of 64", True],
        ["GPU\n78 % of 4", True],
        ["Memory\n91/512 GB", True],
        ["Network\n4.1 GB/s", True],
    ]


def test_the_phases_of_the_start_have_their_times(opened: Browser):
    items = opened.js("[...document.querySelectorAll('#start li')].map(i => i.innerText)")
    assert items == ["Connect\n0.8 s", "Prepare\n3.2 s", "First collective\n1.0 s", "Run\n1:30"]


def test_findings_name_their_page_of_the_documentation(opened: Browser):
    assert opened.text("#failures .docs") == "Documentation: Troubleshooting"
    assert opened.text("#report-list .docs") == "Documentation: Hang detection"


def test_gpus_show_use_memory_and_why_they_are_slow(opened: Browser):
    first = opened.text(".gpu")
    assert "use 93 %" in first
    assert "61 of 141 GB" in first
    assert "throttled: power, 1410 of 1980 MHz" in first


def test_charts_are_drawn_and_described(opened: Browser):
    assert opened.js("document.querySelector('#rate path.main').getAttribute('d').length") > 200
    assert opened.text("#rate-title") == "Steps per second"
    assert "steps/s, slowest rank" in opened.text("#rate-words")
    assert "lowest (dashed): rank 2, 4 %" in opened.text("#waiting-words")


def test_a_script_without_an_optimizer_has_a_rate_of_collectives(browser: Browser, tmp_path: Path):
    state = job(failed=None)
    ranks = tuple(replace(rank, steps=0) for rank in state.ranks)
    state = replace(state, ranks=ranks, host=socket.gethostname(), controller=2**30, controller_birth="gone")
    page = Page(write_folder(tmp_path / "20261115-101500-train-3f9a", state))
    try:
        browser.open(page.address)
        browser.wait(EIGHT)
        assert browser.text("#rate-title") == "Collectives per second"
        assert "collectives/s, slowest rank" in browser.text("#rate-words")
        assert "collectives/s" in browser.text("#figures")
        assert "steps/s" not in browser.text("body")
    finally:
        page.end()


def test_a_report_shows_its_stacks_side_by_side_the_named_rank_first(opened: Browser):
    opened.click("#report-list button")
    opened.wait("document.querySelectorAll('.columns article').length === 2")
    left, right = opened.js(
        "[...document.querySelectorAll('.columns article')].map(a => [a.innerText, a.getBoundingClientRect().top])"
    )
    assert left[0].startswith("Rank 2 on gpu01 the others are waiting for it")
    assert "line 33 in next_batch" in left[0]
    assert right[0].startswith("Ranks 0, 1, 3\u20137 on gpu01, gpu02")
    assert left[1] == right[1]
    assert "rank 2 on gpu01 has been in next_batch" in opened.text(".report.hang .sentence")


def test_a_chosen_rank_shows_its_log_and_its_numbers(opened: Browser):
    opened.click("#rank-3")
    opened.wait("document.querySelector('#lines').innerText.includes('rank 3')")
    assert "pid\n9003" in opened.text("#rank-facts")
    assert opened.js("document.querySelectorAll('#lines span').length") <= 1001


# --- the log ------------------------------------------------------------------------------------------------


def test_a_search_finds_a_line_in_every_rank_and_leads_to_it(opened: Browser):
    opened.js("document.querySelector('#find').focus()")
    for letter in "NEEDLE":
        opened.press(letter)
    opened.press("Enter")
    opened.wait("document.querySelectorAll('#found button').length === 8")
    assert opened.text("#found button:nth-child(7)") == "rank 6 needle in rank 6"
    assert opened.js("document.querySelectorAll('#found mark').length") == 8
    assert opened.text("#log-words") == "8 lines in 8 ranks"
    opened.click("#found button:nth-child(7)")
    opened.wait("document.querySelector('#lines .here')?.innerText === 'needle in rank 6'")
    assert opened.js("document.querySelector('#log-rank').value") == "6"
    edge = "document.querySelector('{}').getBoundingClientRect().{}"
    seen = [opened.js(edge.format(*at)) for at in (("#lines", "top"), ("#lines .here", "top"), ("#lines", "bottom"))]
    assert seen == sorted(seen)


def test_a_search_that_finds_nothing_says_so(opened: Browser):
    opened.js("document.querySelector('#find').value = 'no such words'")
    opened.click("#search button")
    opened.wait("document.querySelector('#log-words').innerText === '0 lines in 0 ranks'")


def test_earlier_lines_lead_back_to_the_first(opened: Browser):
    opened.wait("!document.querySelector('#earlier').disabled")
    opened.click("#earlier")
    opened.wait("document.querySelector('#lines').innerText.startsWith('step 0 ')")
    assert opened.js("document.querySelector('#earlier').disabled")


def test_what_a_rank_prints_is_text_and_nothing_else(opened: Browser):
    assert opened.js("document.querySelector('#lines span:last-child').innerText") == HOSTILE
    opened.js("document.querySelector('#find').value = '<script>'")
    opened.click("#search button")
    opened.wait("document.querySelectorAll('#found button').length === 8")
    assert opened.js("document.querySelectorAll('main script, main img, #findings img').length") == 0
    assert "taken over" not in opened.js("document.title")
    assert opened.said == []


def test_hostile_names_are_text_too(browser: Browser, tmp_path: Path):
    text = json.dumps(ended(job()).as_data())
    for name in ("gpu02", "train.py", "ValueError", "next_batch", "NVIDIA", "power"):
        text = text.replace(name, "<img src=x onerror=document.title=1>")
    folder = write_folder(tmp_path / "20261115-101500-train-3f9a", ended(job()))
    (folder / "state.json").write_text(text)
    page = Page(folder)
    try:
        browser.said.clear()
        browser.open(page.address)
        browser.wait(EIGHT)
        browser.click("#report-list button")
        browser.wait("document.querySelectorAll('.columns article').length === 2")
        assert browser.js("document.querySelectorAll('main img, #findings img').length") == 0
        assert "<img src=x" in browser.text(".host:last-child h3")
        assert browser.said == []
    finally:
        page.end()


def test_lines_show_when_they_were_written_if_wanted(browser: Browser, tmp_path: Path):
    folder = write_folder(tmp_path / "20261115-101500-train-3f9a", ended(job()))
    (folder / "attempt-0/rank-5.log").write_text("one\ntwo\n")
    (folder / "attempt-0/order").write_text("5 1 4 1790000000000\n5 1 4 1790000061000\n")
    page = Page(folder)
    try:
        browser.resize(1280, 900)
        browser.open(page.address)
        browser.wait("document.querySelectorAll('#lines time').length === 2")
        first, second = browser.js("[...document.querySelectorAll('#lines time')].map(t => t.innerText)")
        assert re.fullmatch(r"\d\d:\d\d:\d\d", first)
        assert first[6:] == "20"
        assert second[6:] == "21"
        browser.click("#times")
        assert browser.text("#lines").split() == ["one", "two"]
    finally:
        page.end()


def test_a_log_can_be_copied_and_downloaded(opened: Browser):
    opened.js("window.copied = []; navigator.clipboard.writeText = async text => { copied.push(text) }")
    opened.click("#copy")
    opened.wait("document.querySelector('#copy').innerText === 'Copied'")
    assert opened.js("copied[0]").endswith(f"step 1499 loss 0.0020 rank 5\n{HOSTILE}\n")
    opened.click("#failures .text button")
    opened.wait("copied.length === 2")
    assert opened.js("copied[1]").startswith("Traceback (most recent call last):")
    opened.click("#rank-6")
    whole = opened.js("fetch(document.querySelector('#download').href).then(answer => answer.text())")
    assert whole.startswith("step 0 loss 3.0000 rank 6\n")
    assert opened.js("document.querySelector('#download').hasAttribute('download')")


# --- other jobs ---------------------------------------------------------------------------------------------


def test_the_list_leads_to_every_job_and_back(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    jobs = tmp_path / "muster/jobs"
    for name in ("20261115-101500-train-3f9a", "20261115-111500-<b>x-0001"):
        write_folder(jobs / name, replace(ended(job()), id=name, command=f"<i>{name[-4:]}</i>"))
    page = Page(jobs / "20261115-101500-train-3f9a")
    try:
        browser.resize(1280, 900)
        browser.said.clear()
        browser.open(page.address)
        browser.wait(EIGHT)
        browser.open(browser.js("document.querySelector('#jobs').href"))
        browser.wait("document.querySelectorAll('#list li').length > 0")
        assert browser.text("#list li:first-child .status") == "failed 1"
        assert "rank 5 on gpu02 failed first" in browser.text("#list li:first-child")
        assert browser.js("document.querySelectorAll('#list b, #list i').length") == 0
        browser.open(browser.js("document.querySelector('#list li:last-child a').href"))
        browser.wait(EIGHT)
        assert browser.text("#command") == "<i>3f9a</i>"
        browser.wait("document.querySelector('#lines').innerText.includes('rank 5')")
        assert browser.js("document.querySelector('#jobs').href").endswith(f"{page.token}/jobs/")
        assert browser.said == []
    finally:
        page.end()


# --- who sees it, and on what -------------------------------------------------------------------------------


def test_a_wrong_token_shows_nothing(browser: Browser, page: Page):
    browser.open(page.address.replace(page.token, "x" * len(page.token)))
    browser.wait("document.body.innerText.includes('the address lacks its token')")
    assert browser.js("document.querySelectorAll('.tile').length") == 0


def test_the_dashboard_asks_no_other_host(opened: Browser, page: Page):
    opened.click("#rank-1")
    opened.wait("document.querySelector('#lines').innerText.includes('rank 1')")
    assert len(opened.requests) > 8
    assert [url for url in opened.requests if not url.startswith(page.address)] == []
    assert opened.said == []


@pytest.mark.parametrize("width", [320, 390, 768, 2560])
def test_no_screen_is_too_narrow_or_too_wide(opened: Browser, width: int):
    opened.resize(width, 740, phone=width < 768)
    assert opened.js("document.documentElement.scrollWidth") <= width
    wide = opened.js("[...document.querySelectorAll('section')].map(s => s.getBoundingClientRect().right)")
    assert max(wide) <= width


def test_dark_and_light_follow_the_system_and_can_be_read(opened: Browser):
    for scheme, dark in (("light", False), ("dark", True)):
        opened.colours(scheme)
        for selector in (
            "h1",
            ".report .sentence",
            ".badge",
            ".spark p span",
            "#rank-2 span",
            "#rank-5 span",
            "#rank-0 span",
            ".words",
            "#lines",
            "#stays",
        ):
            front, back = contrast_of(opened, selector)
            assert (luminance(back) < 0.1) is dark or selector == ".badge"
            ratio = (max(luminance(front), luminance(back)) + 0.05) / (min(luminance(front), luminance(back)) + 0.05)
            assert ratio >= 4.5, (scheme, selector, front, back, ratio)


def test_the_keyboard_reaches_ranks_and_search(opened: Browser):
    opened.js("document.querySelector('#rank-0').focus()")
    for key, rank in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowDown", 6), ("ArrowUp", 2), ("End", 7), ("Home", 0)):
        opened.press(key)
        assert opened.js("document.activeElement.id") == f"rank-{rank}"
    opened.wait("document.querySelector('#lines').innerText.includes('rank 0')")
    opened.press("/")
    assert opened.js("document.activeElement.id + document.activeElement.value") == "find"


def test_a_lost_connection_is_said_and_comes_back(browser: Browser, tmp_path: Path):
    page = Page(write_folder(tmp_path / "20261115-101500-train-3f9a", ended(job())))
    browser.open(page.address)
    browser.wait(EIGHT)
    page.end()
    browser.js("document.dispatchEvent(new Event('visibilitychange'))")  # as when one comes back to the tab
    browser.wait("document.querySelector('#connection').innerText.includes('is lost')")
    assert "muster dashboard 20261115-101500-train-3f9a" in browser.text("#connection")
    assert browser.text("#rank-5") == "5\nfailed first"  # what was known stays
    browser.js(
        "window.told = []; new MutationObserver(() => told.push(document.querySelector('#connection').innerText))"
        ".observe(document.querySelector('#connection'), { childList: true, subtree: true, characterData: true })"
    )
    page.begin()
    try:
        browser.wait("told.includes('Connected again.')")  # which is shown for some seconds
    finally:
        page.end()


def test_a_controller_that_was_killed_is_said(browser: Browser, tmp_path: Path):
    state = replace(job(), host=socket.gethostname(), controller=2**30, controller_birth="gone")
    page = Page(write_folder(tmp_path / "20261115-101500-train-3f9a", state))
    try:
        browser.open(page.address)
        browser.wait("document.querySelector('#phase').innerText === 'controller died'")
        assert "The controller of this job was killed" in browser.text("#connection")
    finally:
        page.end()


def test_a_large_job_with_many_reports_stays_easy_to_survey(browser: Browser, tmp_path: Path):
    state = ended(job(ranks=80))
    page = Page(write_folder(tmp_path / "20261115-101500-train-3f9a", replace(state, reports=6 * state.reports)))
    try:
        browser.resize(1280, 900)
        browser.open(page.address)
        browser.wait("document.querySelectorAll('.tile b').length === 80")
        assert browser.js("document.querySelectorAll('#report-list > .report').length") == 1
        assert browser.text("#older summary") == "5 earlier findings"
        assert browser.text(".gpus summary") == "4 GPUs, mean use 78 %, 1 throttled"
        assert not browser.js("document.querySelector('.gpus').open")
        assert browser.js("document.documentElement.scrollWidth") <= 1280
    finally:
        page.end()


def test_a_job_that_never_had_ranks_shows_why_and_nothing_empty(browser: Browser, tmp_path: Path):
    state = ended(job(failed=None))
    failure = replace(state.failures[0], rank=None, detail="", sentence="1 of 2 hosts is not usable\n  gpu02: no route")
    hosts = tuple(HostState(name=host.name) for host in state.hosts)
    state = replace(state, ranks=(), world_size=0, hosts=hosts, history=(), reports=(), phases={}, failures=(failure,))
    page = Page(write_folder(tmp_path / "20261115-101500-train-3f9a", state))
    try:
        browser.said.clear()
        browser.open(page.address)
        browser.wait("document.querySelectorAll('.host').length === 2")
        assert browser.text("#failures .sentence").splitlines() == ["1 of 2 hosts is not usable", "gpu02: no route"]
        assert "not connected" in browser.text(".host")
        hidden = ["#log", "#charts", "#start"]
        assert browser.js(f"{hidden}.map(s => document.querySelector(s).getBoundingClientRect().height)") == [0, 0, 0]
        assert browser.said == []
    finally:
        page.end()


def test_each_attempt_of_a_restarted_job_has_its_failure_and_its_logs(browser: Browser, tmp_path: Path):
    state = ended(job())
    failures = (*state.failures, replace(state.failures[0], attempt=1, rank=4, sentence="rank 4 on gpu02 failed first"))
    state = replace(state, attempt=1, failures=failures)
    folder = write_folder(tmp_path / "20261115-101500-train-3f9a", state)
    (folder / "attempt-1").mkdir()
    (folder / "attempt-1/rank-0.log").write_text("once more\n")
    page = Page(folder)
    try:
        browser.open(page.address)
        browser.wait(EIGHT)
        browser.wait("document.querySelector('#log-rank').value === '4'")
        sentences = browser.js("[...document.querySelectorAll('#failures .sentence')].map(s => s.innerText)")
        assert [sentence[:17] for sentence in sentences] == ["rank 4 on gpu02 f", "rank 5 on gpu02 f"]
        assert browser.js("[...document.querySelectorAll('#failures .text')].map(t => t.open)") == [True, False]
        browser.click("#rank-0")
        browser.wait("document.querySelector('#lines').innerText === 'once more'")
        assert "restarts" in browser.text("#figures")
        browser.js(
            "(s => { s.value = 0; s.dispatchEvent(new Event('change')); })(document.querySelector('#log-attempt'))"
        )
        browser.wait("document.querySelector('#lines').innerText.includes('step 1499')")
    finally:
        page.end()


def recovered() -> JobState:
    """A running job that lost gpu04 and gpu03, got gpu02 for the first and shrank without the second."""
    attempt = AttemptState(number=0, begin=BEGIN + 5, world_size=12, hosts=("gpu01", "gpu04", "gpu03"), slots=(4, 4, 4))
    attempts = (
        replace(attempt, lost_at=BEGIN + 30, lost_to="lost gpu04: no message for 5.0 s"),
        replace(
            attempt,
            number=1,
            begin=BEGIN + 32,
            hosts=("gpu01", "gpu02", "gpu03"),
            swaps={"gpu02": "gpu04"},
            recovery=5.6,
            lost_at=BEGIN + 60,
            lost_to=f"lost gpu03: {HOSTILE}",
        ),
        replace(
            attempt, number=2, begin=BEGIN + 61, world_size=8, hosts=("gpu01", "gpu02"), slots=(4, 4), recovery=6.1
        ),
    )
    state = job(failed=None)
    hosts = (
        replace(state.hosts[0], role="ranks"),
        replace(state.hosts[1], role="ranks", state="draining", why="spot notice", deadline=state.now + 80),
        HostState(name="gpu03", state="lost", why="no message for 5.0 s"),
        HostState(name="gpu04", state="up", role="spare"),
    )
    changes = (
        HostChangeState(time=BEGIN + 30, host="gpu04", state="lost", why="no message for 5.0 s"),
        HostChangeState(time=BEGIN + 50, host="gpu04", state="up"),
        HostChangeState(time=BEGIN + 60, host="gpu03", state="lost", why=HOSTILE),
    )
    here: dict[str, Any] = {
        "failures": (Failure(attempt=0, time=BEGIN + 30, sentence="lost gpu04: no message for 5.0 s"),),
        "host_changes": changes,
        "host": socket.gethostname(),
        "controller": 2**30,
        "controller_birth": "gone",
    }
    return replace(state, hosts=hosts, attempts=attempts, attempt=2, host_losses=2, **here)


def test_hosts_say_what_they_are_for_and_attempts_what_ended_them(browser: Browser, tmp_path: Path):
    folder = write_folder(tmp_path / "20261115-101500-train-3f9a", recovered())
    for attempt, rank in ((1, 0), (2, 0)):
        (folder / f"attempt-{attempt}").mkdir()
        (folder / f"attempt-{attempt}/rank-{rank}.log").write_text(f"attempt {attempt}\n")
    (folder / "attempt-0/rank-11.log").write_text("of a rank that is no more\n")
    page = Page(folder)
    try:
        browser.said.clear()
        browser.resize(1440, 900)
        browser.open(page.address)
        browser.wait("document.querySelectorAll('#attempt-rows tr').length === 3")
        words = browser.js("[...document.querySelectorAll('.host > header p')].map(w => w.innerText)")
        assert words == ["", "draining, 1:20 left: spot notice", "lost: no message for 5.0 s", "spare"]
        assert "hosts (ssh)\n2\nspare\ngpu04\nlost\ngpu03\ndraining\ngpu02" in browser.text("#figures")
        rows = browser.js(
            "[...document.querySelectorAll('#attempt-rows tr')].map(r => [...r.cells].map(c => c.innerText))"
        )
        assert [row[0] for row in rows] == ["2", "1", "0"]
        assert [row[3:] for row in rows] == [
            ["8 on 2 hosts", "its controller was killed", "\u2013"],
            ["12 on 3 hosts", f"lost gpu03: {HOSTILE}", "6.1 s"],
            ["12 on 3 hosts", "lost gpu04: no message for 5.0 s", "5.6 s, gpu02 replaced gpu04"],
        ]
        assert browser.text("#failures") == ""  # the job has recovered from it
        assert browser.text("#older summary") == "1 earlier finding"
        assert "lost gpu04" in browser.js("document.querySelector('#older .failure').textContent")
        happened = browser.js("[...document.querySelectorAll('#host-changes li')].map(item => item.innerText.slice(9))")
        assert happened == [f"gpu03 is lost: {HOSTILE}", "gpu04 is back", "gpu04 is lost: no message for 5.0 s"]
        assert browser.text("#attempts-words") == "last recovery: 6.1 s, longest: 6.1 s"
        ran, gap = browser.js("['.ran', '.gap'].map(s => document.querySelectorAll(`#attempt-bar ${s}`).length)")
        assert (ran, gap) == (3, 2)
        browser.click("#attempt-rows tr:last-child button")
        browser.wait("document.querySelector('#log-rank').options.length === 12")
        assert browser.js("document.querySelector('#log-rank').options[11].text") == "11 on gpu03"
        assert browser.js("document.querySelector('#log-attempt').value") == "0"
        browser.js("document.querySelector('#find').value = 'no more'")
        browser.click("#search button")
        browser.wait("document.querySelector('#found').innerText.includes('of a rank that is no more')")
        assert browser.said == []
        for width in (320, 1440):
            browser.resize(width, 740, phone=width < 768)
            assert browser.js("document.documentElement.scrollWidth") <= width
    finally:
        page.end()


# --- with a real job ----------------------------------------------------------------------------------------


SCRIPT = """\
import os, time
rank = int(os.environ["RANK"])
print("hello from", rank, flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
print("going on", flush=True)
while rank != 1 or not os.path.exists("fail"):
    time.sleep(0.05)
raise ValueError("loss is <b>nan</b>")
"""


def test_a_run_with_a_dashboard_shows_the_job_to_its_end_and_beyond(browser: Browser, tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    run = Job(tmp_path, "--dashboard", "--no-zygote", "--no-check", "--nproc", "3", "train.py")
    try:
        run.wait_for(r"muster: dashboard: http://127\S+\n")
        (where,) = re.findall(r"^muster: dashboard: (http://127\S+)$", run.err, re.MULTILINE)
        browser.open(where)
        browser.wait("[...document.querySelectorAll('.tile span')].filter(s => s.innerText === 'running').length === 3")
        browser.wait("document.querySelector('#lines').innerText.includes('hello from 0')")
        (tmp_path / "go").touch()
        browser.wait("document.querySelector('#lines').innerText.includes('going on')")
        (tmp_path / "fail").touch()
        assert run.wait(40).code == 1
        browser.wait("document.querySelector('#phase').innerText === 'failed 1'")
        assert browser.text("#rank-1") == "1\nfailed first"
        browser.wait("document.querySelector('#log-rank').value === '1'")  # nobody had picked another one
        assert "loss is <b>nan</b>" in browser.text("#failures .sentence")
        assert 'raise ValueError("loss is <b>nan</b>")' in browser.text("#failures pre")
        assert "[" not in browser.text("#lines time")
        assert "for 10 minutes after that" in browser.text("#stays")
        assert f"the dashboard {where} stops 10 minutes after its last reader leaves" in run.err
        with urllib.request.urlopen(f"{where}state.json", timeout=30) as answer:
            assert json.load(answer)["exit_code"] == 1
    finally:
        end(run.process)
        end_pages(tmp_path)


TRAINING = """\
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
weights = [torch.zeros(4, requires_grad=True) for _ in range(4)]
optimizers = [torch.optim.SGD([weight], 0.1) for weight in weights]
while True:
    for weight, optimizer in zip(weights, optimizers):
        weight.sum().backward()
        dist.all_reduce(weight.grad)
        optimizer.step()
    time.sleep(0.1)
"""


def test_steps_per_second_are_those_of_the_training_loop(browser: Browser, tmp_path: Path):
    (tmp_path / "train.py").write_text(TRAINING)
    # torch.optim imports it: once, before the ranks are forked.
    run = Job(tmp_path, "--dashboard", "--no-check", "--preload", "torch._dynamo", "--nproc", "2", "train.py")
    try:
        run.wait_for(r"muster: dashboard: http://127\S+\n")
        (where,) = re.findall(r"^muster: dashboard: (http://127\S+)$", run.err, re.MULTILINE)
        browser.open(where)
        figures = "[...document.querySelectorAll('#figures div')].map(d => d.innerText.split('\\n'))"
        browser.wait(f"{figures}.some(([name, value]) => name === 'steps/s' && value > 0)", 90)
        (rate,) = (float(value) for name, value in browser.js(figures) if name == "steps/s")
        assert 0 < rate < 10.5  # each step sleeps for 0.1 s, with four optimizers and four collectives
        assert browser.text("#rate-title") == "Steps per second"
    finally:
        end(run.process)
        end_pages(tmp_path)


def test_the_dashboard_of_a_run_ends_when_job_and_readers_have_gone(tmp_path: Path):
    folder = write_folder(tmp_path / f"20261115-101500-train-{os.getpid() % 0x10000:04x}", ended(job()))
    code = (
        "import sys; from pathlib import Path; from muster.dashboard.dashboard_process import start; "
        f"print(start(Path({str(folder)!r}), 0, 1.0), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        where = starter.stdout.readline().strip()
        with urllib.request.urlopen(f"{where}view.json", timeout=40) as answer:
            assert json.load(answer)["life"] == "ended"
        assert pages(tmp_path)
    wait_until("its end", lambda: not pages(tmp_path), 40)


@pytest.mark.parametrize("command", ["dashboard", "page"])
def test_muster_dashboard_shows_a_job_that_has_ended_until_ctrl_c(browser: Browser, tmp_path: Path, command: str):
    write_folder(tmp_path / "muster/jobs/20261115-101500-train-3f9a", ended(job()))
    env = {**PLAIN, "XDG_STATE_HOME": str(tmp_path)}
    process = subprocess.Popen(
        [MUSTER, command, "train.py"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with ending(process):
        assert process.stdout is not None
        where = process.stdout.readline().strip()
        browser.open(where)
        browser.wait(EIGHT)
        assert "until you stop `muster dashboard`" in browser.text("#stays")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=patience(40))
        assert process.returncode == 0
        assert said == "muster: dashboard of 20261115-101500-train-3f9a, Ctrl-C to stop it\n"


def contrast_of(browser: Browser, selector: str) -> list[list[float]]:
    """The color of an element's text and of what lies behind it, as sRGB from 0 to 1."""
    return browser.js(f"""(() => {{
        const pixel = document.createElement("canvas").getContext("2d", {{ willReadFrequently: true }});
        let element = document.querySelector({json.dumps(selector)});
        const front = getComputedStyle(element).color, layers = [];
        for (; element; element = element.parentElement) layers.unshift(getComputedStyle(element).backgroundColor);
        const read = (...colours) => {{
            for (const colour of colours) {{ pixel.fillStyle = colour; pixel.fillRect(0, 0, 1, 1); }}
            return [...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3).map(value => value / 255);
        }};
        const back = read("white", ...layers);
        return [read(front), back];
    }})()""")


def luminance(colour: list[float]) -> float:
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
