"""`adjudge keys`, `projects` and `audit`, and a service that requires keys, as processes."""

import json
import os
import re
from pathlib import Path

import httpx2
import pytest

from adjudge_services.cli.output import out
from judge_server.auth.keys import make_key
from tests.services.command import adjudge, failure_of
from tests.services.processes import listening
from trainer_client import Client, Forbidden, Unauthorized, UnknownRubric

pytestmark = pytest.mark.usefixtures("migrated")

RUBRIC = [{"id": "a", "description": "Is right."}]
GROUPS = [{"id": "g", "prompt": "Is 7 prime?", "responses": ["Yes.", "No."]}]


def run(*arguments: str, exit_code: int = 0) -> str:
    """Run an `adjudge` command; return its output on one line."""
    result = adjudge(*arguments)
    assert result.exit_code == exit_code, result.output
    return " ".join((result.stderr if exit_code else result.stdout).split())


def new_key(*options: str) -> str:
    """Create a key; return its text."""
    key = run("keys", "create", *options)
    assert re.fullmatch(r"adj_[a-z2-7]{16}_[A-Za-z0-9_-]{43}", key)
    return key


def test_a_key_is_shown_once_and_its_secret_never_again() -> None:
    key = new_key("--scope", "score", "--scope", "read", "--label", "nightly run", "--expires-in", "30")
    listed = run("keys", "list")
    assert key[4:20] in listed
    assert "nightly run" in listed
    assert "read score" in listed
    assert key[21:] not in listed + run("audit")


def test_a_listed_key_can_be_copied_from_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "width", 80)
    key = new_key("--scope", "score", "--scope", "rubrics:write", "--label", "nightly run", "--expires-in", "30")
    assert key[4:20] in run("keys", "list").split()


def test_a_revoked_key_is_listed_only_with_all() -> None:
    key_id = new_key("--scope", "read")[4:20]
    assert key_id in run("keys", "revoke", key_id)
    assert run("keys", "list") == "no keys"
    assert "revoked" in run("keys", "list", "--all")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("keys", "create"), "say what the key permits, with --scope: read, score"),
        (("keys", "create", "--scope", "write"), "there is no scope 'write'"),
        (("keys", "create", "--scope", "read", "--project", "b"), "adjudge projects create b"),
        (("keys", "create", "--scope", "read", "--label", "a\nb"), "one line"),
        (("keys", "revoke", "nothing"), "there is no key 'nothing'"),
        (("projects", "create", "default"), "a project 'default' already exists"),
        (("projects", "create", "Team B"), "cannot name a project"),
        (("projects", "limits", "b", "--weight", "2"), "there is no project 'b'"),
        (("projects", "limits", "default", "--weight", "0"), "--weight"),
        (("projects", "limits", "default", "--weight", "none"), "--weight"),
        (("projects", "limits", "default", "--tokens-per-day", "many"), "--tokens-per-day"),
    ],
)
def test_an_invalid_command_gives_advice(arguments: tuple[str, ...], said: str) -> None:
    assert said in failure_of(adjudge(*arguments))


def test_omitted_limits_stay_and_none_removes_a_limit() -> None:
    run("projects", "create", "b", "--weight", "2", "--tokens-per-day", "1000")
    assert run("projects", "limits", "b", "--requests-per-minute", "60") == (
        "b: weight 2.0, requests_per_minute 60, tokens_per_day 1000, tokens_total none"
    )
    assert "tokens_per_day none" in run("projects", "limits", "b", "--tokens-per-day", "none")
    assert "b" in run("projects", "list")
    changes = run("audit", "--project", "b")
    assert "limits.changed" in changes
    assert "project.created" in changes


def test_times_and_headers_of_projects_stay_whole_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    run("projects", "create", "b")
    monkeypatch.setattr(out, "width", 80)
    listed = adjudge("projects", "list").stdout
    assert re.search(r"^b +\d{4}-\d\d-\d\d \d\d:\d\dZ ", listed, re.MULTILINE)
    assert "…" not in listed


@pytest.mark.processes
def test_a_service_that_requires_keys_enforces_scopes_and_counts_requests() -> None:
    assert "refusing to start with ADJUDGE_KEYS=required" in " ".join(refused_start().split())
    run("projects", "create", "b")
    score, write = new_key("--scope", "score"), new_key("--scope", "rubrics:write")
    of_b, metrics = new_key("--scope", "admin", "--project", "b"), new_key("--scope", "metrics")
    with listening("serve", "--port", "0", "--engine", "scripted://hash", ADJUDGE_KEYS="required") as service:
        with Client(service.url) as client:
            service.wait_until_ready(client)
            with pytest.raises(Unauthorized, match="Authorization: Bearer"):
                client.rubric("team/a")
        with Client(service.url, api_key=write) as client:
            client.publish_rubric("team/a", RUBRIC)
            with pytest.raises(Forbidden, match="score"):
                client.rewards(GROUPS, "team/a")
        with Client(service.url, api_key=score, run="r") as client:
            assert client.rewards(GROUPS, "team/a").groups[0].responses[0].reward is not None
        with Client(service.url, api_key=of_b) as client, pytest.raises(UnknownRubric):
            client.rewards(GROUPS, "team/a")
        page = httpx2.get(f"{service.url}/metrics", headers={"Authorization": f"Bearer {metrics}"})
        assert 'adjudge_project_requests_total{project="default"} 1.0' in page.text
        assert httpx2.get(f"{service.url}/metrics").status_code == 401
        assert service.stop() in (0, -15)
        said = "".join(service.said)
    assert all(key[21:] not in said for key in (score, write, of_b, metrics))
    assert "Traceback" not in said
    listed = run("projects", "list")
    assert re.search(r"default \S+ \S+Z 1 - [1-9]", listed), listed
    assert f"key {write[4:20]}" in run("audit", "--subject", "team/a@1")


def test_a_command_that_judges_locally_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_KEYS", "required")
    monkeypatch.setenv("ADJUDGE_API_KEY", make_key().text)
    groups, rubric = tmp_path / "groups.jsonl", tmp_path / "rubric.json"
    groups.write_text(json.dumps(GROUPS[0]) + "\n")
    rubric.write_text(json.dumps({"criteria": RUBRIC}))
    scored = run("score", str(groups), "--rubric", str(rubric), "--engine", "scripted://yes")
    assert '"reward":1.0' in scored.replace(" ", "")


def refused_start() -> str:
    """Return the error of `adjudge serve` if keys are required and none exists."""
    result = adjudge(
        "serve", "--port", "0", "--engine", "scripted://hash", env={**os.environ, "ADJUDGE_KEYS": "required"}
    )
    assert result.exit_code == 1
    return result.stderr
