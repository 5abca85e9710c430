"""The page of a proof as a browser shows it: on a screen, on a phone, on paper, in the light and in the dark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from holdfast.operate.proof import render
from tests.browser.conftest import CONTRAST
from tests.operate.views import OUTCOMES, view

HOSTILE = """'"><script>document.title='taken'</script><img src=x onerror="document.title='taken'"><b>bold</b>"""

# Pairs of labels of one plot that lie upon one another.
TOUCHING = """() => [...document.querySelectorAll('.plot')].flatMap(plot => {
  const words = [...plot.querySelectorAll('span.beside, span.below')];
  const boxes = words.map(one => [one.innerText, one.getBoundingClientRect()]);
  return boxes.flatMap(([a, r], i) => boxes.slice(i + 1).filter(([, s]) =>
    r.left < s.right && s.left < r.right && r.top < s.bottom && s.top < r.bottom).map(([b]) => a + ' on ' + b));
})"""

Show = Callable[..., Page]


@pytest.fixture
def trouble() -> Iterator[list[str]]:
    """What a page asks for or complains about; nothing, when the test is over."""
    heard: list[str] = []
    yield heard
    assert heard == []


@pytest.fixture
def show(browser: Browser, tmp_path: Path, trouble: list[str]) -> Iterator[Show]:
    """Opens a page of this text."""
    contexts = []

    def open_page(text: str, width: int = 1280, scheme: Any = "light", scripts: bool = True) -> Page:
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        size: Any = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, java_script_enabled=scripts)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda asked: trouble.append(asked.url) if asked.url != file.as_uri() else None)
        page.on("console", lambda said: trouble.append(said.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
@pytest.mark.parametrize("kind", OUTCOMES)
def test_the_page_fits_and_can_be_read(show: Show, kind: str, width: int, scheme: str) -> None:
    page = show(render(view(kind, families=kind != "hold")), width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(TOUCHING) == []
    assert page.evaluate(CONTRAST) >= 4.5
    page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    assert page.evaluate(CONTRAST) >= 4.5
    sizes = page.eval_on_selector_all("body *", "all => all.map(one => parseFloat(getComputedStyle(one).fontSize))")
    assert min(sizes) >= 12
    headline = page.locator("h1")
    assert len(headline.inner_text()) > 40 and (headline.bounding_box() or {"y": 900})["y"] < 200


def test_a_phone_and_a_screen_show_plots_of_their_own_size(show: Show) -> None:
    page, sizes = show(render(view())), []
    for width in (1280, 400):
        page.set_viewport_size({"width": width, "height": 900})
        box = page.locator(".course svg").first.bounding_box()
        assert box is not None
        sizes.append((box["height"], box["width"] > 0.7 * min(width, 1060)))
    assert sizes == [(260, True), (220, True)]
    style = "one => [getComputedStyle(one).vectorEffect, getComputedStyle(one).strokeLinecap]"
    assert page.locator(".course path.dot").first.evaluate(style) == ["non-scaling-stroke", "round"]  # a circle


def test_dark_and_light_differ_and_paper_is_white(show: Show) -> None:
    text, ground = render(view()), "getComputedStyle(document.body).backgroundColor"
    light, dark = (show(text, scheme=scheme) for scheme in ("light", "dark"))
    shades = [sum(map(int, re.findall(r"\d+", page.evaluate(ground)))) for page in (light, dark)]
    assert shades[0] > 700 and shades[1] < 100
    dark.emulate_media(media="print")
    assert dark.evaluate(ground) == "rgb(255, 255, 255)"
    assert not dark.locator("details").is_visible()
    assert len(dark.pdf(format="A4")) > 10_000


def test_it_needs_no_script(show: Show) -> None:
    page = show(render(view()), scripts=False)
    assert page.locator("h1").is_visible() and page.locator("section").count() == 9
    row = page.locator("details td").first
    assert not row.is_visible()
    page.locator("summary").click()
    assert row.is_visible()


def test_names_from_outside_are_shown_and_do_nothing(show: Show) -> None:
    made = view("blocked")
    tasks = [replace(task, name=HOSTILE, family=f"{task.family}{HOSTILE}") for task in made.tasks]
    page = show(render(replace(made, tasks=tasks, candidate=HOSTILE, run=HOSTILE, facts={HOSTILE: HOSTILE})), 400)
    assert page.title() != "taken" and page.locator("script, img").count() == 0
    assert page.locator("dd", has_text=HOSTILE).last.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_even_a_script_that_got_in_would_not_run(show: Show, trouble: list[str]) -> None:
    page = show(render(view()).replace("</main>", "<script>document.title = 'taken'</script></main>"))
    assert page.title() != "taken"
    assert "Content Security Policy" in trouble.pop()
