"""Pages of the console, fetched and checked."""

import html
import re
from html.parser import HTMLParser
from typing import Any

import httpx2

from tests.judge_server.api.recording import post
from tests.judge_server.support import request
from trainer_client.documentation import SITE_URL

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)></pre>\u202egnorw\u202c مرحبا " + "W" * 2000


POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


async def page(http: httpx2.AsyncClient, path: str, **params: Any) -> str:
    """Fetch a page that must exist and be valid."""
    answer = await http.get(f"/console/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return checked(answer)


def checked(answer: httpx2.Response) -> str:
    """The text of a page, after a check of what every page has: a strict policy and nothing inline."""
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    seen = Tags()
    seen.feed(answer.text)
    assert seen.names.isdisjoint({"style", "iframe", "object", "img"})
    assert seen.names >= {"html", "main", "h1"}
    assert all(re.fullmatch(r'<script src="/console/static/[^"]+" defer>', tag) for tag in seen.scripts)
    assert seen.text_in_scripts == ""
    for name, value in seen.attributes:
        assert name != "style"
        assert not name.startswith("on")
        documented = name == "href" and value.startswith(f"{SITE_URL}/")
        assert name not in ("href", "src", "action") or documented or re.match(r"/[a-z]|#", value)
    return answer.text


class Tags(HTMLParser):
    """The element names, attributes and scripts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self.text_in_scripts = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts.append(self.get_starttag_text() or "")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.text_in_scripts += data.strip()


def links(text: str, to: str) -> list[str]:
    """The links on a page to pages of one kind."""
    found = re.findall(rf'href="(/console/{to}[?#][^"]*)"', text)
    return [address.replace("&amp;", "&") for address in found]


async def judged(http: httpx2.AsyncClient, run: str = "r", steps: int = 3) -> dict[str, Any]:
    """Judge a group of three per step, and return the last answer."""
    answer = None
    for step in range(steps):
        texts = [f"Yes {step}.", f"No {step}.", f"7 is odd {step}."]
        answer = await post(http, request(*texts, run=run, step=step, on_failure="skip"))
    assert answer is not None
    found: dict[str, Any] = answer.json()
    return found


def hidden(text: str, name: str) -> str:
    """The value of a hidden field of a page."""
    found = re.search(rf'name="{name}" value="([^"]*)"', text)
    assert found is not None
    return html.unescape(found[1])


async def sign_in(http: httpx2.AsyncClient, key: str, next_page: str = "", **headers: str) -> httpx2.Response:
    """Fill in the sign-in form and send it."""
    form = checked(await http.get("/console/sign-in", params={"next": next_page}))
    fields = {"key": key, "token": hidden(form, "token"), "next": hidden(form, "next")}
    return await http.post("/console/sign-in", data=fields, headers=headers)


def token_of(text: str) -> str:
    """The token of a page's forms."""
    found = re.search(r'"X-Form-Token":"([0-9a-f]{64})"', text)
    assert found is not None
    return found[1]
