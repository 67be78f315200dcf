"""The groups of a batch: the order of rollouts, exclusion from the loss, and metrics."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.trl.methods import METHODS, Grounded, Rollout, RubricGrpo, Srar
from trainer_client.trl.rollouts.batch import AdvantageBatch

IDS = torch.zeros(4, 5, dtype=torch.long)


def rollouts(*rewards, tokens=3, **more):
    return [Rollout(tokens=tokens, reward=reward, **more) for reward in rewards]


def test_consecutive_rollouts_form_a_group():
    batch = AdvantageBatch.from_rollouts(RubricGrpo(scale="none"), rollouts(0.0, 1.0, 5.0, 7.0), 2)
    assert batch.tensor(slice(0, 4), IDS).tolist() == [-0.5, 0.5, -1.0, 1.0]


def test_a_rank_gets_the_advantages_of_its_own_rollouts():
    batch = AdvantageBatch.from_rollouts(RubricGrpo(scale="none"), rollouts(0.0, 1.0, 5.0, 7.0), 4)
    assert batch.tensor(slice(2, 4), IDS[:2]).tolist() == pytest.approx([1.75, 3.75])


def test_advantages_by_token_are_padded_with_zero_on_the_right():
    spans = {"deltas": {1: 0.8}, "spans": {1: (0, 2)}}
    batch = AdvantageBatch.from_rollouts(Srar(scale="std", eps=0.0), [*rollouts(1.0, **spans), *rollouts(0.0)], 2)
    tensor = batch.tensor(slice(0, 2), IDS[:2])
    assert tensor.tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0], [-1.0, -1.0, -1.0, 0.0, 0.0]]


def test_rollouts_without_a_reward_are_excluded():
    assert AdvantageBatch.from_rollouts(RubricGrpo(), rollouts(0.0, None, 1.0, None), 4).kept == [
        True,
        False,
        True,
        False,
    ]


def test_an_uninformative_group_is_excluded():
    batch = AdvantageBatch.from_rollouts(Grounded(dynamic_sampling=True), rollouts(1.0, 1.0, 0.0, 1.0), 2)
    assert batch.kept == [False, False, True, True]
    assert batch.metrics["groups/uninformative"] == 0.5
    assert batch.metrics["rubric/left_out"] == 0.5


@pytest.mark.parametrize("method", [RubricGrpo(), Srar(), Grounded()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0, 1 / 3])
def test_a_group_of_equal_rewards_is_uninformative_and_stays_in_the_loss(method, reward):
    batch = AdvantageBatch.from_rollouts(method, [*rollouts(reward, reward, reward), *rollouts(0.0, 1.0, 0.0)], 3)
    assert batch.metrics["groups/uninformative"] == 0.5
    assert all(batch.kept)


def test_equal_rewards_with_different_steps_are_informative():
    stepped = rollouts(1.0, deltas={1: 0.4}, spans={1: (0, 2)}) + rollouts(1.0, deltas={1: 0.0}, spans={1: (0, 2)})
    assert AdvantageBatch.from_rollouts(Srar(), stepped, 2).metrics["groups/uninformative"] == 0.0


def test_a_group_without_any_reward_is_counted_apart_from_uninformative_ones():
    metrics = AdvantageBatch.from_rollouts(RubricGrpo(), rollouts(None, None, 1.0, 1.0), 2).metrics
    assert (metrics["groups/unscored"], metrics["groups/uninformative"]) == (0.5, 0.5)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_group_of_one_has_no_advantage(method):
    alone = Rollout(tokens=3, reward=0.7, deltas={1: 0.4}, spans={1: (0, 2)}, certainty=(0.4, 0.6), scores=(1.0,))
    made = method()
    batch = AdvantageBatch.from_rollouts(made, [alone], 1, made.start())
    assert batch.means == [0.0]
    assert batch.rewards != [None]


def test_responses_without_steps_are_counted():
    batch = AdvantageBatch.from_rollouts(
        Srar(), [*rollouts(1.0, deltas={1: 0.4}, spans={1: (0, 2)}), *rollouts(1.0)], 2
    )
    assert batch.metrics["steps/without"] == 0.5
    assert batch.metrics["steps/scored"] == 0.5


@given(st.lists(st.none() | st.floats(0, 1), min_size=4, max_size=4))
def test_excluded_rollouts_have_no_advantage(rewards):
    batch = AdvantageBatch.from_rollouts(RubricGrpo(), rollouts(*rewards), 4)
    assert all(kept or advantage == 0 for kept, advantage in zip(batch.kept, batch.means, strict=True))


def test_the_logged_advantage_is_the_mean_over_tokens():
    spans = {"deltas": {1: 1.0}, "spans": {1: (0, 1)}}
    batch = AdvantageBatch.from_rollouts(
        Srar(normalise=False), [*rollouts(1.0, tokens=4, **spans), *rollouts(1.0, tokens=4)], 2
    )
    assert batch.means == pytest.approx([0.25, 0.0])
    assert all(isinstance(advantage, np.ndarray) for advantage in batch.advantages)
