"""The live town as a browser shows it: overlays, pause, the scrubber, orders; on a screen, on a phone, in the dark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.store.store import open_store
from holdfast.workloads import townlife
from holdfast.workloads.townlife import Pseudonymizer
from holdfast.workloads.townpage import Runner
from holdfast.workloads.townstory import lived_story
from holdfast.workloads.townstory import page as story_page
from tests.browser.conftest import CONTRAST
from tests.workloads.test_townpage import network_driven, serving

Show = Callable[..., Page]
# How many pixels of the map differ from before; the first call only looks.
DIFFERENT = """() => {
  const c = document.getElementById('canvas'), copy = document.createElement('canvas');
  copy.width = c.width; copy.height = c.height;
  const pen = copy.getContext('2d', {willReadFrequently: true});
  pen.drawImage(c, 0, 0);
  const now = pen.getImageData(0, 0, c.width, c.height).data;
  let different = 0;
  if (window.before) for (let k = 0; k < now.length; k += 4) if (Math.abs(now[k] - window.before[k]) > 24) different++;
  window.before = now;
  return different;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Runner]]:
    folder = tmp_path_factory.mktemp("town")
    kinds = [
        f'[[trouble]]\nid = "{one}"\nper_day = 0\nduration = [60, 60]\ncooldown = 1\n' for one in townlife.TROUBLES
    ]
    (folder / "calm.toml").write_text("".join(kinds).replace("cooldown = 1", "cooldown = 1\nfactor = 1.5", 1))
    with serving(townlife.read_rules(folder / "calm.toml"), folder, speed=30.0) as served:
        yield served


