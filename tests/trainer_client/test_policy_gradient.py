"""SRaR's decomposition of the policy gradient (proposition 20.8), by autograd on a small softmax policy."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.advantages import group_advantages, normalise_steps, stepwise_advantages
from trainer_client.losses import clipped_surrogate

pytestmark = pytest.mark.trl

WORDS = 4
NUMBER = st.floats(-2, 2, allow_subnormal=False)
SEED = st.integers(0, 2**32)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Use one thread: for sixteen numbers, synchronising threads takes longer than the sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def table(seed):
    """A policy's logits of each word after each word."""
    return torch.randn(WORDS, WORDS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@st.composite
def rollouts(draw):
    """A response: its words, the spans of its steps, their deltas, and its base reward."""
    words = draw(st.text("0123", min_size=1, max_size=7).map(lambda text: [int(word) for word in text]))
    edges = sorted(draw(st.sets(st.integers(0, len(words)), max_size=4)))
    spans = {step: (start, end) for step, (start, end) in enumerate(pairwise(edges), 1)}
    deltas = draw(st.dictionaries(st.sampled_from([0, *spans]), NUMBER))
    return words, spans, deltas, draw(st.none() | NUMBER)


GROUPS = st.lists(rollouts(), min_size=1, max_size=4)


def log_probabilities(policy, words):
    """Log-probability of each word after the one before it; the first follows word 0."""
    return torch.log_softmax(policy, dim=-1)[[0, *words[:-1]], words]


def policy_gradient(parameters, old, group, advantages):
    """Gradient of the sum over all tokens of ratio * A."""
    policy = parameters.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for (words, *_), advantage in zip(group, advantages, strict=True):
        ratio = torch.exp(log_probabilities(policy, words) - log_probabilities(old, words))
        total = total + clipped_surrogate(ratio, advantage, low=1.0, high=math.inf).sum()
    total.backward()
    return policy.grad


def on_tokens(group, numbers, step=None):
    """Arrays with one number per response, on all its tokens or on those of one step."""
    arrays = [torch.zeros(len(words), dtype=torch.float64) for words, *_ in group]
    for array, (_, spans, *_), number in zip(arrays, group, numbers, strict=True):
        start, end = (0, len(array)) if not step else spans.get(step, (0, 0))
        array[start:end] = number
    return arrays


def stepwise(group, deltas):
    _, spans, _, base = zip(*group, strict=True)
    return stepwise_advantages(base, deltas, spans, [len(words) for words, *_ in group])


@given(SEED, SEED, GROUPS)
def test_the_gradient_is_the_sum_of_the_outcomes_and_every_steps(new, old, group):
    new, old = table(new), table(old)
    _, _, deltas, base = zip(*group, strict=True)
    whole = policy_gradient(new, old, group, stepwise(group, deltas))

    parts = policy_gradient(new, old, group, on_tokens(group, group_advantages(base)))
    known = [{} if reward is None else own for own, reward in zip(deltas, base, strict=True)]
    normalised = normalise_steps(known)
    for step in {step for own in normalised for step in own}:
        z = [own.get(step, 0.0) for own in normalised]
        parts = parts + policy_gradient(new, old, group, on_tokens(group, z, step))
    assert torch.allclose(whole, parts, rtol=1e-9, atol=1e-9)


@given(SEED, SEED, GROUPS)
def test_without_deltas_the_gradient_is_that_of_grpo(new, old, group):
    new, old = table(new), table(old)
    plain = on_tokens(group, group_advantages([base for *_, base in group]))
    gradient = policy_gradient(new, old, group, stepwise(group, [{} for _ in group]))
    assert torch.equal(gradient, policy_gradient(new, old, group, plain))


@given(SEED, GROUPS)
def test_at_the_sampling_policy_it_is_the_gradient_of_the_weighted_log_likelihood(policy, group):
    policy = table(policy)
    advantages = stepwise(group, [own for _, _, own, _ in group])
    likelihood = policy.clone().requires_grad_()
    total = [
        (torch.as_tensor(advantage) * log_probabilities(likelihood, words)).sum()
        for (words, *_), advantage in zip(group, advantages, strict=True)
    ]
    torch.stack(total).sum().backward()
    assert torch.allclose(policy_gradient(policy, policy, group, advantages), likelihood.grad, atol=1e-12)


def test_a_delta_of_one_step_affects_only_the_words_of_that_step():
    words, spans = [1, 2, 3, 1], {1: (0, 2), 2: (2, 4)}
    group = [(words, spans, {2: 0.8}, 1.0), (words[::-1], spans, {2: 0.0}, 1.0)]
    gradient = policy_gradient(table(0), table(1), group, stepwise(group, [own for *_, own, _ in group]))
    moved = {(previous, word) for previous, word in gradient.nonzero().tolist()}
    assert {previous for previous, _ in moved} == {2, 3}
