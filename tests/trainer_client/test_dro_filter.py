import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.dro import RollingThreshold, select_groups

SCORE = st.floats(0, 0.45)
STEPS = st.lists(st.lists(SCORE, max_size=4), max_size=12)


def after(threshold, steps):
    for scores in steps:
        threshold = threshold.after_step(scores)
    return threshold


def test_there_is_no_threshold_during_the_first_period():
    rolling = after(RollingThreshold(every=3), [[0.1], [0.2]])
    assert rolling.threshold is None
    assert rolling.accepts(0.0)
    assert rolling.after_step([0.4]).threshold == 0.2


def test_a_score_below_the_threshold_is_rejected():
    rolling = RollingThreshold(threshold=0.2)
    assert not rolling.accepts(0.19)
    assert rolling.accepts(0.2)


@given(STEPS, st.integers(1, 4), st.floats(0, 100))
def test_the_threshold_is_the_percentile_of_the_last_complete_period_with_scores(steps, every, percentile):
    periods = [steps[start : start + every] for start in range(0, len(steps) - every + 1, every)]
    scored = [scores for period in periods if (scores := [score for step in period for score in step])]
    expected = float(np.percentile(scored[-1], percentile)) if scored else None
    assert after(RollingThreshold(every, percentile), steps).threshold == expected


@given(STEPS, st.integers(0, 12))
def test_training_resumed_from_a_checkpoint_continues_exactly(steps, stop):
    rolling = after(RollingThreshold(every=3), steps[:stop])
    resumed = RollingThreshold(**json.loads(json.dumps(asdict(rolling))))
    assert after(resumed, steps[stop:]).threshold == after(RollingThreshold(every=3), steps).threshold


def test_the_defaults_are_twenty_steps_and_the_median():
    rolling = after(RollingThreshold(), [[float(step)] for step in range(20)])
    assert rolling.threshold == 9.5
    assert (rolling.steps, rolling.recent) == (0, ())


@pytest.mark.parametrize("options", [{"every": 0}, {"percentile": -1.0}, {"percentile": float("nan")}])
def test_a_period_or_percentile_out_of_range_is_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        RollingThreshold(**options)


@pytest.mark.parametrize("score", [float("nan"), None, "0.1"])
def test_a_score_that_is_not_a_number_is_refused(score):
    with pytest.raises(ValueError, match=r"scores\[1\]"):
        RollingThreshold().after_step([0.1, score])
    with pytest.raises(ValueError, match="score is"):
        RollingThreshold(threshold=0.1).accepts(score)


@given(st.lists(st.none() | SCORE, max_size=20), st.floats(0, 1), st.floats(0, 1), st.integers())
def test_the_selection_keeps_the_top_and_a_random_share_of_the_rest(scores, top, rest, seed):
    chosen = select_groups(scores, top_fraction=top, random_fraction=rest, seed=seed)
    known = sorted((index for index, s in enumerate(scores) if s is not None), key=lambda i: -scores[i])
    kept = int(np.ceil(top * len(known) - 1e-9))
    assert chosen == sorted(set(chosen))
    assert set(known[:kept]) <= set(chosen) <= set(known)
    assert len(chosen) == kept + int(np.ceil(rest * (len(known) - kept) - 1e-9))
    assert chosen == select_groups(scores, top_fraction=top, random_fraction=rest, seed=seed)


def test_another_seed_draws_a_different_rest_and_keeps_the_top():
    scores = [0.4, 0.3] + [0.1] * 98
    draws = [select_groups(scores, top_fraction=0.02, seed=seed) for seed in range(5)]
    assert all(len(draw) == 12 and draw[:2] == [0, 1] for draw in draws)
    assert len({tuple(draw) for draw in draws}) == 5
    assert max(index for draw in draws for index in draw) > 80


@pytest.mark.parametrize("name", ["top_fraction", "random_fraction"])
def test_a_share_out_of_range_is_refused_by_name(name):
    with pytest.raises(ValueError, match=name):
        select_groups([0.1], **{"top_fraction": 0.5, name: 1.5}, seed=1)