@pytest.fixture
def show(browser: Browser, site: tuple[str, Runner]) -> Iterator[Show]:
    contexts, heard = [], list[str]()

    def open_page(width: int = 1320, scheme: Any = "light", token: str | None = None, url: str | None = None) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(170_000)  # the machine may be busy
        page.on("console", lambda said: heard.append(said.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.goto(f"{url or site[0]}/" + (f"#token={token}" if token else ""))
        page.wait_for_function("() => town.picture && town.bodies.length")
        return page

    yield open_page
    for context in contexts:
        context.close()
    refusals = "Failed to load resource: the server responded with a status of 40"  # some tests ask for them
    assert [said for said in heard if not said.startswith(refusals)] == []


def seen(page: Page, what: str) -> Any:
    return page.evaluate(f"() => town.{what}")


def test_residents_walk_and_time_goes_on(show: Show) -> None:
    page = show()
    expect(page.locator("#town")).to_have_text("harbour")
    before, where = seen(page, "picture.tick"), seen(page, "picture.at")
    page.wait_for_function(f"() => town.picture.tick > {before + 30}")
    assert seen(page, "picture.at") != where
    assert page.locator("#clock").inner_text().startswith("Day ")
    assert page.locator(".kpi").count() == 10
    assert page.evaluate(DIFFERENT) == 0
    page.wait_for_function(f"() => ({DIFFERENT})() > 20", polling=300)


@pytest.mark.parametrize("overlay", ["needs", "names", "ties", "heat"])
def test_an_overlay_changes_the_map_and_only_while_it_is_on(overlay: str, show: Show) -> None:
    page = show()
    if overlay == "ties":  # they come with time
        page.wait_for_function("() => town.picture.ties.some(t => Math.abs(t[2] + t[3] - t[4]) > 12)")
    page.click("#play")  # a viewer stops only their own picture
    page.click("[data-overlay=speech]")
    page.wait_for_timeout(300)
    button = page.locator(f"[data-overlay={overlay}]")
    page.evaluate(DIFFERENT)
    page.wait_for_timeout(100)
    page.wait_for_function(f"() => ({DIFFERENT})() < 400", polling=100)  # all stands still
    still, was = page.evaluate(DIFFERENT), button.get_attribute("aria-pressed")
    assert was is not None
    button.click()
    expect(button).not_to_have_attribute("aria-pressed", was)
    page.wait_for_function(f"() => ({DIFFERENT})() > {still + 20}", polling=100)
    button.click()
    expect(button).to_have_attribute("aria-pressed", was)


def test_a_viewer_who_pauses_stops_their_picture_and_not_the_town(show: Show, site: tuple[str, Runner]) -> None:
    page = show()
    page.click("#play")
    page.wait_for_timeout(200)
    at, town = seen(page, "picture.tick"), site[1].life.tick
    while site[1].life.tick < town + 10:
        page.wait_for_timeout(50)
    assert seen(page, "picture.tick") == at
    assert page.locator("#chip-paused").is_visible()
    page.keyboard.press("Escape")
    page.locator("#canvas").focus()
    page.keyboard.press(" ")  # goes on, and catches up
    page.wait_for_function(f"() => town.picture.tick > {at + 20}")


def test_an_operator_pauses_the_town_itself(show: Show, site: tuple[str, Runner]) -> None:
    page = show(token="operator-1-aaaaaaaaa")
    expect(page.locator("#desk")).to_be_visible()
    assert "token" not in page.url  # it does not stay in the address
    page.click("#play")
    expect(page.locator("#said")).to_have_text("the town stands still")
    at = site[1].life.tick
    page.wait_for_timeout(500)
    assert site[1].life.tick == at
    page.click("[data-order=rain]")
    expect(page.locator("#chip-rain")).to_be_visible()
    page.click("[data-order=rain]")
    expect(page.locator("#said")).to_have_text("rain ends")
    page.click("#play")
    page.wait_for_function(f"() => town.picture.tick > {at + 5}")
    page.click("[data-speed='128']")
    expect(page.locator("#said")).to_have_text("128 ticks a second")
    assert site[1].speed == 128
    site[1].speed = 30.0


def test_the_scrubber_shows_any_moment_and_live_comes_back(show: Show, site: tuple[str, Runner]) -> None:
    page = show()
    page.wait_for_function("() => town.picture.tick > 120")
    box = page.locator("#scrub").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    page.wait_for_function("() => town.mode === 'replay'")
    at = seen(page, "picture.tick")
    assert at < site[1].life.tick * 0.5 and page.locator("#chip-replay").is_visible()
    page.wait_for_function(f"() => town.picture.tick > {at + 5}")  # it plays on from there
    page.click("#play")
    page.wait_for_timeout(300)
    at = seen(page, "picture.tick")
    page.wait_for_timeout(400)
    assert seen(page, "picture.tick") == at
    page.click("#live")
    page.wait_for_function(f"() => town.mode === 'live' && town.picture && town.picture.tick > {at}")


def test_a_resident_can_be_looked_at_and_zoomed_to(show: Show) -> None:
    page = show()
    box = page.locator("#canvas").bounding_box()
    assert box is not None
    page.click("#play")
    page.wait_for_timeout(600)
    x, y = page.evaluate("() => { const b = town.bodies[7]; return [b.x / 48, b.y / 48]; }")
    page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
    expect(page.locator("#who")).to_be_visible()
    chosen = seen(page, "selected")
    expect(page.locator("#who h3")).to_have_text(seen(page, f"picture.name[{chosen}]"))
    assert page.locator(".need").count() == 4
    page.click("#in")
    assert seen(page, "view.scale") > 1.5
    page.click("#whole")
    assert seen(page, "view.scale") == 1
    page.click("#leave")
    expect(page.locator("#who")).to_be_hidden()


def test_the_mind_of_a_resident_is_shown_where_a_network_drives_it(show: Show, tmp_path: Path) -> None:
    rules = townlife.read_rules(residents=12)
    with (
        open_store(tmp_path / "store.db", create=True) as store,
        serving(rules, tmp_path, speed=30.0, driven=network_driven(rules, store)) as (url, runner),
    ):
        page = show(url=url)
        box = page.locator("#canvas").bounding_box()
        assert box is not None
        x, y = page.evaluate("() => { const b = town.bodies[3]; return [b.x / 48, b.y / 48]; }")
        page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
        expect(page.locator("#mind")).to_be_visible()
        expect(page.locator("#mind p").first).to_contain_text("town@2 · expects")
        assert page.locator("#choices li").count() >= 1
        expect(page.locator("#because")).to_contain_text("because of")
        page.locator("#mind summary").click()
        assert page.locator("#groups li").count() == len(townlife.groups(runner.life.env.senses))
        expect(page.locator("#groups li").first).to_contain_text("hunger")
        assert page.evaluate(CONTRAST) >= 4.5
        page.context.close()  # before the town ends: it would be asked for


LINEAGE: dict[str, Any] = {
    "version": "town@2",
    "stage": "live",
    "anneal": {
        "share": 1.0,
        "windows": [
            {"share": 0.25, "loss": 0.22, "action": "hold"},
            {"share": 0.25, "loss": 0.13, "action": "advance"},
            {"share": 1.0, "loss": 0.4, "action": "return"},
            {"share": 1.0, "loss": 0.08, "action": "done"},
        ],
    },
    "gate": {"open": True, "reasons": ["reward +1.85; all 16 checks are met", "green_windows 2 on 48"]},
    "return_before": 4.48, "return_learnt": 6.33, "towns": 128, "bc_accuracy": 0.957,
    "gain": 1.85, "gain_low": 1.81, "gain_high": 1.88, "kpis": {},
    "history": [{"at": 1_800_000_000.0, "what": "town@2 went from candidate to live"}],
}  # fmt: skip


def test_the_anneal_and_the_promotion_of_the_version_are_shown(show: Show, tmp_path: Path) -> None:
    rules = townlife.read_rules(residents=12)
    with open_store(tmp_path / "store.db", create=True) as store:
        driven = network_driven(rules, store)
        driven["mind"].lineage = LINEAGE
        with serving(rules, tmp_path, speed=30.0, driven=driven) as (url, _):
            page = show(url=url)
            expect(page.locator("#learning")).to_be_visible()
            expect(page.locator("#version")).to_have_text("town@2 (live)")
            actions = page.eval_on_selector_all("#anneal i", "bars => bars.map(bar => bar.className)")
            heights = page.eval_on_selector_all("#anneal i", "bars => bars.map(bar => bar.clientHeight)")
            assert actions == ["hold", "advance", "return", "done"] and heights[0] == heights[1] < heights[2]
            expect(page.locator("#gain")).to_contain_text("+4.48 → +6.33 a day in 128 unseen towns: +1.85")
            assert page.locator("#reasons li").count() == 2 and page.locator("#reasons.closed").count() == 0
            expect(page.locator("#moves li")).to_contain_text("town@2 went from candidate to live")
            assert page.evaluate(CONTRAST) >= 4.5
            page.context.close()


def test_there_is_no_sound_until_somebody_asks_for_it(show: Show) -> None:
    page = show()
    expect(page.locator("#learning")).to_be_hidden()  # scripts have learnt nothing
    assert page.locator("#sound").get_attribute("aria-pressed") == "false"
    assert seen(page, "sound") == {"state": "none", "notes": 0}
    page.click("#sound")
    page.wait_for_function("() => town.sound.state === 'running' && town.sound.notes > 0")
    page.click("#sound")
    page.wait_for_function("() => town.sound.state === 'suspended'")
    expect(page.locator("#sound")).to_have_attribute("aria-pressed", "false")


def test_the_form_of_all_orders_looks_before_it_does(show: Show, site: tuple[str, Runner]) -> None:
    page = show(token="admin-token-aaaaaaaa")
    page.click("#desk summary")
    page.select_option("#which", "give_money")
    page.fill("input[name=resident]", "3")
    page.fill("input[name=meals]", "2")
    given = len(site[1].life.commands)
    page.click("#dry")
    expect(page.locator("#said")).to_have_text("Would be: 3 gets 2 meals' worth")
    assert len(site[1].life.commands) == given
    page.click("#form button[type=submit]")
    expect(page.locator("#said")).to_have_text("3 gets 2 meals' worth")
    assert len(site[1].life.commands) == given + 1
    page.fill("input[name=resident]", "999")
    page.click("#form button[type=submit]")
    expect(page.locator("#said")).to_have_class("bad")


def test_a_wrong_token_is_told_and_a_right_one_unlocks(show: Show) -> None:
    page = show()
    page.fill("#token", "wrong-token")
    page.click("#enter button")
    expect(page.locator("#said")).to_have_text("the token is wrong")
    expect(page.locator("#desk")).to_be_hidden()
    page.fill("#token", "operator-1-aaaaaaaaa")
    page.click("#enter button")
    expect(page.locator("#desk")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1320])
def test_it_can_be_read_everywhere(width: int, scheme: str, show: Show) -> None:
    page = show(width, scheme, token="operator-1-aaaaaaaaa")
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) >= 4.5
    box = page.locator("#canvas").bounding_box()
    assert box is not None and abs(box["width"] - box["height"]) < 2 and box["width"] > 250


