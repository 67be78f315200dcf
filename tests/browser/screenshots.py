"""`python -m tests.browser.screenshots`: take the documentation's console screenshots, from the demo runs."""

import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

from tests.browser.chromium import MISSING, find_chromium, running_browser
from tests.browser.service import served

IMAGES = Path(__file__).parents[2] / "docs/images"
WIDTH, COLOURS = 1180, 128
MARGIN = 16


def shoot(page: Page, name: str, *, begin: str = "header", end: str) -> None:
    """Capture the area from the top of one element to the bottom of another, and save it with a reduced palette."""
    ends = [page.locator(selector).first.bounding_box() for selector in (begin, end)]
    top, bottom = (box for box in ends if box is not None)
    file = IMAGES / name
    clip = {
        "x": 0, "y": max(0, top["y"] - MARGIN), "width": WIDTH,
        "height": bottom["y"] + bottom["height"] + MARGIN - max(0, top["y"] - MARGIN),
    }  # fmt: skip
    page.screenshot(path=file, clip=clip, full_page=True)  # type: ignore[arg-type]
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(file, optimize=True)
    print(f"{file.name}: {small.width} x {small.height}, {file.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Take all screenshots."""
    chromium = find_chromium()
    if chromium is None:
        sys.exit(f"this {MISSING}")
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder)) as address,
        running_browser(chromium) as browser,
    ):
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.goto(f"{address}/console/run?run=demo/gamed")
        shoot(page, "console.png", end="section:has(#criteria) .legend")
        page.goto(f"{address}{page.locator('svg.flags a').last.get_attribute('href')}".partition("#")[0])
        shoot(page, "console-changes.png", begin="section:has(> #around)", end="section:has(> #around) .note")
        page.locator("table.changes tbody a").first.click()
        claiming = page.locator("ol.responses li", has_text="I have carefully checked").first
        page.goto(f"{address}{claiming.get_by_role('link').get_attribute('href')}".partition("#")[0])
        shoot(page, "console-group.png", end="section.answer >> nth=1")


if __name__ == "__main__":
    main()
