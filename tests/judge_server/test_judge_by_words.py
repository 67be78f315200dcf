"""`scripted://words` answers by the words of a criterion that a response has, in every form of question."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest

from judge_server.engines.scripted import ScriptedEngine
from tests.judge_server.api.test_rewards import rewards
from tests.judge_server.conftest import Serve
from tests.judge_server.support import request

RIGHT = "### Step 1\nThe distance divided by the time is 120 km / 1.5 h.\n### Step 2\nThat is 80 km/h."
WRONG = "### Step 1\n120 * 1.5\n### Step 2\nIt is 180 km/h."
CRITERIA = [
    {"id": "answer", "description": "The final answer is 80 km/h."},
    {"id": "method", "description": "The response divides the distance by the time."},
]


async def judged(
    serve: Serve, mode: str = "weighted_mean", criteria: Sequence[dict[str, Any]] = CRITERIA, **judging: Any
) -> Any:
    """The two responses, judged by words."""
    client = await serve(ScriptedEngine.from_url(urlsplit("scripted://words")))
    asked = request(RIGHT, WRONG, rubric={"criteria": list(criteria)}, reward={"mode": mode}, judging=judging)
    return (await rewards(client, asked)).groups[0].responses


@pytest.mark.parametrize(
    ("mode", "judging"),
    [
        ("weighted_mean", {}),
        ("weighted_mean", {"rationale": True}),
        ("weighted_mean", {"criteria_per_call": "all"}),
        ("weighted_mean", {"protocol": "graded"}),
        ("weighted_mean", {"protocol": "checklist"}),
        ("likert", {}),
        ("ranking", {}),
    ],
    ids=str,
)
async def test_the_response_that_has_the_words_is_better(mode: str, judging: dict[str, Any], serve: Serve) -> None:
    right, wrong = await judged(serve, mode, **judging)
    assert right.reward > wrong.reward + 0.2


async def test_a_scale_of_one_is_a_scale_and_no_yes_or_no(serve: Serve) -> None:
    right, wrong = await judged(serve, protocol="graded", criteria=[{**CRITERIA[0], "scale": 1}])
    assert right.reward > wrong.reward + 0.5


async def test_a_criterion_without_words_is_not_met(serve: Serve) -> None:
    right, _ = await judged(serve, criteria=[{"id": "c", "description": "???"}])
    assert right.reward == 0.0


async def test_only_the_numbers_count_where_a_criterion_names_some(serve: Serve) -> None:
    right, wrong = await judged(serve)
    assert [one.probability for one in right.verdicts] == pytest.approx([0.96, 0.66])
    assert [one.probability for one in wrong.verdicts] == pytest.approx([0.06, 0.06])


async def test_the_step_is_the_one_with_the_words(serve: Serve) -> None:
    right, _ = await judged(serve, protocol="stepwise")
    assert [one.step for one in right.verdicts] == [2, 1]