def test_behind_a_veil_the_page_shows_pseudonyms(show: Show, tmp_path: Path) -> None:
    rules = townlife.read_rules(residents=12)
    with serving(rules, tmp_path, speed=60.0, veil=Pseudonymizer(key=b"k" * 32)) as (url, _):
        page = show(url=url)
        expect(page.locator("#chip-private")).to_have_text("Pseudonyms")
        assert all(name.startswith("R-") for name in seen(page, "picture.name"))
        page.goto("about:blank")


def test_streamer_mode_leaves_no_name_on_the_screen_and_can_be_left(show: Show, site: tuple[str, Runner]) -> None:
    page = show()
    page.wait_for_function("() => document.querySelectorAll('#ticker li').length > 3")
    box = page.locator("#canvas").bounding_box()
    assert box is not None
    x, y = page.evaluate("() => { const b = town.bodies[7]; return [b.x / 48, b.y / 48]; }")
    page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
    expect(page.locator("#who")).to_be_visible()
    names = site[1].life.legend()["names"]
    assert len(names) == 256 and any(name in page.inner_text("#ticker") for name in names)
    page.click("#streamer")
    expect(page.locator("#chip-private")).to_have_text("Streamer")
    expect(page.locator("#who h3")).to_have_text(re.compile("R-[0-9a-f]{6}"))
    page.wait_for_timeout(1500)  # what comes now is hidden, too
    shown = page.inner_text("body")
    assert not [name for name in names if re.search(rf"\b{name}\b", shown)] and "R-" in page.inner_text("#ticker")
    assert page.evaluate("sessionStorage.getItem('town-streamer')") == "on"  # so it is still on after a reload
    page.reload()
    page.wait_for_function("() => town.picture && town.bodies.length")
    expect(page.locator("#streamer")).to_have_attribute("aria-pressed", "true")
    page.click("#streamer")
    expect(page.locator("#chip-private")).to_have_count(0)
    assert any(name in page.inner_text("#ticker") for name in names)


