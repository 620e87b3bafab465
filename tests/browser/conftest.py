"""One browser for the tests of a file."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """The system's Chromium; tests are skipped without it."""
    from tests.browser.looking import chromium

    with chromium() as started:
        yield started
