"""The writer: its calls to an engine, and how it reads the replies."""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from judge_server.engines.scripted import ScriptedEngine
from judge_server.generation.writer import MAX_CALL_ATTEMPTS, RubricDiscarded, Writer, WriterFailed, schema_of
from judge_server.ports import (
    Batch,
    Call,
    CallFailure,
    Capabilities,
    JsonOutput,
    LabelChoice,
    Reply,
    SamplingOptions,
    TextOutput,
)


class Part(BaseModel):
    name: str
    weight: int = 1


class FullAnswer(BaseModel):
    """This text is for people, not for models."""

    parts: list[Part] = Field(min_length=1, max_length=3)


class TwoPartAnswer(BaseModel):
    parts: list[Part]
    title: str


Answer = Callable[[Batch, Call], Reply | CallFailure]


async def writer_of(answer: Answer | str, **options: Any) -> Writer:
    """A writer over a model that gives this answer."""
    script: Answer = (lambda batch, call: Reply(text=answer)) if isinstance(answer, str) else answer
    engine = ScriptedEngine(script, **options)
    return Writer(engine, await engine.start(), retry_delay_s=0.0)


PARTS = {"parts": [{"name": "a", "weight": 2}, {"name": "b", "weight": 3}]}
TEXT = json.dumps(PARTS)


async def test_text_is_stripped_of_surrounding_white_space() -> None:
    assert await (await writer_of("\n It is so.\n")).write_text("?", max_tokens=8) == "It is so."


@pytest.mark.parametrize(
    ("reply", "reason"),
    [(Reply(text="It is", cut=True), "cut_short"), (Reply(text=" \n"), "unreadable"), (Reply(), "unreadable")],
)
async def test_text_that_is_cut_or_empty_is_discarded(reply: Reply, reason: str) -> None:
    writer = await writer_of(lambda batch, call: reply)
    with pytest.raises(RubricDiscarded) as discarded:
        await writer.write_text("?", max_tokens=8)
    assert discarded.value.reason == reason


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        f"Here you are:\n```json\n{TEXT}\n```\nAnything else?",
        json.dumps(PARTS["parts"]),
        "{'parts': [{name: 'a', weight: 2.0,}, {'name': \"b\", 'weight': 3} /* two */]}",
        f'{{"parts": []}} No, rather: {TEXT}',
        f'{{"parts": [{{"name": "x", "weight": 9}}]}} Or better: {TEXT}',
        f'{TEXT} {{"note": "that was all"}}',
    ],
    ids=["plain", "fenced", "bare list", "another dialect", "second thoughts", "a better one", "an afterthought"],
)
async def test_json_of_the_shape_is_found_in_any_surroundings(text: str) -> None:
    whole = await (await writer_of(text)).write_json(FullAnswer, "?", max_tokens=64)
    assert whole.model_dump() == PARTS


@pytest.mark.parametrize(
    ("text", "cut", "reason", "says"),
    [
        ("I would rather not.", False, "unreadable", "I would rather not."),
        ("", False, "unreadable", "nothing"),
        (TEXT[:30], True, "cut_short", "limit"),
        (TEXT[:30], False, "unreadable", "in the middle"),
        ('{"parts": [{"name" "a"}]}', False, "unreadable", "contains invalid JSON"),
        ('{"parts": [{"weight": 1}]}', False, "wrong_shape", "parts.0.name"),
        ('{"parts": [{"name": "a", "weight": "heavy"}]}', False, "wrong_shape", "parts.0.weight"),
        ('{"parts": [{"name": "a", "weight": 1.5}]}', False, "wrong_shape", "parts.0.weight"),
        ('{"parts": []}', False, "too_few", "parts"),
        (json.dumps({"parts": [{"name": str(n)} for n in range(40)]}), False, "too_many", "parts"),
        ('{"parts": [{"name": "a"}], "parts": [{"name": "b"}]}', False, "wrong_shape", "parts"),
        ('"a"', False, "unreadable", "no JSON"),
        ("[" * 100, False, "unreadable", "contains invalid JSON"),
        (" " * 300_000, False, "unreadable", "300000 characters"),
    ],
)
async def test_output_that_does_not_fit_the_shape_is_discarded_by_reason(
    text: str, cut: bool, reason: str, says: str
) -> None:
    writer = await writer_of(lambda batch, call: Reply(text=text, cut=cut))
    with pytest.raises(RubricDiscarded) as discarded:
        await writer.write_json(FullAnswer, "?", max_tokens=64)
    assert discarded.value.reason == reason
    assert says in discarded.value.detail


async def test_a_bare_list_does_not_fill_a_shape_of_several_fields() -> None:
    with pytest.raises(RubricDiscarded, match="wrong_shape"):
        await (await writer_of(json.dumps(PARTS["parts"]))).write_json(TwoPartAnswer, "?", max_tokens=64)


