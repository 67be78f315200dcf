"""Large answers are encoded in slices, without a difference in content."""

import asyncio
import json

import httpx2
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.api.http.responses import encode_json
from tests.hypothesis_examples import examples
from tests.judge_server.api.test_rewards import rewards
from tests.judge_server.support import request
from trainer_client.wire import GroupVerdicts, JudgeInfo, ResponseVerdicts, Usage, Verdict, VerdictAnswer

TEXTS = st.lists(st.sampled_from(['"', "\\", "groups", '"groups":[', ":", "[", "é", "\n"]), max_size=4).map("".join)
VERDICTS = st.builds(
    Verdict, criterion=st.just("a"), status=st.just("ok"), score=st.floats(0, 1), rationale=TEXTS, votes=st.just((0.5,))
)
RESPONSES = st.builds(ResponseVerdicts, verdicts=st.lists(VERDICTS, max_size=2).map(tuple))
GROUPS = st.builds(GroupVerdicts, id=TEXTS, rubric=st.none(), responses=st.lists(RESPONSES, max_size=3).map(tuple))
ANSWERS = st.builds(
    VerdictAnswer,
    request_id=TEXTS,
    run=st.just('"groups":['),
    judge=st.just(JudgeInfo(model="m", protocol="binary", fingerprint="f")),
    usage=st.just(Usage()),
    groups=st.lists(GROUPS, max_size=3).map(tuple),
)


@given(ANSWERS, st.booleans())
@settings(max_examples=examples(100))
def test_an_answer_encoded_in_slices_equals_one_encoded_at_once(answer: VerdictAnswer, exclude_unset: bool) -> None:
    for message in (*answer.groups, answer):
        at_once = message.model_dump_json(exclude_unset=exclude_unset)
        for take_apart in (False, True):
            own = message.model_copy(deep=True)
            options = {"exclude_unset": exclude_unset, "take_apart": take_apart}
            blocks = asyncio.run(encode_json(own, **options, responses_at_once=-1, block_bytes=200))
            assert b"".join(blocks).decode() == at_once
            assert all(blocks)
            assert take_apart or own == message


async def test_a_large_answer_contains_every_response(http: httpx2.AsyncClient) -> None:
    sent = request(*(f"Answer {n}" for n in range(100)))
    answer = await rewards(http, sent)
    assert len(answer.groups[0].responses) == 100
    streamed = await http.post("/v1/rewards", json=sent, headers={"Accept": "application/x-ndjson"})
    group = json.loads(streamed.content.splitlines()[0])["group"]
    assert [one["reward"] for one in group["responses"]] == [one.reward for one in answer.groups[0].responses]
