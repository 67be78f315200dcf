"""The group builder in the cookbook's own rollouts, with a scripted policy."""

import pickle

import pytest

from tests.trainer_client.adapters.conftest import ANSWER, REWARDS, RIGHT, RUBRIC, WRONG, missing

pytest.importorskip("tinker_cookbook", reason=missing("tinker-cookbook"))

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.rollouts import do_group_rollout

from tests.trainer_client.small_tokenizers import byte_level
from trainer_client.adapters import NoReward, RubricScorer
from trainer_client.adapters.tinker_cookbook import RubricGroupBuilder

pytestmark = pytest.mark.adapters

MESSAGES = [{"role": "user", "content": "7 * 2?"}]


class ScriptedCompleter(TokenCompleter):
    """A policy that returns these texts in turn."""

    def __init__(self, renderer, texts):
        self._renderer, self._texts = renderer, iter(texts)

    async def __call__(self, model_input, stop):
        tokens = self._renderer.tokenizer.encode(next(self._texts) + "\n\nUser:", add_special_tokens=False)
        return TokensWithLogprobs(tokens=tokens, maybe_logprobs=[0.0] * len(tokens))


@pytest.fixture
def renderer():
    return get_renderer("role_colon", byte_level())


async def rewards(scorer, renderer, texts, **row):
    builder = RubricGroupBuilder(scorer, renderer, MESSAGES, len(texts), row)
    group = await do_group_rollout(builder, ScriptedCompleter(renderer, texts))
    by_text = {}
    for trajectory, reward in zip(group.trajectories_G, group.get_total_rewards(), strict=True):
        message, _ = renderer.parse_response(trajectory.transitions[0].ac.tokens)
        by_text[message["content"].strip()] = reward
    return by_text, group.metrics_G


async def test_a_group_is_judged_at_once_and_each_criterion_is_a_metric(url, renderer):
    found, metrics = await rewards(RubricScorer(url, RUBRIC), renderer, list(REWARDS))
    assert found == REWARDS
    assert sorted(one["rubric/exact"] for one in metrics) == [0.0, 0.0, 1.0]


async def test_a_row_provides_its_rubric_and_its_ground_truth(url, renderer):
    found, _ = await rewards(RubricScorer(url), renderer, [RIGHT, WRONG], rubric=ANSWER, ground_truth="14")
    assert found == {RIGHT: 1.0, WRONG: 0.0}


async def test_a_group_whose_judging_failed_is_an_error_of_the_group(away, renderer):
    with pytest.raises(NoReward):
        await rewards(RubricScorer(rubric=RUBRIC, **away), renderer, ["14", "15"])


def test_objects_sent_to_rollout_workers_can_be_pickled(url):
    scorer = pickle.loads(pickle.dumps(RubricScorer(url, RUBRIC)))
    assert scorer.address == url
