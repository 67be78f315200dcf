"""Find the browser for the tests: Debian's Chromium, or one that `make browser` fetched from npm.

Playwright's own browsers come from a host that is not a package registry, so none of them is used.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, sync_playwright

FETCHED = Path(__file__).parents[2] / ".cache/chromium"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "needs a Chromium: install Debian's package chromium, or run make browser, which fetches one from npm"


class Chromium(NamedTuple):
    """A browser: its program, required arguments and environment."""

    program: Path
    arguments: tuple[str, ...]
    environment: dict[str, str]


def find_chromium() -> Chromium | None:
    """Return the browser to use, or None if there is none."""
    for name in NAMES:
        if found := shutil.which(name):
            return Chromium(Path(found), _sandbox(), {})
    program = FETCHED / "chromium"
    if not program.exists():
        return None
    libraries = os.pathsep.join(filter(None, (str(FETCHED / "al2023/lib"), os.environ.get("LD_LIBRARY_PATH"))))
    return Chromium(program, ("--no-sandbox", "--disable-gpu"), {"LD_LIBRARY_PATH": libraries})


def _sandbox() -> tuple[str, ...]:
    """Disable the sandbox for root, which Chromium requires; the tests open only pages of this service."""
    return ("--no-sandbox",) if os.geteuid() == 0 else ()


@contextmanager
def running_browser(chromium: Chromium) -> Iterator[Browser]:
    """Run a headless browser for the duration of the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.program,
            args=[*chromium.arguments, "--font-render-hinting=none"],
            env={**os.environ, **chromium.environment},
        )
        try:
            yield browser
        finally:
            browser.close()