def test_streamer_mode_can_be_part_of_the_address(browser: Browser, site: tuple[str, Runner]) -> None:
    page = browser.new_page()
    page.set_default_timeout(170_000)
    page.goto(f"{site[0]}/#streamer")
    page.wait_for_function("() => town.picture && town.bodies.length")
    expect(page.locator("#streamer")).to_have_attribute("aria-pressed", "true")
    page.close()


def test_a_story_plays_its_film_and_can_be_stopped(browser: Browser, tmp_path: Path) -> None:
    told = lived_story(townlife.Life(townlife.read_rules(residents=12), seed=3), 1)
    (tmp_path / "story.html").write_text(story_page(told), encoding="utf-8")
    context, heard = browser.new_context(viewport={"width": 400, "height": 900}), list[str]()
    page = context.new_page()
    page.on("console", lambda said: heard.append(said.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.goto(f"file://{tmp_path / 'story.html'}")
    page.wait_for_function("() => story.place > 2")
    page.click("#play")
    assert page.locator("#play").inner_text() == "Play"
    at = page.evaluate("() => story.place")
    page.wait_for_timeout(400)
    assert page.evaluate("() => story.place") == at and page.locator(".day").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 400 and page.evaluate(CONTRAST) >= 4.5
    assert heard == []
    context.close()
