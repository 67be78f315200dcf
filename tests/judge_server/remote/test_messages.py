"""Messages between an api and a judge mean the same on both sides."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from judge_server.judging.plan import ResponsePlan
from judge_server.judging.questions import JudgingConfig, Question
from judge_server.judging.results import Caller, Costs, Outcomes
from judge_server.ports import CallFailure, JudgeResult, Reply
from judge_server.remote.messages import PROTOCOL_VERSION, Handshake, ResultEvent, ShardRequest
from tests.judge_server.calibrations import fitted
from tests.judge_server.remote.golden_messages import COMMAND, GOLDEN, as_text, protocol_schema
from tests.judge_server.support import CRITERIA, group, judge, plan
from trainer_client.wire import Criterion

RUBRIC = [Criterion.model_validate(criterion) for criterion in CRITERIA]
RESPONSE = "### Step 1: divide\nBy 2 and 3.\n### Step 2: conclude\n7 is prime."
JUDGING_CONFIGS = [
    JudgingConfig("binary"),
    JudgingConfig("binary", rationale=True),
    JudgingConfig("binary", per_call=3),
    JudgingConfig("stepwise"),
    JudgingConfig("stepwise", per_call="all", rationale=True),
    JudgingConfig("graded"),
    JudgingConfig("graded", per_call=2),
    JudgingConfig("checklist", per_call="all"),
    JudgingConfig("checklist", per_call=1),
    JudgingConfig("likert"),
    JudgingConfig("binary", think_tokens=40, temperature=0.7),
]


def sent(plans: list[ResponsePlan]) -> ShardRequest:
    """The request as a judge reads it."""
    shard = [(one, list(one.planned_calls)) for one in plans]
    asking = ShardRequest.of(shard, Caller("run", "bulk"), "someone", 12.5)
    return ShardRequest.model_validate_json(asking.model_dump_json())


def as_data(question: Question) -> object:
    """All parts of a question except its criteria's names."""
    several = len(question.criteria) > 1 and question.alone is not None
    alone = [as_data(question.alone(n)) for n in range(len(question.criteria)) if question.alone] if several else []
    return (question.call, len(question.criteria), question.reading, question.scaling, alone)


@pytest.mark.parametrize("config", JUDGING_CONFIGS, ids=str)
async def test_a_plan_is_read_as_it_was_sent(config: JudgingConfig) -> None:
    made = await judge(calibrations=fitted())
    plans = [plan(made.prepared(config), group(r), r, RUBRIC, votes=2) for r in (RESPONSE, "No.")]
    asking = sent(plans)
    assert (asking.caller, asking.deadline_s) == (Caller("run", "bulk"), 12.5)
    for one, arrived in zip(plans, asking.response_plans(), strict=True):
        assert arrived.batch == one.batch
        assert arrived.system_alone == one.system_alone
        assert [asked.digests for asked in arrived.planned_calls] == [asked.digests for asked in one.planned_calls]
        assert [as_data(asked.question) for asked in arrived.planned_calls] == [
            as_data(a.question) for a in one.planned_calls
        ]
        assert set(arrived.digests) == {digest for slot in arrived.pending for digest in slot.digests}


def test_a_callers_batch_is_sent_apart_so_that_an_older_judge_reads_the_rest() -> None:
    message = json.loads(ShardRequest.of([], Caller("run", "online", 2.0, "7"), "someone", 1.0).model_dump_json())
    assert message["caller"] == ["run", "online", 2.0]
    assert ShardRequest.model_validate(message).batch_caller == Caller("run", "online", 2.0, "7")
    del message["batch"]
    assert ShardRequest.model_validate(message).batch_caller == Caller("run", "online", 2.0)


async def test_a_question_shared_by_many_responses_is_sent_once() -> None:
    made = await judge()
    prepared = made.prepared(JudgingConfig("binary"))
    plans = [plan(prepared, group("Yes."), "Yes.", RUBRIC) for _ in range(1)]
    several = [*plans, *[ResponsePlan(p.pending, p.batch, p.planned_calls) for p in plans * 3]]
    assert len(sent(several).questions) == len(plans[0].planned_calls)


