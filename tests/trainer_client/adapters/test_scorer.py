"""The scorer that all adapters share: equal rewards from event loops, threads and forked processes."""

import asyncio
import concurrent.futures
import multiprocessing
import pickle
import warnings

import pytest

from tests.trainer_client.adapters.conftest import ANSWER, REWARDS, RIGHT, RUBRIC, WRONG
from trainer_client import InvalidRequest, UnknownRubric
from trainer_client.adapters import NoReward, RubricScorer
from trainer_client.adapters.scorer import IgnoredColumnWarning

TEXTS = list(REWARDS)
pytestmark = pytest.mark.processes


def scored_in_process(scorer):
    return scorer.score_blocking("7 * 2?", "14").reward


async def test_responses_are_scored_in_order_with_their_verdicts(url):
    results = await RubricScorer(url, RUBRIC).score(["7 * 2?"] * 3, TEXTS)
    assert [one.reward for one in results] == [REWARDS[text] for text in TEXTS]
    assert results[1].scores == {"says-14": 1.0, "exact": 0.0}
    assert results[1].explanation == "says-14: 1\nexact: 0"


def test_threads_and_short_lived_event_loops_share_a_scorer(url):
    scorer = RubricScorer(url, RUBRIC)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        blocking = [one.reward for one in pool.map(lambda text: scorer.score_blocking("7 * 2?", text), TEXTS)]
    looped = [asyncio.run(scorer.score_one("7 * 2?", text)).reward for text in TEXTS]
    assert blocking == looped == [REWARDS[text] for text in TEXTS]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_process_pool_scores_whatever_its_parent_did_before(url, start):
    scorer = RubricScorer(url, RUBRIC)
    assert scored_in_process(scorer) == 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process with threads is the case under test
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context(start)) as pool:
            assert pool.submit(scored_in_process, scorer).result(60) == 1.0


async def test_responses_are_weighed_in_groups_and_none_alone(url):
    scorer = RubricScorer(url, RUBRIC, weighting="contrast")
    results = await scorer.score(["7 * 2?"] * 3, TEXTS)
    assert [one.answer.declared_reward for one in results] == [REWARDS[text] for text in TEXTS]
    with pytest.raises(InvalidRequest, match="this response is scored alone"):
        await scorer.score_one("7 * 2?", TEXTS[0])


async def test_a_row_provides_its_own_rubric_and_columns(url):
    scorer = RubricScorer(url, RUBRIC, columns={"ground_truth": "answer"})
    row = {"answer": 14.0, "rubric": ANSWER}
    assert [(await scorer.score_one("7 * 2?", text, row)).reward for text in (RIGHT, WRONG)] == [1.0, 0.0]


async def test_a_column_that_looks_like_a_judged_one_is_reported(url):
    scorer = RubricScorer(url, RUBRIC)
    with pytest.warns(IgnoredColumnWarning, match="'answer', which looks like its ground_truth"):
        await scorer.score_one("7 * 2?", "14", {"answer": "14"})


async def test_an_unreachable_service_gives_no_reward_and_a_clear_error(away):
    scorer = RubricScorer(rubric=RUBRIC, **away)
    scored = await scorer.score_one("7 * 2?", "14")
    assert (scored.reward, scored.failures) == (None, ("unreachable",))
    with pytest.raises(NoReward, match=rf"no reward from {scorer.address} \(1 unreachable\), .* not a 0"):
        scorer.require(scored)


async def test_a_user_error_is_raised(url):
    with pytest.raises(UnknownRubric):
        await RubricScorer(url, "none/such").score_one("7 * 2?", "14")
    with pytest.raises(InvalidRequest, match="has no rubric"):
        await RubricScorer(url).score_one("7 * 2?", "14")
    with pytest.raises(TypeError, match="did you mean 'rationale'"):
        RubricScorer(url, RUBRIC, rational=True)


def test_a_scorer_can_be_pickled(url):
    assert pickle.loads(pickle.dumps(RubricScorer(url, RUBRIC))).score_blocking("7 * 2?", "14").reward == 1.0
