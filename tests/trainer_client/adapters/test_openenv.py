"""The rubric in an environment that OpenEnv's server runs, and steps of its client over a socket."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.trainer_client.adapters.conftest import ANSWER, REWARDS, RIGHT, RUBRIC, WRONG, missing

pytest.importorskip("openenv.core.rubrics", reason=missing("openenv"))

from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.generic_client import GenericEnvClient
from openenv.core.rubrics import Gate, Rubric, Sequential, WeightedSum

from tests.fixtures.served_app import served
from trainer_client import InvalidRequest
from trainer_client.adapters import NoReward
from trainer_client.adapters.openenv import RubricJudge

pytestmark = pytest.mark.adapters


class Answer(Action):
    text: str


class Short(Rubric):
    """Gives 1 to a text of at most 10 characters."""

    def forward(self, action: Answer, observation: Observation) -> float:
        return float(len(action.text) <= 10)


def judged(action: Answer, observation: Observation) -> dict[str, Any]:
    return {"prompt": "7 * 2?", "response": action.text, "ground_truth": "14"}


class Quiz(Environment):
    """One question; `made` puts its judge into a rubric."""

    def __init__(self, made: Any, settings: dict[str, Any]) -> None:
        super().__init__(rubric=made(RubricJudge(read=judged, **settings)))

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        self._reset_rubric()
        return Observation()

    def step(self, action: Answer, timeout_s: float | None = None, **_: Any) -> Observation:
        observation = Observation(done=True)
        observation.reward = asyncio.run(self._apply_rubric_async(action, observation))
        return observation

    @property
    def state(self) -> State:
        return State()


class AsyncQuiz(Quiz):
    async def step_async(self, action: Answer, timeout_s: float | None = None, **_: Any) -> Observation:
        observation = Observation(done=True)
        observation.reward = await self._apply_rubric_async(action, observation)
        return observation


@contextmanager
def serving(made: Any, settings: dict[str, Any], kind: type[Quiz] = AsyncQuiz) -> Iterator[str]:
    """Yield the address of a server of OpenEnv with this environment."""
    with served(create_fastapi_app(lambda: kind(made, settings), Answer, Observation)) as port:
        yield f"http://127.0.0.1:{port}"


async def rewards(address: str, *texts: str) -> list[Any]:
    """The rewards that a client gets, one episode for each text; the error in place of one that has none."""
    got: list[Any] = []
    async with GenericEnvClient(base_url=address) as client:
        for text in texts:
            await client.reset()
            try:
                got.append((await client.step({"text": text})).reward)
            except RuntimeError as error:
                got.append(str(error))
    return got


def alone(judge: RubricJudge) -> Rubric:
    return judge


@pytest.mark.parametrize("kind", [Quiz, AsyncQuiz])
async def test_an_environment_is_rewarded_by_the_rubric_in_either_kind_of_step(url, kind):
    with serving(alone, {"client": url, "rubric": RUBRIC}, kind) as address:
        assert await rewards(address, *REWARDS) == list(REWARDS.values())


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda judge: Gate(judge, threshold=0.5), [1.0, 0.0, 0.0]),
        (lambda judge: WeightedSum([judge, Short()], [0.75, 0.25]), [1.0, 0.4375, 0.25]),
        (lambda judge: Sequential(Gate(Short()), judge), [1.0, 0.25, 0.0]),
    ],
)
async def test_it_composes_with_openenvs_containers(url, made, expected):
    with serving(made, {"client": url, "rubric": RUBRIC}) as address:
        assert await rewards(address, *REWARDS) == pytest.approx(expected)


@pytest.mark.parametrize(
    "made",
    [
        alone,
        lambda judge: Gate(judge, threshold=0.5),
        lambda judge: WeightedSum([Short(), judge], [0.5, 0.5]),
        lambda judge: Sequential(Gate(Short()), judge),
    ],
)
async def test_a_step_that_could_not_be_judged_is_an_error_and_the_session_goes_on(away, made):
    with serving(made, {"rubric": RUBRIC, **away}) as address:
        for outcome in await rewards(address, "14", "15"):
            assert "no reward" in outcome
            assert "unreachable" in outcome


async def test_what_read_returns_is_shown_to_the_judge(url):
    judge = RubricJudge(url, read=lambda action, observation: judged(action, observation) | {"rubric": ANSWER})
    assert [await judge(Answer(text=text), Observation()) for text in (RIGHT, WRONG)] == [1.0, 0.0]


async def test_the_scores_of_the_criteria_are_kept_until_the_next_step(url, away):
    judge = RubricJudge(url, RUBRIC, read=judged)
    assert await judge(Answer(text="It is 14"), Observation()) == judge.last_score == 0.25
    assert judge.last_scored.scores == {"says-14": 1.0, "exact": 0.0}
    failing = RubricJudge(rubric=RUBRIC, read=judged, **away)
    with pytest.raises(NoReward):
        await failing(Answer(text="14"), Observation())
    assert (failing.last_scored.reward, failing.last_scored.failures) == (None, ("unreachable",))


async def test_a_step_without_a_response_names_what_is_missing(url):
    judge = RubricJudge(url, RUBRIC, read=lambda action, observation: {"prompt": "7 * 2?", "answer": "14"})
    with pytest.raises(InvalidRequest, match="no response"):
        await judge(Answer(text="14"), Observation())
