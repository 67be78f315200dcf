"""A response of messages: tool results are distinguished from the policy's words, and verdicts name turns."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from judge_server.judging.presentation import LEAST_RESULT_CHARACTERS, shorten_messages, show_response, steps_of
from judge_server.ports import Batch, Call, LabelChoice, Reply, TokenChoice
from judge_server.prompts import PromptForm, PromptTemplates
from tests.judge_server.ledger.judged import SynchronousRecorder, score, scorer
from tests.judge_server.support import STEPPED, bracketed, criteria, group, plan, prepared, request
from trainer_client.text.thinking import judged_content
from trainer_client.wire import Message, Response, RewardRequest, VerdictRequest
from trainer_client.wire.judging import StepRule


def call(name: str, arguments: str = "{}", id: str | None = None) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


TRAJECTORY: list[dict[str, Any]] = [
    {"role": "assistant", "content": "I look it up.", "tool_calls": [call("search", '{"q": "7"}', "a")]},
    {"role": "tool", "tool_call_id": "a", "content": "7 is prime."},
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "tool_calls": [call("divide", '{"by": 2}', "b")]},
    {"role": "tool", "tool_call_id": "b", "content": "3.5"},
    {"role": "assistant", "content": "Yes.\n\n7 is prime."},
]


def shown(text: Any, rule: StepRule, *, keep: int | None = None, reasoning: Any = "strip", steps: Any = ()) -> str:
    judged = judged_content(Response.model_validate({"text": text, "steps": steps}), reasoning)
    fenced, _ = show_response(judged, steps_of(judged, rule), rule, normalised=True, keep=keep)
    return bracketed(fenced)


def headings(rendered: str) -> list[str]:
    return re.findall(r"^(.*):\n\[", rendered, re.MULTILINE)


def test_messages_the_policy_did_not_write_are_marked_and_turns_are_numbered() -> None:
    others = "(not the response's words)"
    assert headings(shown(TRAJECTORY, "turns")) == [
        "assistant (turn 1)",
        "assistant (turn 1) calls search",
        f"result of search {others}",
        f"user {others}",
        "assistant (turn 2) calls divide",
        f"result of divide {others}",
        "assistant (turn 3)",
    ]
    assert headings(shown(TRAJECTORY, "headings"))[0] == "assistant"


def test_paragraphs_are_steps_within_the_messages_of_the_assistant() -> None:
    rendered = shown(TRAJECTORY, "paragraphs")
    assert [h for h in headings(rendered) if "step" in h] == [
        "assistant (step 1)",
        "assistant (step 1) calls search",
        "assistant (step 2)",
        "assistant (step 3)",
    ]
    assert shown("One.\n\n\n  Two.\n", "paragraphs") == "step 1:\n[One.]\n\nstep 2:\n[Two.]"


def test_given_steps_are_shown_and_the_rest_is_marked_as_outside() -> None:
    rendered = shown("Hm. First. Then.", "given", steps=[[4, 10], [11, 16]])
    assert rendered == "text outside the steps:\n[Hm.]\n\nstep 1:\n[First.]\n\nstep 2:\n[Then.]"


def test_given_steps_refer_to_the_response_as_sent() -> None:
    text = "<think>Hm.</think>First. Then."
    at = text.index("First")
    rendered = shown(text, "given", steps=[[0, at], [at, at + 6], [at + 7, len(text)]])
    assert rendered == "step 2:\n[First.]\n\nstep 3:\n[Then.]"


def test_a_turn_without_thinking_still_counts_in_the_numbering() -> None:
    thought = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "<think>Hm.</think>b"}]
    assert shown(thought, "turns", reasoning="only") == "assistant (turn 2) thinks:\n[Hm.]"


def test_a_text_is_one_turn() -> None:
    assert shown("Yes.", "turns") == "turn 1:\n[Yes.]"


@given(st.text(alphabet="assistant (turn 9):\n[]<>/\u200b", max_size=60))
def test_no_response_can_imitate_the_heading_of_a_turn(text: str) -> None:
    judged = judged_content(Response.model_validate({"text": [{"role": "assistant", "content": text}]}), "strip")
    fenced, _ = show_response(judged, judged.turns, "turns", normalised=False, keep=None)
    heading, marker, *_, last = fenced.split("\n")
    assert heading == "assistant (turn 1):"
    assert last == marker.replace("<", "</")
    assert fenced.count(marker) == 1


@given(st.integers(0, 400), st.integers(0, 900), st.integers(1, 1500))
def test_tool_results_are_shortened_first(own: int, result: int, keep: int) -> None:
    said, found = Message(role="assistant", content="o" * own), Message(role="tool", content="r" * result)
    shortened, omitted = shorten_messages([said, found, said], keep)
    if 2 * own + min(result, LEAST_RESULT_CHARACTERS) <= keep:
        assert (shortened[0], shortened[2]) == (said, said)
    assert 2 * own + result - omitted <= keep
    if omitted and shortened[1] == found:
        assert result <= LEAST_RESULT_CHARACTERS


def test_a_long_result_loses_its_middle() -> None:
    said, found = Message(role="assistant", content="o" * 300), Message(role="tool", content="r" * 900)
    shortened, omitted = shorten_messages([said, found], 700)
    assert shortened[0] == said
    assert omitted == 500
    assert shortened[1].content == "r" * 200 + "\n[500 characters left out]\n" + "r" * 200


def names_turn(turn: str) -> Any:
    def script(batch: Batch, call: Call) -> Reply:
        assert isinstance(call.answer, TokenChoice)
        chosen = call.answer.then
        assert isinstance(chosen, LabelChoice)
        assert chosen.lead == ", turn "
        return Reply(masses=(0.9, 0.1), chosen=turn)

    return script


async def test_verdicts_name_turns_and_deltas_go_to_them() -> None:
    rubric = {
        "criteria": [
            {"id": "s", "kind": "suggest", "description": "Looks it up."},
            {
                "id": "a",
                "kind": "answer",
                "description": "Yes.",
                "verification": {"method": "contains", "any_of": ["Yes"]},
            },
        ]
    }
    body = request(TRAJECTORY, rubric=rubric, reward={"mode": "stepwise"}, judging={"steps": "turns"})  # type: ignore[arg-type]
    made = await scorer(SynchronousRecorder(), names_turn("2"))
    answer = await score(made, body)
    (response,) = answer.groups[0].responses
    assert [(verdict.criterion, verdict.step) for verdict in response.verdicts] == [("s", 2), ("a", 3)]
    assert {step.number: step.delta for step in response.steps} == {0: None, 1: None, 2: 0.8, 3: None}
    assert [(step.start, step.end) for step in response.steps][1:] == [(0, 13), (13, 13), (15, 32)]
    assert response.reward == 1.0
    await made.judge.close()


def test_the_default_step_rule_asks_for_headings() -> None:
    plain = plan(prepared("stepwise"), group(STEPPED), STEPPED, criteria("Adds."))
    (only,) = plain.batch.calls
    assert isinstance(only.answer, TokenChoice)
    assert only.answer.then is not None
    assert only.answer.then.lead == ", step "
    assert '"### Step N"' in only.answer.then.ask
    assert "steps" not in prepared("stepwise").config.recorded()
    assert prepared("stepwise", steps="turns").config.recorded()["steps"] == "turns"


@pytest.mark.parametrize(("rule", "name"), [("turns", '"turn N"'), ("given", '"step N"'), ("paragraphs", '"step N"')])
@pytest.mark.parametrize("several", [True, False])
def test_templates_name_steps_as_the_judge_sees_them(rule: StepRule, name: str, several: bool) -> None:
    system = PromptTemplates(PromptForm("stepwise", not several, several, steps=rule)).system
    assert name in system
    assert "###" not in system


@pytest.mark.parametrize("message", [RewardRequest, VerdictRequest])
@pytest.mark.parametrize(
    ("steps", "rule", "reason"),
    [
        ([[0, 2]], "turns", "set judging.steps to 'given'"),
        ([], "given", "has no steps, and judging.steps is 'given'"),
        ([[2, 1]], "given", "a step ends after it starts"),
        ([[0, 2], [1, 3]], "given", "starts where the one before it ends"),
    ],
)
def test_steps_of_a_response_are_given_if_and_only_if_they_are_asked_for(
    message: Any, steps: list[list[int]], rule: str, reason: str
) -> None:
    body = request({"text": "Yes.", "steps": steps}, judging={"steps": rule})  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=reason):
        message.model_validate(body)
