"""Patience with browsers: five seconds, as they come, are not enough on a busy machine."""

from __future__ import annotations

from playwright.sync_api import expect

expect.set_options(timeout=60_000)
