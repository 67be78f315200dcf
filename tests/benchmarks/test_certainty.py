"""The simulation of DRO's Figure 3: groups follow the setup, rewards follow the groups, and the command runs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.papers import certainty
from benchmarks.papers.simulation import Setup, correlations, draw, measure, share
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_examples import examples

SETUP = Setup()


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 200), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_a_group_has_a_certainty_for_each_rollout_and_token(length: int, seed: int, correlation: float) -> None:
    setup = replace(SETUP, reflective_correlation=correlation, noise_correlation=1 - correlation)
    probs = draw(setup, np.random.default_rng(seed), length, 1)
    assert probs.shape == (16, length)
    assert probs.min() >= setup.floor
    assert probs.max() <= 1.0


def test_reflective_tokens_vary_and_correlate_as_configured() -> None:
    setup = replace(SETUP, group_size=4000)
    probs = draw(setup, np.random.default_rng(0), 40, 20)
    reflective, others = probs[:, :20], probs[:, 20:]
    assert reflective.mean() == pytest.approx(setup.reflective_mean, abs=0.02)
    assert reflective.std(axis=0) == pytest.approx(setup.reflective_deviation, rel=0.1)
    between = np.corrcoef(reflective.T)[np.triu_indices(20, 1)]
    assert between.mean() == pytest.approx(setup.reflective_correlation, abs=0.05)
    assert abs(np.corrcoef(others.T)[np.triu_indices(20, 1)].mean()) < 0.01
    assert abs(np.corrcoef(reflective.mean(axis=1), others.mean(axis=1))[0, 1]) < 0.06


def test_without_emphasis_and_clip_r3_is_the_average_probability() -> None:
    setup = replace(SETUP, beta=0.0, p_min=0.0, p_max=1.0)
    _, prob, r3 = correlations(setup, draw(setup, np.random.default_rng(1), 300, 3), 3)
    assert r3 == pytest.approx(prob)


def test_an_average_of_reflective_tokens_alone_follows_them() -> None:
    _, prob, r3 = measure(SETUP, share(1.0), trials=20, seed=2, length=50).means
    assert prob == pytest.approx(1.0, abs=1e-3)
    assert r3 == pytest.approx(1.0, abs=2e-2)


def test_the_same_seed_gives_the_same_groups() -> None:
    one, other, third = (measure(SETUP, share(0.02), trials=3, seed=seed).correlations for seed in (5, 5, 6))
    assert np.array_equal(one, other)
    assert not np.array_equal(one, third)


def test_r3_follows_few_reflective_tokens_better_than_the_averages() -> None:
    logp, prob, r3 = measure(SETUP, share(0.01), trials=100, seed=7).means
    assert logp < prob < r3


def test_r3_has_no_advantage_where_other_tokens_vary_as_much() -> None:
    _, prob, r3 = measure(replace(SETUP, middling_deviation=0.15), share(0.01), trials=200, seed=8).means
    assert r3 == pytest.approx(prob, abs=0.05)


def test_averages_dilute_a_fixed_number_of_reflective_tokens_but_not_a_fixed_share() -> None:
    def average(tokens: int, reflective: int) -> float:
        return float(measure(SETUP, lambda _: reflective, trials=100, seed=9, length=tokens).means[1])

    assert average(100, 3) > average(1600, 3) + 0.2
    assert average(100, 1) < average(1600, 16) - 0.2


def test_a_correlation_with_a_rollouts_mean_exceeds_that_with_each_token() -> None:
    probs = draw(SETUP, np.random.default_rng(3), 200, 5)
    mean = correlations(SETUP, probs, 5)
    each = correlations(replace(SETUP, against="each"), probs, 5)
    assert mean[2] > each[2] > 0


@pytest.mark.slow
def test_the_command_prints_its_tables_and_draws_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    certainty.main(["--trials", "2", "--plots", "plots", "--longest", "150", "--beta", "20"])
    printed = capsys.readouterr().out
    assert "seed 0" in printed
    assert "R3 above average probability above average log-probability" in printed
    assert (tmp_path / "plots/dro-figure-3.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "plots/dro-figure-3.svg").read_text(encoding="utf-8")
    rows = json.loads((tmp_path / ".cache/bench/certainty.json").read_text(encoding="utf-8"))["rows"]
    assert len(rows) == len(certainty.SHARES) + 2 * len(certainty.LENGTHS)
