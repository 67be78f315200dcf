"""`adjudge doctor URL`: whether an endpoint can judge, what was found out about it, and what is done about each gap."""

import json
from pathlib import Path
from typing import Any

import pytest

from adjudge_services.cli.output import out
from tests.fixtures.ports import unused_port
from tests.judge_server.engines.servers.dialects import (
    KINDS,
    MODEL,
    ServerKind,
    dialect_server_in_thread,
    openai_error,
)
from tests.judge_server.engines.servers.vllm_server import vllm_server
from tests.services.command import adjudge, failure_of


@pytest.fixture(autouse=True)
def _no_settings(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, and a terminal of 80 columns."""
    monkeypatch.delenv("ADJUDGE_ENGINE_API_KEY", raising=False)
    monkeypatch.setattr(out, "width", 80)


def checked(kind: ServerKind, *options: str) -> tuple[int, str]:
    """The exit status and the output for an endpoint of this kind."""
    with dialect_server_in_thread(kind) as server:
        url = f"{server.url}?model={kind.named}" if kind.named else server.url
        result = adjudge("doctor", url, *options)
    return result.exit_code, result.stdout


def findings(kind: ServerKind, code: int = 0) -> dict[str, tuple[str, str]]:
    """What was found and what is done, by part."""
    status, told = checked(kind, "--json")
    assert status == code, told
    diagnosis: dict[str, Any] = json.loads(told)
    assert diagnosis["can_judge"] == (code == 0)
    return {row["part"]: (row["found"], row["done"]) for row in diagnosis["findings"]}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_server_can_judge_and_the_table_fits_80_columns(name: str) -> None:
    status, told = checked(KINDS[name])
    assert status == 0, told
    first = told.splitlines()[0]
    assert first.startswith("http://127.0.0.1:")
    assert " can judge" in first
    assert max(map(len, told.splitlines())) <= 80


def test_a_server_without_gaps_leaves_nothing_to_do_but_estimates() -> None:
    found = findings(KINDS["as-specified"])
    assert found["log-probabilities"] == ("the 20 likeliest tokens", "")
    assert found["constraints"] == ("JSON schema and labels", "")
    assert found["easy question"][0].startswith("yes, P(yes) 0.")
    assert 0 < float(found["mass of yes and no"][0]) < 1
    assert [part for part, (_, done) in found.items() if done] == ["token counts"]


@pytest.mark.parametrize(("has_route", "seen"), [(True, "several, by the batch route"), (False, "one")])
def test_the_batch_route_is_reported(has_route: bool, seen: str) -> None:
    with vllm_server(has_batch_route=has_route) as server:
        result = adjudge("doctor", server.url, "--json")
    found = {row["part"]: row["found"] for row in json.loads(result.stdout)["findings"]}
    assert found["calls per request"] == seen


@pytest.mark.parametrize(
    ("kind", "part", "seen", "done"),
    [
        ("newest-openai", "temperature", "only its own", "never sent"),
        ("newest-openai", "token limit", "max_completion_tokens, from 16", "shorter limits are raised to it"),
        ("newest-openai", "log-probabilities", "none", "its text is read"),
        ("strictly-positive", "temperature", "0 is refused", "left out"),
        ("no-system-role", "system role", "refused", "its text begins the user message"),
        ("models-forbidden", "models", "not listed", "?model= is taken as given"),
        ("bare-list", "log-probabilities", "the 5 likeliest tokens", ""),
        ("forbids-extras", "seeds", "no effect", "votes cannot be repeated"),
        ("forbids-extras", "constraints", "none", "asked for in words"),
    ],
)
def test_each_gap_is_named_with_what_is_done_about_it(kind: str, part: str, seen: str, done: str) -> None:
    found, remedy = findings(KINDS[kind])[part]
    assert found == seen
    assert done in remedy


def thinking(completion: dict[str, Any]) -> dict[str, Any]:
    """A model that thinks before it answers, and is cut off while it does if it has little room."""
    choice = completion["choices"][0]
    choice["message"] = {"content": None, "reasoning_content": "Hm."} | (
        {"content": "yes"} if choice["finish_reason"] == "stop" else {}
    )
    return completion


def test_a_model_that_thinks_can_judge_with_room_for_it() -> None:
    def cut(completion: dict[str, Any]) -> dict[str, Any]:
        completion["choices"][0]["finish_reason"] = "length"
        return thinking(completion)

    roomy = {"cut": True}

    def shape(completion: dict[str, Any]) -> dict[str, Any]:
        return cut(completion) if roomy["cut"] else thinking(completion)

    def limit(body: dict[str, Any]) -> None:
        roomy["cut"] = body["max_tokens"] < 100

    thinker = ServerKind(shape=shape, refuses_value=limit, context_tokens=8192)
    status, told = checked(thinker)
    assert status == 0, told
    said = " ".join(told.split())
    assert f"{MODEL} answers without probabilities if requests set judging.think_tokens" in said
    assert findings(thinker)["reasoning"][1].startswith("set judging.think_tokens")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (ServerKind(models=openai_error("no", 401)), "requires a key"),
        (ServerKind(models=openai_error("no", 403)), "?model=NAME"),
        (ServerKind(named="judge-9"), "does not serve 'judge-9' but judge-1"),
        (ServerKind(refuses_value=lambda _: openai_error("gone", 402)), "quota is exhausted"),
        (ServerKind(refuses_value=lambda _: openai_error("bad weather")), "bad weather"),
        (ServerKind(models=(200, "<!doctype html>")), "does not return a list of models"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_endpoint_that_cannot_judge_says_why_first_and_exits_with_1(kind: ServerKind, said: str) -> None:
    status, told = checked(kind)
    assert status == 1, told
    words = " ".join(told.partition("┏")[0].split())
    assert "cannot judge" in words
    assert said in words
    assert max(map(len, told.splitlines())) <= 80


def test_an_endpoint_without_a_readable_answer_cannot_judge() -> None:
    def mumbling(completion: dict[str, Any]) -> dict[str, Any]:
        completion["choices"][0] |= {"logprobs": None, "message": {"content": "Well, well."}}
        return completion

    found = findings(ServerKind(shape=mumbling), 1)
    assert found["easy question"][0] == "no verdict"
    assert found["log-probabilities"][0] == "none"


def test_an_unreachable_endpoint_cannot_judge() -> None:
    url = f"http://127.0.0.1:{unused_port()}/v1"
    result = adjudge("doctor", url, exit_code=1)
    assert f"{url} cannot judge: no answer from {url}" in " ".join(result.stdout.split())
    assert "start the server, or correct the URL" in result.stdout


def test_other_engines_are_checked_too_and_unknown_ones_refused() -> None:
    result = adjudge("doctor", "scripted://yes", "--json", exit_code=0)
    assert json.loads(result.stdout)["summary"] == "scripted://yes can judge: scripted answers with probabilities."
    assert "engine scheme 'ftp' is unknown" in failure_of(adjudge("doctor", "ftp://host"))
