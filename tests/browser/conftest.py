"""One browser and one populated service, shared by all tests in this folder; each test opens its own pages.

Playwright keeps an event loop in the test thread, so both end before the tests of other folders begin.
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
