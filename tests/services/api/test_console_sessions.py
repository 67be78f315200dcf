"""Sessions of the console over several processes on one database, and after a restart."""

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from adjudge_services.cli.main import app
from tests.services.processes import Service, ready_service

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("migrated")]


def token_of(text: str) -> str:
    """The token of the forms of a page."""
    found = re.search(r'name="token" value="([^"]*)"', text)
    assert found is not None
    return html.unescape(found[1])


@contextmanager
def signed_in(service: Service, key: str) -> Iterator[httpx2.Client]:
    """A browser that has signed in."""
    with httpx2.Client(base_url=service.url) as browser:
        token = token_of(browser.get("/console/sign-in").text)
        assert browser.post("/console/sign-in", data={"key": key, "token": token}).status_code == 303
        yield browser


def is_signed_in(service: Service, cookies: dict[str, str]) -> bool:
    """Whether a process accepts these cookies."""
    return (
        httpx2.get(
            f"{service.url}/console/runs",
            headers={"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())},
        ).status_code
        == 200
    )


def test_a_session_ended_by_one_process_is_refused_by_all_also_after_a_restart(data_dir: Path) -> None:
    key = CliRunner().invoke(app, ["keys", "create", "--scope", "read"]).stdout.strip()
    required = {"ADJUDGE_KEYS": "required"}
    with ready_service("scripted://hash", data_dir, **required) as first:
        with (
            ready_service("scripted://hash", data_dir, **required) as second,
            signed_in(first, key) as browser,
            signed_in(first, key) as other_browser,
        ):
            ended, other = dict(browser.cookies), dict(other_browser.cookies)
            assert is_signed_in(second, ended)
            token = token_of(browser.get("/console/runs").text)
            assert browser.post("/console/sign-out", data={"token": token}).status_code == 303
            assert [is_signed_in(process, ended) for process in (first, second)] == [False, False]
            assert [is_signed_in(process, other) for process in (first, second)] == [True, True]
        first.stop()
    with ready_service("scripted://hash", data_dir, **required) as restarted:
        assert not is_signed_in(restarted, ended)
        assert is_signed_in(restarted, other)
