"""One browser and one filled service for all tests of this folder; each test has pages of its own.

Playwright keeps an event loop in the thread of the tests, so both end before tests of other folders begin.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import MISSING, find_chromium, running_browser
from tests.browser.service import served


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A browser; without one the test is skipped."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip(MISSING)
    with running_browser(chromium) as running:
        yield running


@pytest.fixture(scope="package")
def address(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service with runs in its ledger."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ADJUDGE_DATABASE_URL", raising=False)
        with served(tmp_path_factory.mktemp("browsed")) as url:
            yield url
