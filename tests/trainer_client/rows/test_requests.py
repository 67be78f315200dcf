"""Rows are sent in as few requests as the service allows, and results return in row order."""

import pytest

from tests.trainer_client.rows.test_reading import read
from tests.trainer_client.trl.judges import FakeJudgeTransport, ranking, rewarding
from trainer_client import InvalidRequest
from trainer_client.rows.judging import RequestLimits, split_requests

ID = 32
"""The length of a group's id in characters."""

SMALL = RequestLimits(characters=200 + ID)


def places(rows):
    """The row indices of each group in each request of at most `SMALL`."""
    return [[list(part.rows) for part in request] for request in split_requests(rows.groups, rows.responses, SMALL)]


def test_requests_respect_the_limits_and_each_group_is_sent_once():
    rows = read([*"aaaaabcde"])
    parts = [
        [(part.fields["prompt"], list(part.rows)) for part in request]
        for request in split_requests(rows.groups, rows.responses, RequestLimits(groups=3, responses=2))
    ]
    assert parts == [
        [("a", [0, 1])],
        [("a", [2, 3])],
        [("a", [4]), ("b", [5]), ("c", [6])],
        [("d", [7]), ("e", [8])],
    ]


def test_requests_stay_below_the_size_that_a_service_accepts():
    assert places(read(["a" * 100, "a" * 100, "b" * 100, "c"], ["x" * 99, "x" * 99, "x" * 999, "x"])) == [
        [[0]],
        [[1]],
        [[2]],
        [[3]],
    ]
    assert places(read(["a" * 100] * 6, ["x" * 50] * 6)) == [[[0, 1]], [[2, 3]], [[4, 5]]]
    assert places(read(["a", "b"], ["x" * 20] * 2)) == [[[0], [1]]]


@pytest.mark.parametrize(
    "columns",
    [
        {"own": [[{"id": "a", "description": "d" * 150}]] * 2},
        {"grounding": ["g" * 150] * 2},
        {"completions": [[{"role": "assistant", "content": "x" * 75, "reasoning_content": "x" * 75}]] * 2},
        {"completions": [[{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "x" * 150}]}]] * 2},
    ],
    ids=["rubric", "grounding", "thinking", "tool calls"],
)
def test_every_long_column_counts_towards_the_size(columns):
    assert places(read(["a", "b"], **columns)) == [[[0]], [[1]]]


async def test_a_ranking_of_a_group_that_is_too_large_for_one_request_is_refused():
    judge = FakeJudgeTransport(ranking)
    reward = rewarding(judge, mode="ranking")
    assert await reward(["a", "b", "a", "b"], list("1234")) == [0.0, 0.0, 1.0, 1.0]
    with pytest.raises(InvalidRequest, match="the group of row 1 has 3 responses that do not fit into one request"):
        await reward(["a", *"bbb", "a"], ["1", *["x" * 3_000_000] * 3, "2"])
    assert len(judge.asked) == 1


async def test_a_group_that_is_weighed_as_a_whole_is_not_split_over_requests():
    judge = FakeJudgeTransport()
    reward = rewarding(judge, weighting="contrast")
    with pytest.raises(InvalidRequest, match=r"the mode or weighting compares the responses of a group .* 3 responses"):
        await reward(["a", *"bbb", "a"], ["1", *["x" * 3_000_000] * 3, "2"])
    assert not judge.asked
    await reward(["a", "b", "a", "b"], list("1234"))
    assert judge.asked[0]["reward"] == {"mode": "weighted_mean", "weighting": "contrast"}


async def test_thousands_of_rows_return_in_order():
    judge = FakeJudgeTransport()
    count = 5000
    rewards = await rewarding(judge)([f"p{n}" for n in range(count)], [str(n) for n in range(count)])
    assert rewards == [float(n) for n in range(count)]
    assert [len(asked["groups"]) for asked in judge.asked] == [4096, 904]


async def test_responses_that_exceed_the_size_of_a_group_are_sent_under_one_id():
    judge = FakeJudgeTransport()
    rewards = await rewarding(judge)(["p"] * 5000, [str(n) for n in range(5000)])
    assert rewards == [float(n) for n in range(5000)]
    assert len({group["id"] for asked in judge.asked for group in asked["groups"]}) == 1
