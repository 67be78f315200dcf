"""Comparing two judges on a run: verdicts that turn, the shift of rewards, and advantages that change sign."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from judge_server.evaluation import comparing
from judge_server.evaluation.comparing import Answer, JudgeComparison, RunGroup, judged_by_all, recorded_answers
from judge_server.evaluation.judging import Judgement
from judge_server.evaluation.labelled import LabelledResponse, criterion
from trainer_client.rewards import ResponseFacts
from trainer_client.wire import Failure, RewardOptions, Verdict

CRITERIA = (criterion("a", "Is right."), criterion("b", "Is brief."))


def group(name: str, size: int = 3, **options: Any) -> RunGroup:
    """A group whose n-th response has 1000 n tokens."""
    responses = tuple([LabelledResponse(name, "?", f"r{n}", CRITERIA, {}) for n in range(size)])
    facts = tuple([ResponseFacts(True, 1000 * n, True) for n in range(size)])
    answers, keys = tuple([Answer({}, None)] * size), tuple([(name, n) for n in range(size)])
    return RunGroup(name, RewardOptions.model_validate(options), "binary", CRITERIA, responses, facts, answers, keys)


def compare_judges(groups: Sequence[RunGroup], a: Sequence[Judgement], b: Sequence[Judgement]) -> JudgeComparison:
    """Compare two judges that were asked."""
    return comparing.compare_judges(groups, *(comparing.asked_answers(groups, one) for one in (a, b)))


def judged(group: RunGroup, scores: Sequence[tuple[float | None, float | None]]) -> list[Judgement]:
    """The judgements of a group, from the scores of both criteria."""
    return [
        Judgement(response, "", {name: verdict(name, score) for name, score in zip("ab", both, strict=True)})
        for response, both in zip(group.responses, scores, strict=True)
    ]


def verdict(name: str, score: float | None) -> Verdict:
    """A verdict, failed if it has no score."""
    failure = None if score is not None else Failure(kind="engine", detail="away")
    status = "ok" if failure is None else "failed"
    return Verdict(criterion=name, status=status, score=score, method="judge", failure=failure, cached=False)


def test_advantages_that_change_sign_are_counted() -> None:
    groups = [group("g"), group("h")]
    before = [*judged(groups[0], [(1, 1), (1, 0), (0, 0)]), *judged(groups[1], [(1, 1), (0, 0), (0, 0)])]
    after = [*judged(groups[0], [(0, 0), (1, 0), (1, 1)]), *judged(groups[1], [(1, 1), (0, 0), (0, 0)])]
    found = compare_judges(groups, before, after)
    assert (found.groups, found.responses, found.verdicts) == (2, 6, 12)
    assert found.turned.value == pytest.approx(4 / 12)
    assert (found.by_criterion["a"][0].value, found.by_criterion["a"][1]) == (pytest.approx(2 / 6), 6)
    assert found.advantage_flipped.value == pytest.approx(2 / 6)
    assert found.best_changed.value == 0.5
    assert found.reward_shift.value == 0.0
    assert (found.advantage_flipped.low, found.advantage_flipped.high) == (0.0, pytest.approx(2 / 3))


def test_a_response_with_a_failed_verdict_has_no_reward_and_is_left_out() -> None:
    one = group("g", 2)
    found = compare_judges([one], judged(one, [(1, 1), (1, 1)]), judged(one, [(1, None), (0, 1)]))
    assert (found.responses, found.unscored_a, found.unscored_b, found.verdicts) == (1, 0, 1, 3)
    with pytest.raises(ValueError, match="nothing to compare"):
        compare_judges([one], judged(one, [(1, 1), (1, 1)]), judged(one, [(None, 1), (1, None)]))


def test_rewards_are_computed_with_the_options_of_the_run() -> None:
    one = group("g", 2, mode="gate", gate_fraction=1.0, length_penalty={"coefficient": 1e-3, "target_tokens": 0})
    found = compare_judges([one], judged(one, [(1, 0), (1, 1)]), judged(one, [(1, 1), (1, 1)]))
    assert (found.reward_a.value, found.reward_b.value) == (pytest.approx((0 + 0) / 2), pytest.approx((1 + 0) / 2))


def test_a_group_is_weighed_by_the_verdicts_of_the_judge_that_rewards_it() -> None:
    one = group("g", 2, weighting="contrast")
    found = compare_judges([one], judged(one, [(1, 1), (0, 1)]), judged(one, [(1, 1), (1, 0)]))
    assert (found.reward_a.value, found.reward_b.value) == (pytest.approx(1.25 / 2), pytest.approx(1.25 / 2))


def test_a_judge_that_always_says_yes_loses_every_advantage_and_is_not_harmless() -> None:
    groups = [group(f"g{n}") for n in range(8)]
    before = [one for each in groups for one in judged(each, [(1, 1), (1, 0), (0, 0)])]
    always = [one for each in groups for one in judged(each, [(1, 1)] * 3)]
    found = compare_judges(groups, before, always)
    assert found.advantage_flipped.value == pytest.approx(2 / 3)  # the second response is at the mean of its group
    assert (found.spread_lost.value, found.spread_gained.value) == (1.0, 0.0)
    assert math.isnan(found.reward_correlation.value)
    assert "67% of the advantages" in found.exceeds(0.05)
    assert "the same reward" in found.exceeds(1.0)
    back = compare_judges(groups, always, before)
    assert (back.advantage_flipped.value, back.spread_gained.value) == (pytest.approx(2 / 3), 1.0)
    assert back.exceeds(0.05)


def test_a_judge_that_fails_on_what_the_other_rewards_is_not_harmless() -> None:
    groups = [group(f"g{n}", 2) for n in range(8)]
    before = [one for each in groups for one in judged(each, [(1, 1), (0, 0)])]
    failing = [one for each in groups for one in judged(each, [(1, 1), (None, None)])]
    found = compare_judges(groups, before, failing)
    assert (found.advantage_flipped.value, found.unscored_b) == (1.0, 8)
    assert found.exceeds(0.05)


def test_a_judge_that_gives_the_same_rewards_is_harmless_even_if_all_are_equal() -> None:
    groups = [group("g"), group("h")]
    same = [one for each in groups for one in judged(each, [(1, 1)] * 3)]
    assert not compare_judges(groups, same, same).exceeds(0.0)


def test_one_group_shows_no_judge_to_be_harmless() -> None:
    one = group("g")
    same = judged(one, [(1, 1), (1, 0), (0, 0)])
    assert "of one group" in compare_judges([one], same, same).exceeds(1.0)


def test_criteria_that_programs_verify_keep_their_recorded_verdicts() -> None:
    one = group("g", 2)
    only_b = tuple([replace(response, criteria=CRITERIA[1:]) for response in one.responses])
    by_program = [verdict("a", score).model_copy(update={"method": "math"}) for score in (1.0, None)]
    mixed = replace(one, responses=only_b, answers=tuple([Answer({"a": found}, None) for found in by_program]))
    verdicts = [Judgement(response, "", {"b": verdict("b", 1.0)}) for response in only_b]
    found = compare_judges([mixed], verdicts, verdicts)
    assert (found.responses, found.unscored_a, found.reward_a.value) == (1, 1, 1.0)


def test_recorded_rewards_are_compared_as_they_are_in_groups_that_both_runs_judged_whole() -> None:
    groups = [group("g", 2), group("h", 2), group("i", 2)]
    yes, no, failed = (Answer({"a": verdict("a", score)}, score) for score in (1.0, 0.0, None))
    own = [replace(one, answers=(yes, no)) for one in groups]
    partly = replace(groups[1], answers=groups[1].answers[:1], keys=groups[1].keys[:1])
    other = [replace(groups[2], answers=(yes, failed)), replace(groups[0], answers=(no, yes)), partly]
    shared = judged_by_all(own, [other])
    assert [one.id for one in shared] == ["g", "i"]
    found = comparing.compare_judges(shared, recorded_answers(shared, own), recorded_answers(shared, other))
    assert (found.responses, found.unscored_a, found.unscored_b) == (3, 0, 1)
    assert (found.verdicts, found.turned.value) == (3, pytest.approx(2 / 3))
    assert found.advantage_flipped.value == 1.0
