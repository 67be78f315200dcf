"""Short forms of the service's address and its rubric."""

import json

import pytest

from tests.trainer_client.fake_service import REWARDS, ScriptedReply, rewarded
from trainer_client import AsyncClient, Client, Criterion
from trainer_client.verl import compute_score

CRITERIA = [{"id": "c1", "description": "states 42", "kind": "point"}]


@pytest.mark.parametrize("client_class", [Client, AsyncClient])
def test_the_address_of_the_environment_is_used_unless_one_is_given(client_class, monkeypatch):
    monkeypatch.setenv("ADJUDGE_URL", "http://judge.test\n")
    assert client_class().base_url == "http://judge.test"
    assert client_class("http://other.test", run="r").base_url == "http://other.test"


@pytest.mark.parametrize("client_class", [Client, AsyncClient])
def test_without_an_address_the_error_names_the_variable(client_class, monkeypatch):
    monkeypatch.delenv("ADJUDGE_URL", raising=False)
    with pytest.raises(ValueError, match=r"pass base_url, such as http://judge:8000, or set ADJUDGE_URL"):
        client_class()


async def test_verl_uses_the_address_of_the_environment(service, monkeypatch):
    monkeypatch.setenv("ADJUDGE_URL", service.url)
    service.script(ScriptedReply(body=rewarded))
    scored = await compute_score("data", "42", "42", {"prompt": "6 * 7?"}, rubric=CRITERIA)
    assert scored["score"] == 1.0


@pytest.mark.parametrize("criteria", [CRITERIA, tuple(CRITERIA), [Criterion(**CRITERIA[0])]])
def test_a_list_of_criteria_is_a_rubric_for_requests_and_for_groups(service, connect, criteria):
    service.script(ScriptedReply(body=REWARDS), ScriptedReply(body=REWARDS))
    client = connect(service.url)
    group = {"id": "q17", "prompt": "6 * 7?", "responses": ["42", "41"]}
    client.rewards([group], criteria, "points")
    client.rewards([{**group, "rubric": criteria}], mode="points")
    first, second = (json.loads(asked.body) for asked in service.asked)
    assert first["rubric"]["criteria"] == CRITERIA
    assert second["groups"][0]["rubric"] == first["rubric"]
