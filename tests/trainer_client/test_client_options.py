import inspect
from contextlib import suppress
from typing import get_type_hints

import pytest

from tests.trainer_client.fake_service import COMPARISONS, VERDICTS, ScriptedReply, rewarded
from trainer_client import (
    AdjudgeError,
    Client,
    LengthPenalty,
    OverlongPenalty,
)
from trainer_client.client.keywords import ComparisonKeywords, RewardKeywords, VerdictKeywords
from trainer_client.wire import (
    ComparisonRequest,
    RewardRequest,
    VerdictRequest,
)
from trainer_client.wire.options import option_parts

GROUP = {"id": "q17", "prompt": "x?", "responses": [{"text": "42", "tokens": 3, "stopped": True}]}
PAIR = {"id": "q17", "prompt": "x?", "a": "42", "b": "43"}

COMPARISON = {
    "rationale": True,
    "think_tokens": 64,
    "reasoning": "keep",
    "grounding_characters": 900,
    "template": "v1",
}
JUDGING = COMPARISON | {
    "protocol": "binary",
    "criteria_per_call": "all",
    "votes": 3,
    "temperature": 0.5,
    "truncate": True,
}
REWARD = {
    "kinds": ["point"],
    "format_weight": 0.2,
    "gate_fraction": 0.75,
    "length_penalty": {"coefficient": 0.001, "target_tokens": 100},
    "overlong_penalty": {"limit_tokens": 900, "buffer_tokens": 100},
    "truncation_factor": 0.5,
}


def test_each_option_goes_to_its_part_of_the_request(service, connect):
    service.script(
        ScriptedReply(body=rewarded),
        ScriptedReply(body=rewarded),
        ScriptedReply(body=VERDICTS),
        ScriptedReply(body=COMPARISONS),
    )
    client = connect(service.url)
    client.rewards([GROUP], "r", "gate", **REWARD, **JUDGING)
    list(client.stream_rewards([GROUP], "r", "gate", **REWARD, **JUDGING))
    client.verdicts([GROUP], "r", **JUDGING)
    client.compare([PAIR], **COMPARISON)
    rewards, streamed, verdicts, compared = [asked.json for asked in service.asked]
    assert (rewards["judging"], rewards["reward"]) == (JUDGING, {"mode": "gate"} | REWARD)
    assert streamed == rewards
    assert verdicts["judging"] == JUDGING
    assert compared["judging"] == COMPARISON


def test_omitted_and_none_options_are_not_sent_to_stay_compatible_with_older_services(service, connect):
    service.script(ScriptedReply(body=rewarded))
    client = connect(service.url)
    client.rewards([GROUP], "r")
    client.rewards([GROUP], "r", protocol=None, length_penalty=None, template=None)
    sent = {
        "rubric": "r",
        "reward": {"mode": "weighted_mean"},
        "on_failure": "null",
        "deadline_s": 60.0,
        "groups": [GROUP],
    }
    assert [asked.json for asked in service.asked] == [sent, sent]


def test_penalties_may_be_models(service, connect):
    service.script(ScriptedReply(body=rewarded))
    connect(service.url).rewards(
        [GROUP],
        "r",
        length_penalty=LengthPenalty(excess_only=True),
        overlong_penalty=OverlongPenalty(limit_tokens=9, buffer_tokens=2),
    )
    assert service.asked[0].json["reward"] == {
        "mode": "weighted_mean",
        "length_penalty": {"excess_only": True},
        "overlong_penalty": {"limit_tokens": 9, "buffer_tokens": 2},
    }


@pytest.mark.parametrize(
    ("method", "items", "option", "closest"),
    [
        ("rewards", [GROUP], "protocl", "protocol"),
        ("rewards", [GROUP], "on_failur", "on_failure"),
        ("rewards", [GROUP], "model", "mode"),
        ("stream_rewards", [GROUP], "format_wait", "format_weight"),
        ("verdicts", [GROUP], "rational", "rationale"),
        ("verdicts", [GROUP], "prioriti", "priority"),
        ("verdicts", [GROUP], "deadline", "deadline_s"),
        ("compare", [PAIR], "questions", "question"),
        ("compare", [PAIR], "think_token", "think_tokens"),
    ],
)
def test_an_unknown_option_is_refused_with_the_closest_known_one(connect, service, method, items, option, closest):
    with pytest.raises(TypeError, match=rf"^{method}\(\) has no option '{option}'.*'{closest}'\?$"):
        getattr(connect(service.url), method)(items, "r", **{option: 1})
    assert service.asked == []


@pytest.mark.parametrize(
    ("method", "option"), [("verdicts", "format_weight"), ("verdicts", "mode"), ("compare", "votes"), ("rewards", "")]
)
def test_an_option_of_another_call_is_refused(connect, service, method, option):
    with pytest.raises(TypeError, match=rf"has no option '{option}'"):
        getattr(connect(service.url), method)([], "r", **{option: 1})


@pytest.mark.parametrize(
    ("keywords", "request_model"),
    [
        (ComparisonKeywords, ComparisonRequest),
        (VerdictKeywords, VerdictRequest),
        (RewardKeywords, RewardRequest),
    ],
)
def test_the_typed_keywords_are_the_options_of_the_contract(keywords, request_model):
    parameters = {"mode", "on_failure", "deadline_s"}
    assert set(get_type_hints(keywords)) == option_parts(request_model).keys() - parameters


@pytest.mark.parametrize(("method", "items"), [("rewards", [GROUP]), ("verdicts", [GROUP]), ("compare", [PAIR])])
def test_a_priority_is_sent_at_the_top_level_and_only_where_it_is_given(connect, service, method, items):
    service.script(ScriptedReply(body={}))
    for priority in ("bulk", None):
        with suppress(AdjudgeError):
            getattr(connect(service.url), method)(items, "r", priority=priority)
    bulk, usual = [asked.json for asked in service.asked]
    assert bulk["priority"] == "bulk"
    assert usual == {name: value for name, value in bulk.items() if name != "priority"}


@pytest.mark.parametrize("option", get_type_hints(RewardKeywords))
def test_every_option_is_documented_in_the_docstring(option):
    assert f"\n    {option}: " in inspect.getdoc(Client.rewards)
