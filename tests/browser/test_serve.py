"""The control room as a browser shows it: every page of a store with 100,000 rollouts, orders, keys, planted scripts.

With HOLDFAST_PICTURES=FOLDER the pages are kept there as pictures, in both themes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from holdfast.contracts.commands import Alert, Role, Severity
from holdfast.contracts.run import DesiredState
from holdfast.store.store import open_store
from tests.browser.conftest import CONTRAST, launched
from tests.operate.room import Room, serving, with_token
from tests.store.filled import IMAGE, SCRIPT, filled

RUN, ROLLOUT, OLD = "run-2-new", "run-2-new/task-89990", "run-1-old"
PAGES = {  # address → what its heading says
    "": "Overview",
    "runs": "Runs",
    f"run/{RUN}": RUN,
    f"rollout/{RUN}%2Ftask-89990": "task-89990",
    f"group/{RUN}/group-11248/90990": "group-11248",
    f"learning/{RUN}": "Learning",
    f"tools/{RUN}": "Tools and budgets",
    "proof": "Proof",
    "proof/sprout%402": "sprout@2 against sprout@1",
    "experiments": "Experiments",
    "experiments/greeting": "greeting",
    "releases": "Releases",
    "alerts": "Alerts",
    "audit": "Audit",
    "flags": "Flags",
}
PICTURES = {"overview": "", "rollout": f"rollout/{RUN}%2Ftask-89990", "learning": f"learning/{RUN}",
            "proof": "proof/sprout%402", "releases": "releases"}  # fmt: skip
Show = Callable[..., Page]


@pytest.fixture(scope="module")
def browser(room: Room, small: Path) -> Iterator[Browser]:  # stores are filled before a loop of Playwright's runs
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    path = filled(tmp_path_factory.mktemp("serve") / "store.sqlite", 100_000)
    with open_store(path, poll_s=0.02) as store, serving(store) as served:
        while not store.figures.totals(RUN).is_whole:  # counted a part at a look
            pass
        yield served


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("small") / "store.sqlite", 100)


@pytest.fixture
def show(browser: Browser, room: Room) -> Iterator[Show]:
    """Opens a page as somebody with this role; nothing may be said on its console, asked of others or pop up."""
    contexts, heard = [], list[str]()

    def popped(dialog: Dialog) -> None:
        heard.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open_page(path: str = "", role: str = "admin", scheme: Any = "light", at: Room = room) -> Page:
        context = browser.new_context(viewport={"width": 1320, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)  # the machine may be busy
        page.on("console", lambda said: heard.append(said.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("dialog", popped)
        page.on("request", lambda asked: None if asked.url.startswith(at.url) else heard.append(asked.url))
        page.goto(at.url)
        page.fill("#token", at.tokens[role])
        page.click("button")
        page.wait_for_selector("#main h1")
        return go(page, path) if path else page

    yield open_page
    for context in contexts:
        context.close()
    unknown = "Failed to load resource: the server responded with a status of 401"  # before anybody signed in
    assert [said for said in heard if not said.startswith(unknown)] == []


def go(page: Page, path: str) -> Page:
    """To a page of the same shell, once it is there."""
    page.evaluate("path => { main.setAttribute('aria-busy', 'true'); location.hash = '#/' + path }", path)
    page.wait_for_selector("#main[aria-busy=false] h1")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures(show: Show, scheme: str, tmp_path: Path) -> None:
    """For docs/pictures, where HOLDFAST_PICTURES says so."""
    folder = Path(os.environ.get("HOLDFAST_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    page = show(scheme=scheme)
    for name, path in PICTURES.items():
        go(page, path)
        page.wait_for_timeout(300)
        page.screenshot(path=folder / f"{name}-{scheme}.png")
    page.set_viewport_size({"width": 390, "height": 844})
    go(page, "")
    page.screenshot(path=folder / f"phone-{scheme}.png")


def test_every_page_shows_what_there_is_and_what_tries_to_be_a_script_is_only_read(show: Show) -> None:
    page, seen = show(), 0
    for path, title in PAGES.items():
        go(page, path)
        expect(page.locator("#main h1")).to_have_text(title)
        assert page.locator("#main script, #main img, #main iframe").count() == 0, path
        text = page.locator("#main").inner_text()
        assert len(text) > 150, path
        seen += SCRIPT in text or IMAGE in text
    assert seen >= 6  # they were there to be read
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.wait_for_timeout(100)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_on_a_screen_and_on_a_phone(show: Show, scheme: str) -> None:
    page = show(scheme=scheme)
    for width in (1320, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for path in PAGES:
            go(page, path)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
            assert page.evaluate(CONTRAST) >= 4.5, (path, width)


def test_a_run_leads_to_its_rollouts_a_rollout_to_its_tokens_and_its_group(show: Show) -> None:
    page = show("runs")
    page.click(f"tbody a:has-text('{RUN}')")
    expect(page.locator("tbody tr").last).to_be_visible()
    page.select_option("#choose-Status", "failed")
    page.wait_for_selector("#main[aria-busy=false] .chip.bad >> nth=0")
    assert "status=failed" in page.url
    page.click("#older")
    page.wait_for_url("**before=*")
    page.fill("#text", "task-8999")
    page.wait_for_url("**text=task-8999*")
    expect(page.locator("#text")).to_be_focused()
    page.fill("#text", "")
    page.wait_for_url(lambda url: "text=" not in url)
    page.select_option("#choose-Status", "succeeded")
    page.click("tbody a:has-text('task-89990')")
    expect(page.locator(".said.assistant")).to_have_count(2)
    expect(page.locator(".call .name").first).to_have_text("search")
    page.click("#tokens")
    assert page.locator(".tokens span").count() > 10
    assert "log-prob" in (page.locator(".tokens span").first.get_attribute("title") or "")
    page.click("text=Compare its group")
    expect(page.locator(".abreast .card")).to_have_count(8)
    assert "advantage" in page.locator(".abreast .card").first.inner_text()


def test_what_came_of_the_rollouts_comes_before_their_status_and_wrong_is_not_green(show: Show) -> None:
    page = show(f"run/{RUN}")
    keys = page.locator(".parts .keys span")
    assert [re.sub(r"^[\d\s]+", "", text) for text in keys.all_inner_texts()][:5] == [
        "right", "wrong", "not checked", "failed", "no answer"
    ]  # fmt: skip
    page.select_option("#choose-Outcome", "wrong")
    page.wait_for_url("**outcome=wrong*")
    page.wait_for_selector("#main[aria-busy=false] td .chip:text-is('wrong') >> nth=49")
    cell = page.locator("tbody tr", has=page.locator(".chip")).last.locator("td").nth(1)
    expect(cell).to_have_text("wrong succeeded")
    chip, right = cell.locator(".chip"), page.locator(".parts .keys i").first
    wrong = chip.evaluate("one => getComputedStyle(one).color")
    assert wrong != right.evaluate("one => getComputedStyle(one).backgroundColor")
    assert page.locator("td .chip.good").count() == 0
    go(page, "runs")
    titles = page.locator("thead th").all_inner_texts()
    assert titles.index("Right") < titles.index("Finished")


def test_the_keyboard_leads_everywhere_and_the_theme_is_kept(show: Show) -> None:
    page = show()
    for letter, title in {"r": "Runs", "l": "Learning", "e": "Releases", "o": "Overview"}.items():
        page.keyboard.press("g")
        page.keyboard.press(letter)
        expect(page.locator("#main h1")).to_have_text(title)
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    go(page, f"run/{RUN}")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.tagName") == "A"
    page.keyboard.press("/")
    expect(page.locator("#text")).to_be_focused()
    page.keyboard.press("Escape")
    page.locator("h1").click()
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.keyboard.press("t")
    after = page.evaluate(ground)
    assert after != before
    page.reload()
    page.wait_for_selector("#main[aria-busy=false] h1")
    assert page.evaluate(ground) == after


def test_an_order_is_looked_at_given_a_reason_and_obeyed(show: Show, room: Room) -> None:
    page = show(f"run/{RUN}", role="operator")
    page.click("button[data-order=pause] >> nth=0")
    expect(page.locator("dialog .change")).to_contain_text("paused")
    page.click("dialog button.main")  # without a reason nothing is sent
    assert room.store.runs.get(RUN).wanted is DesiredState.RUNNING
    page.fill("#why", "a look at the pause")
    page.click("dialog button.main")
    expect(page.locator("#said")).to_be_visible()
    assert room.store.runs.get(RUN).wanted is DesiredState.PAUSED
    page.click("button[data-order=resume]")
    page.fill("#why", "on it goes")
    page.click("dialog button.main:not([disabled])")
    expect(page.locator("button[data-order=pause] >> nth=0")).to_be_visible()
    assert room.store.runs.get(RUN).wanted is DesiredState.RUNNING
    last = [one for one in room.store.ledger.entries() if one.kind == "command"][-1]
    assert (last.who, last.body["why"]) == ("operator one", "on it goes")


def test_what_is_live_can_be_taken_back_from_the_overview(show: Show, room: Room) -> None:
    page = show(role="operator")
    expect(page.locator(".hero h3")).to_have_text("sprout@1 is live")
    page.click("button[data-order=rollback]")
    expect(page.locator("dialog .change")).to_contain_text("sprout@2")
    page.fill("#why", "it slips")
    page.click("dialog button.main:not([disabled])")
    expect(page.locator(".hero .next")).to_contain_text("sprout@2 was taken back")
    expect(page.locator(".hero .why")).to_contain_text("sprout@1 went from candidate to live")
    assert str(room.store.releases.get("sprout@2").stage) == "rolled_back"


def test_who_may_only_look_is_offered_no_orders(show: Show) -> None:
    page = show(role="viewer")
    for path in ("", f"run/{RUN}", "alerts", "flags", "releases"):
        go(page, path)
        assert page.locator("[data-order]").count() == 0, path
    expect(page.locator("#me")).to_have_text("viewer one · viewer")


def test_what_changes_is_seen_without_asking(show: Show, room: Room) -> None:
    page = show("alerts")
    expect(page.locator("#line")).to_have_text("Live")
    raised = Alert(code="just-now", severity=Severity.CRITICAL, message=f"look {SCRIPT}", at=2e9)
    before = page.locator(".badge").inner_text() if page.locator(".badge").count() else "0"
    room.store.alerts.raise_(raised).result()
    expect(page.locator("[data-alert=just-now]")).to_contain_text(SCRIPT)
    expect(page.locator(".badge")).to_have_text(str(int(before) + 1))
    room.store.alerts.clear("just-now", at=2e9 + 1).result()
    expect(page.locator("[data-alert=just-now]")).to_have_count(0)


def test_an_empty_store_says_what_fills_it(show: Show, tmp_path: Path) -> None:
    with open_store(tmp_path / "empty.sqlite") as store, serving(store) as empty:
        page = show(at=empty)
        for path in ("", "runs", "learning", "tools", "proof", "experiments", "releases", "flags"):
            go(page, path)
            expect(page.locator("#main .empty code").first).to_contain_text("holdfast ")
        go(page, "alerts")
        expect(page.locator("#main .empty")).to_have_text("No alerts.")
        page.goto("about:blank")


def test_a_wrong_token_is_told_and_leaving_leads_back_to_the_way_in(browser: Browser, room: Room) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{room.url}/#/runs")
    page.fill("#token", "hf_wrong")
    page.click("button")
    expect(page.locator("#said")).to_contain_text("not good")
    page.fill("#token", room.tokens["viewer"])
    page.click("button")
    expect(page.locator("#main h1")).to_have_text("Runs")  # where one wanted to go
    page.click("#leave")
    expect(page.locator("#token")).to_be_visible()
    assert context.cookies() == [] and room.tokens["viewer"] not in page.url
    context.close()


def test_a_page_whose_server_is_gone_says_so_and_takes_no_orders(browser: Browser, small: Path) -> None:
    context = browser.new_context(viewport={"width": 1320, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    with open_store(small, poll_s=0.02) as store, serving(store) as left:
        page.goto(left.url)
        page.fill("#token", left.tokens["admin"])
        page.click("button")
        expect(page.locator("#line")).to_have_text("Live", timeout=60_000)
        expect(page.locator("[data-order=rollback]")).to_be_enabled()
        expect(page.locator("#away")).to_be_hidden()
    expect(page.locator("#away")).to_contain_text("No connection since", timeout=60_000)
    expect(page.locator("[data-order=rollback]")).to_be_disabled()
    assert page.locator("#main").evaluate("one => getComputedStyle(one).opacity") == "0.5"
    for width in (1320, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("scrollTo(0, 600)")
        box = page.locator("#away").bounding_box()
        assert box is not None and (box["x"], box["y"]) == (0, 0) and box["width"] >= width - 20  # a scroll bar's
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    if "HOLDFAST_PICTURES" in os.environ:
        page.screenshot(path=Path(os.environ["HOLDFAST_PICTURES"]) / "away-phone.png")
        page.set_viewport_size({"width": 1320, "height": 900})
        page.screenshot(path=Path(os.environ["HOLDFAST_PICTURES"]) / "away.png")
    context.close()


def test_who_comes_back_to_the_line_goes_on_and_whose_token_is_revoked_is_told_at_the_way_in(
    browser: Browser, room: Room
) -> None:
    token = with_token(room.store, "for a while", Role.OPERATOR, now=time.time())
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(room.url)
    page.fill("#token", token)
    page.click("button")
    page.wait_for_selector("#main h1")
    context.set_offline(True)
    page.evaluate("location.hash = '#/runs'")
    expect(page.locator("#away")).to_be_visible(timeout=60_000)
    context.set_offline(False)
    expect(page.locator("#main h1")).to_have_text("Runs", timeout=60_000)
    expect(page.locator("#away")).to_be_hidden(timeout=60_000)
    revoked = next(one for one in room.store.tokens.all() if one.label == "for a while")
    room.store.tokens.revoke(revoked.id, who="admin one", why="it is over", now=time.time()).result()
    expect(page.locator("#said")).to_contain_text("token was revoked", timeout=60_000)
    page.fill("#token", room.tokens["viewer"])
    page.click("button")
    page.wait_for_selector("#main h1")
    page.click("#leave")
    expect(page.locator("#token")).to_be_visible()
    expect(page.locator("#said")).to_be_empty()  # who left by themselves needs no reason
    context.close()