async def test_a_plan_with_an_unsent_question_is_refused() -> None:
    made = await judge()
    asking = sent([plan(made.prepared(JudgingConfig("binary")), group("Yes."), "Yes.", RUBRIC)])
    with pytest.raises(ValueError, match="not among the 0 sent"):
        asking.model_copy(update={"questions": ()}).response_plans()


def test_a_result_event_carries_results_failures_and_their_cost() -> None:
    digests = [bytes([n]) * 32 for n in range(3)]
    outcomes = Outcomes(
        {
            digests[0]: JudgeResult(1.0, 0.75, 0.9, 2, None, "because", 0.6),
            digests[1]: CallFailure("overloaded", "later", 3.0),
            digests[2]: JudgeResult(0.5, grade=2.0),
        },
        cached={digests[2]},
        joined={digests[0]},
        costs=Costs(calls=4, tokens_computed=100, seconds_judging=0.5),
    )
    line = ResultEvent.of(outcomes)
    read = ResultEvent.model_validate_json(line.model_dump_json(exclude_defaults=True))
    assert replace(read.read(), costs=read.account) == outcomes


def test_a_failure_that_no_retry_helps_can_be_sent() -> None:
    outcomes = Outcomes({b"0" * 32: CallFailure("engine", "the quota is exhausted", math.inf)})
    line = ResultEvent.of(outcomes)
    read = ResultEvent.model_validate_json(line.model_dump_json(exclude_defaults=True)).read().by_digest
    assert read == {b"0" * 32: CallFailure("engine", "the quota is exhausted")}


async def test_a_reply_is_read_as_the_same_verdict_on_both_sides() -> None:
    made = await judge(calibrations=fitted())
    one = plan(made.prepared(JudgingConfig("binary")), group("Yes."), "Yes.", RUBRIC[:1])
    [arrived] = sent([one]).response_plans()
    reply = Reply(masses=(0.6, 0.2))
    assert arrived.planned_calls[0].question.read(reply) == one.planned_calls[0].question.read(reply)


async def test_unknown_fields_of_a_newer_version_of_the_protocol_are_ignored() -> None:
    made = await judge()
    asking = sent([plan(made.prepared(JudgingConfig("binary")), group("Yes."), "Yes.", RUBRIC)])
    line = ResultEvent(outcomes={"00": JudgeResult(1.0)}, account=Costs(calls=1))
    said = Handshake(protocol=PROTOCOL_VERSION, version="9", identity=made.identity, ready=True)
    for message in (asking, line, said):
        assert type(message).model_validate_json(with_more(message.model_dump_json())) == message


def with_more(text: str) -> str:
    """A message with an unknown field in every object."""

    def more(value: Any) -> Any:
        if isinstance(value, list):
            return [more(each) for each in value]
        if not isinstance(value, dict) or set(value) == {"00"}:
            return {key: more(each) for key, each in value.items()} if isinstance(value, dict) else value
        return {**{key: more(each) for key, each in value.items()}, "said_by_a_newer_end": {"a": 1}}

    return json.dumps(more(json.loads(text)))


def test_missing_optional_fields_have_defaults_and_missing_required_ones_are_refused() -> None:
    assert ResultEvent.model_validate_json("{}") == ResultEvent()
    with pytest.raises(ValidationError):
        ShardRequest.model_validate_json('{"protocol": 1, "questions": [], "plans": []}')


def test_messages_change_only_with_the_protocol_or_by_fields_that_may_be_ignored() -> None:
    assert as_text(protocol_schema()) == GOLDEN.read_text(), (
        "the messages between an api and a judge have changed. A new field with a default that an older end may ignore "
        "needs no new PROTOCOL_VERSION, unless it is part of an identity; for any other change, raise "
        "PROTOCOL_VERSION. "
        f"Then run `{COMMAND}`"
    )
