"""One browser for a module: its loop runs on this thread, where other modules run loops of their own.

Patience with browsers: five seconds, as they come, are not enough on a busy machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
# Every text that is seen, against the nearest ground below it: the smallest ratio of their luminances (WCAG 2).
CONTRAST = """() => {
  const read = text => text.match(/[\\d.]+/g).map(Number);
  const linear = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = text => { const [r, g, b] = read(text).map(linear); return .2126 * r + .7152 * g + .0722 * b; };
  let least = 99;
  for (const one of document.querySelectorAll('body *')) {
    if (![...one.childNodes].some(node => node.nodeType === 3 && node.data.trim()) || one.closest('svg')) continue;
    if (!one.checkVisibility()) continue;
    let ground = one;
    while (ground && (read(getComputedStyle(ground).backgroundColor)[3] ?? 1) === 0) ground = ground.parentElement;
    const [a, b] = [light(getComputedStyle(one).color), light(getComputedStyle(ground).backgroundColor)];
    least = Math.min(least, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
  }
  return least;
}"""

expect.set_options(timeout=60_000)


@contextmanager
def launched() -> Iterator[Browser]:
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started
