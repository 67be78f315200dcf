"""Every form of the console, with every field full of hostile text, in sizes up to a limit."""

import asyncio
import re
from importlib.resources import files
from urllib.parse import urlencode

import httpx2
import pytest

from judge_server.api.console.app import create_console
from judge_server.api.service import Service
from rubric_store import RubricStore
from tests.judge_server.api.console.pages import page, token_of
from tests.judge_server.api.http.test_sizes import SIZES, UNITS

TEMPLATES = files("judge_server.api.console") / "templates"
FIELDS = sorted(
    {
        name
        for file in TEMPLATES.iterdir()
        for name in re.findall(r'<(?:input|textarea|select)[^>]* name="(\w+)"', file.read_text(encoding="utf-8"))
    }
    - {"token"}
)
"""The fields of all forms; a form does not mind those of others."""


def pages(store: RubricStore) -> list[tuple[str, str]]:
    """The methods and paths of the console."""
    routes = create_console(Service(rubrics=store)).routes
    return [
        (method, getattr(route, "path", "")) for route in routes for method in getattr(route, "methods", None) or ()
    ]


async def test_every_form_answers_hostile_text_of_any_size(recorded: httpx2.AsyncClient, store: RubricStore) -> None:
    forms = [path for method, path in pages(store) if method == "POST"]
    assert len(forms) >= 14
    token = token_of(await page(recorded, "runs"))
    for path in forms:
        for size in SIZES:
            for name, unit in UNITS.items():
                text = unit * max(1, size // len(FIELDS) // len(unit))
                body = urlencode({"token": token, **dict.fromkeys(FIELDS, text)})
                answer = await recorded.post(
                    f"/console{path}", content=body, headers={"Content-Type": "application/x-www-form-urlencoded"}
                )
                assert answer.status_code < 500 or answer.status_code == 503, (path, size, name, answer.text[-500:])
                assert len(answer.content) < 2**20
    assert (await recorded.get("/healthz")).status_code == 200


PARAMETERS = ["q", "after", "request", "group", "digest", "fingerprint", "name", "around", "with", "order", "rows"]
HOSTILE = ("9" * 400, "\x00", "\xed\xa0\x80", "(" * 200, "1e999", "-1", "'\"><script>")


async def test_every_page_answers_hostile_parameters(recorded: httpx2.AsyncClient, store: RubricStore) -> None:
    for path in [path for method, path in pages(store) if method == "GET" and "{" not in path]:
        for text in HOSTILE:
            answer = await recorded.get(f"/console{path}", params=dict.fromkeys([*FIELDS, *PARAMETERS], text))
            assert answer.status_code < 500 or answer.status_code == 503, (path, text[:20], answer.text[-500:])
            assert "<script>" not in answer.text.replace("<script src", "")


def test_no_page_has_two_routes(store: RubricStore) -> None:
    found = pages(store)
    assert len(found) == len(set(found))


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_hostile_paths_are_not_found(recorded: httpx2.AsyncClient, method: str) -> None:
    for path in (
        "/console/%00",
        "/console/static/..%2f..%2fetc%2fpasswd",
        "/console/" + "a/" * 2000,
        "/console/run/%ff.csv",
    ):
        answer = await asyncio.wait_for(recorded.request(method, f"/console/{path}"), 60)
        assert answer.status_code in (400, 404, 405, 422), (path, answer.status_code)