async def test_shape_and_sampling_options_are_passed_to_the_engine() -> None:
    calls: list[tuple[Batch, Call]] = []

    def remember(batch: Batch, call: Call) -> Reply:
        calls.append((batch, call))
        return Reply(text=TEXT)

    writer = await writer_of(remember)
    await writer.write_json(FullAnswer, "Write.", system="You write.", max_tokens=64, temperature=0.7, seed=3)
    await writer.write_text("Say.", max_tokens=9)
    (batch, written), (_, said) = calls
    assert (batch.system, batch.shared + written.question) == ("You write.", "Write.")
    assert isinstance(written.answer, JsonOutput)
    assert written.answer.max_tokens == 64
    assert written.sample == SamplingOptions(0.7, 3)
    assert (said.answer, said.sample) == (TextOutput(9), None)


def test_a_schema_is_self_contained_requires_every_field_and_has_no_annotations() -> None:
    schema = json.loads(schema_of(FullAnswer))
    Draft202012Validator.check_schema(schema)
    valid = Draft202012Validator(schema).is_valid
    assert valid(PARTS)
    assert not valid({"parts": []})
    assert not valid({"parts": [{"name": "a"}]})
    assert not valid({**PARTS, "more": 1})
    for word in ("$ref", "$defs", "title", "description", "default"):
        assert word not in schema_of(FullAnswer)


def test_a_recursive_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="contains itself"):
        schema_of(Tree)


class Tree(BaseModel):
    branches: "list[Tree]"


async def test_a_property_may_have_the_name_of_a_schema_keyword() -> None:
    class TitledAnswer(BaseModel):
        title: str
        description: str

    schema = json.loads(schema_of(TitledAnswer))
    assert list(schema["properties"]) == schema["required"] == ["title", "description"]


async def test_a_choice_is_one_of_its_labels_whether_the_engine_picks_or_writes_it() -> None:
    picks = await writer_of(lambda batch, call: Reply(chosen="no"))
    says = await writer_of("No, it is not.")
    for writer in (picks, says):
        assert await writer.choose(("yes", "no"), "Is it?") == "no"
    rambles = await writer_of("Who can say?")
    with pytest.raises(RubricDiscarded, match="unreadable"):
        await rambles.choose(("yes", "no"), "Is it?")


async def test_a_choice_of_an_engine_without_constrained_output_is_read() -> None:
    plain = Capabilities(False, False, False, False, False)
    writer = await writer_of(lambda batch, call: Reply(chosen=_labels(call)[1]), capabilities=plain)
    assert await writer.choose(("yes", "no"), "Is it?") == "no"


def _labels(call: Call) -> tuple[str, ...]:
    assert isinstance(call.answer, LabelChoice)
    return call.answer.labels


async def test_a_transient_engine_failure_is_retried_and_a_lasting_one_is_not_a_discard() -> None:
    asked = 0

    def until(good: int) -> Answer:
        def answer(batch: Batch, call: Call) -> Reply | CallFailure:
            nonlocal asked
            asked += 1
            return Reply(text="So.") if asked >= good else CallFailure("engine", "gone away")

        return answer

    assert await (await writer_of(until(MAX_CALL_ATTEMPTS))).write_text("?", max_tokens=4) == "So."
    asked = 0
    with pytest.raises(WriterFailed, match="gone away"):
        await (await writer_of(until(100))).write_text("?", max_tokens=4)
    assert asked == MAX_CALL_ATTEMPTS


async def test_a_failure_that_no_retry_helps_is_not_retried() -> None:
    asked = 0

    def answer(batch: Batch, call: Call) -> Reply | CallFailure:
        nonlocal asked
        asked += 1
        return CallFailure("engine", "the endpoint's quota is exhausted", math.inf)

    with pytest.raises(WriterFailed, match=r"quota is exhausted \(1 attempt\)"):
        await (await writer_of(answer)).write_text("?", max_tokens=4)
    assert asked == 1


async def test_a_prompt_that_does_not_fit_is_discarded_and_not_retried() -> None:
    writer = await writer_of("So.", context_tokens=50)
    with pytest.raises(RubricDiscarded, match="too_long"):
        await writer.write_text("word " * 100, max_tokens=4)


async def test_usage_counts_replies_and_includes_that_of_parts() -> None:
    reply = Reply(text="So.", tokens_computed=3, tokens_reused=2, tokens_written=1)
    writer = await writer_of(lambda batch, call: reply)
    first, second = writer.with_own_usage(), writer.with_own_usage()
    await first.write_text("?", max_tokens=4)
    await second.write_text("?", max_tokens=4)
    await second.with_own_usage().write_text("?", max_tokens=4)
    counts = [(w.usage.calls, w.usage.tokens_computed, w.usage.tokens_written) for w in (first, second, writer)]
    assert counts == [(1, 3, 1), (2, 6, 2), (3, 9, 3)]


async def test_calls_under_way_are_limited_to_the_engines_batches() -> None:
    under_way, most = 0, 0

    class SlowEngine(ScriptedEngine):
        async def answer(self, batch: Batch):  # type: ignore[no-untyped-def, override]
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            yield 0, Reply(text="So.")

    engine = SlowEngine(concurrent_batches=2)
    writer = Writer(engine, await engine.start())
    await asyncio.gather(*(writer.with_own_usage().write_text("?", max_tokens=4) for _ in range(10)))
    assert most == 2
