"""Look at the documentation site as readers do: `python -m tests.browser.check_site`, after `make docs`.

No page may be wider than the window of a laptop or a phone, and a search for the words that people use must find the
page for them first. Prints what is wrong, and exits with 1 if anything is.
"""

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Page

from tests.browser.chromium import MISSING, find_chromium, running_browser

SITE = Path(__file__).parents[2] / "site"
WIDTHS = (1280, 400)
"""CSS pixels."""

FOUND_FIRST = {
    "wandb": "how-to/log-rewards-to-wandb/",
    "mlflow": "how-to/log-rewards-to-mlflow/",
    "colocate": "how-to/share-the-gpu-with-the-trainer/",
    "share the GPU": "how-to/share-the-gpu-with-the-trainer/",
    "sleep": "how-to/share-the-gpu-with-the-trainer/",
    "slurm": "how-to/run-on-slurm/",
    "verl": "how-to/train-with-verl/",
    "eight gpus": "how-to/put-the-judge-on-the-training-node/",
    "reward is zero": "how-to/find-out-why-a-reward-is-zero/",
    "helm": "how-to/deploy-with-helm/",
    "calibrate": "how-to/calibrate-a-judge/",
    "openai": "how-to/use-an-api-provider-as-judge/",
    "budget": "how-to/limit-what-a-project-spends/",
    "resume": "how-to/resume-after-an-outage/",
    "vllm": "how-to/use-vllm-or-sglang-as-judge/",
    "api key": "how-to/give-a-team-a-key/",
    "kubernetes": "how-to/deploy-with-helm/",
    "docker": "how-to/deploy-with-docker-compose/",
    "rubric import": "how-to/import-a-rubric/",
    "timeout": "how-to/set-deadlines/",
    "deadline": "how-to/set-deadlines/",
    "429": "how-to/see-why-the-queue-is-long/",
    "queue": "how-to/see-why-the-queue-is-long/",
    "lora": "how-to/use-my-own-judge/",
    "cascade": "how-to/combine-judges/",
    "backup": "how-to/back-up-and-restore/",
    "how many gpus": "how-to/size-a-deployment/",
}
"""By words that people search, the page that they look for."""


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *args: object) -> None:
        pass


class QuietServer(ThreadingHTTPServer):
    """Serves without a word about a page that is left before it is whole."""

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of loopback; yields its address."""
    server = QuietServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()


def too_wide(page: Page, site: str) -> Iterator[str]:
    """Pages that must be scrolled sideways as a whole."""
    page.route("**/search/*", lambda route: route.abort())  # each page would read the whole index
    files = [file for file in sorted(SITE.rglob("index.html")) if "<article" in file.read_text(encoding="utf-8")]
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for file in files:  # the others are redirects
            path = file.parent.relative_to(SITE).as_posix()
            page.goto(f"{site}{path}/", wait_until="domcontentloaded")
            needed = page.evaluate("document.documentElement.scrollWidth")
            if needed > width:
                yield f"{path}: {needed} pixels wide in a window of {width}"


def not_first(page: Page, site: str) -> Iterator[str]:
    """Searches whose first result is another page than the one that people look for."""
    page.set_viewport_size({"width": 1280, "height": 900})
    for words, wanted in FOUND_FIRST.items():
        page.goto(site)
        page.fill("input.md-search__input", words)
        result = page.locator("a.md-search-result__link").first
        result.wait_for(state="attached")
        found = str(result.evaluate("link => link.href")).removeprefix(site).partition("?")[0].partition("#")[0]
        if found != wanted:
            yield f"a search for {words!r} finds {found} first, not {wanted}"


def main() -> int:
    """Check the site; the exit status says whether something is wrong."""
    chromium = find_chromium()
    if chromium is None or not (SITE / "index.html").exists():
        print(MISSING if chromium is None else "there is no site: run make docs")
        return 1
    with served(SITE) as site, running_browser(chromium) as browser:
        page = browser.new_page()
        problems = [*not_first(page, site), *too_wide(page, site)]
    print("\n".join(problems) or "every page fits, and every search finds its page")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
