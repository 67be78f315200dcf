"""From judged requests to rows: which parts of a request are kept, and under which names."""

import hashlib
import json
import zlib

import pytest

from judge_server.scoring.recorded import storable_text
from tests.judge_server.ledger.judged import rows, some_fail
from tests.judge_server.support import CRITERIA, STEPPED, request
from trainer_client.wire import Criterion, content_digest


def kept_texts(texts: list) -> dict[bytes, object]:  # type: ignore[type-arg]
    return {row.digest: json.loads(zlib.decompress(row.body)) for row in texts}


async def test_a_request_makes_one_row_one_per_response_and_one_use_per_criterion() -> None:
    made = await rows(request("Yes.", "No.", run="r", step=3))
    (asked,) = made.requests
    assert (asked.run, asked.step, asked.request_id, asked.mode, asked.protocol) == (
        "r", 3, "req_1", "weighted_mean", "binary",
    )  # fmt: skip
    assert asked.uses == len(made.uses) == 2 * len(CRITERIA)
    assert [(row.place, row.position, row.group_id) for row in made.responses] == [(0, 0, "g"), (1, 1, "g")]
    assert [use.criterion for use in made.uses] == [c["id"] for c in CRITERIA] * 2
    assert {row.request for row in (*made.responses, *made.uses, *made.verdicts)} == {asked.request}
    assert {use.digest for use in made.uses} == {verdict.digest for verdict in made.verdicts}
    assert asked.judge_calls == 14
    assert asked.seconds >= 0


async def test_texts_are_kept_once_and_the_rubric_under_its_own_digest() -> None:
    messages = [{"role": "assistant", "content": "Yes."}]
    group = {"id": "g", "prompt": "Is 7 prime?", "responses": ["Yes.", {"text": messages}, "Yes."], "grounding": "Yes."}
    made = await rows(request(groups=[group]), request(groups=[group]))
    texts = kept_texts(made.texts)
    criteria = [Criterion.model_validate(c) for c in CRITERIA]
    rubric = bytes.fromhex(content_digest(criteria).removeprefix("sha256:"))
    assert [Criterion.model_validate(c) for c in texts.pop(rubric)] == criteria  # type: ignore[attr-defined]
    assert sorted(texts.values(), key=str) == ["Is 7 prime?", "Yes.", messages]
    first = made.responses[0]
    assert (texts[first.prompt], texts[first.response], texts[first.grounding]) == ("Is 7 prime?", "Yes.", "Yes.")
    assert texts[made.responses[1].response] == messages
    assert first.response == hashlib.sha256(b'"Yes."').digest()


async def test_without_texts_only_the_rubric_is_kept_and_the_digests_remain() -> None:
    made = await rows(request(), keep_texts=False)
    assert [row.digest for row in made.texts] == [made.responses[0].rubric]
    assert made.responses[0].response == hashlib.sha256(b'"Yes."').digest()


async def test_a_failed_verdict_is_a_use_with_a_reason_and_without_a_verdict() -> None:
    made = await rows(request(*(f"{n} is prime." for n in range(20))), script=some_fail)
    failed = [use for use in made.uses if use.failed]
    assert 0 < len(failed) < len(made.uses)
    assert {(use.failure, use.detail) for use in failed} == {("truncated_input", "it is too long\ufffd")}
    assert {use.digest for use in failed}.isdisjoint(verdict.digest for verdict in made.verdicts)
    assert all(use.failure is None and use.detail is None for use in made.uses if not use.failed)


async def test_a_cached_verdict_is_marked_and_kept_once() -> None:
    made = await rows(request(), request())
    assert [use.cached for use in made.uses] == [False] * 7 + [True] * 7
    assert len(made.verdicts) == 7


async def test_steps_are_kept_as_in_the_answer_and_only_where_requested() -> None:
    thinking = "<think>Hm.</think>\n" + STEPPED
    stepped = await rows(request(thinking, reward={"mode": "stepwise"}))
    spans = json.loads(stepped.responses[0].spans or "")
    assert [thinking[start:end] for _, start, end in spans] == [
        STEPPED,
        STEPPED[: STEPPED.index("### Step 2")],
        STEPPED[STEPPED.index("### Step 2") :],
    ]
    plain = await rows(request(STEPPED))
    assert plain.responses[0].spans is None
    assert plain.responses[0].format_ok


async def test_every_vote_is_a_use_and_the_criterion_fails_as_a_whole() -> None:
    judging = {"votes": 3, "rationale": True}
    made = await rows(request(*"abcdefgh", judging=judging), script=some_fail)
    assert made.requests[0].votes == 3
    assert made.requests[0].uses == len(made.uses) == 8 * 7 * 3
    by_slot: dict[tuple[int, int], set[bool]] = {}
    for use in made.uses:
        by_slot.setdefault((use.place, use.slot), set()).add(use.failed)
    assert all(len(failed) == 1 for failed in by_slot.values())
    assert any(use.failure and not use.failed for use in made.uses)


async def test_an_outcome_reward_asks_no_judge_and_says_so() -> None:
    group = {"id": "g", "prompt": "?", "responses": ["\\boxed{7}"], "ground_truth": "7"}
    made = await rows({"reward": {"mode": "outcome"}, "groups": [group]})
    (asked,), (use,) = made.requests, made.uses
    assert (asked.protocol, asked.fingerprint, asked.model, asked.run) == ("", None, None, "")
    assert (use.criterion, use.method, made.verdicts[0].score) == ("outcome", "math", 1.0)
    assert (made.responses[0].rubric, made.texts[0].digest) == (None, made.responses[0].prompt)


async def test_the_largest_lengths_and_steps_are_kept_unchanged() -> None:
    group = {"id": "g", "prompt": "?", "responses": [{"text": "x", "tokens": 2**53 - 1, "stopped": False}]}
    made = await rows(request(groups=[group], step=2**53 - 1))
    assert made.requests[0].step == made.responses[0].tokens == 2**53 - 1
    assert made.responses[0].stopped is False


@pytest.mark.parametrize(
    ("given", "kept"), [("plain", "plain"), ("a\0b", "a\ufffdb"), ("ü\ud800x", "ü\ufffdx"), ("😀", "😀")]
)
def test_characters_that_no_database_stores_are_replaced(given: str, kept: str) -> None:
    assert storable_text(given) == kept


async def test_a_later_request_sorts_after_an_earlier_one() -> None:
    made = await rows(*(request(str(n)) for n in range(5)))
    keys = [row.request for row in made.requests]
    assert keys == sorted(set(keys))
    assert {len(key) for key in keys} == {16}
