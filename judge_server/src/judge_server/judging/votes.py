"""Several sampled verdicts on one criterion become one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from judge_server.ports import CallFailure, JudgeResult


def combine_votes(votes: Sequence[JudgeResult | CallFailure]) -> JudgeResult | CallFailure:
    """One verdict from the votes on a criterion.

    Yes or no goes by majority, and a tie is a no. Where votes failed, the verdict stands only if they could not have
    turned it; else it fails as they did, with `parse` only if all failed votes were unreadable. A grade or rating is
    the mean, and fails with any of its votes. The step and the rationale are those of the side that won: the step most
    of it names (the first of several), the rationale of its first vote. Probabilities, raw and calibrated, and menu
    masses are averaged over the votes that have them.
    """
    if len(votes) == 1:
        return votes[0]
    given = [vote for vote in votes if isinstance(vote, JudgeResult)]
    failed = sorted((vote for vote in votes if isinstance(vote, CallFailure)), key=lambda vote: vote.kind == "parse")
    if not given:
        return failed[0]
    if any(vote.grade is not None for vote in given):
        return failed[0] if failed else _mean(given)
    yes = [vote for vote in given if vote.score == 1.0]
    no = [vote for vote in given if vote.score != 1.0]
    satisfied = len(yes) > len(no) + len(failed)
    if not satisfied and len(yes) + len(failed) > len(no):
        kind = failed[0].kind
        return CallFailure(
            kind, f"{len(failed)} of {len(votes)} votes failed and could turn the rest: {failed[0].detail}"
        )
    winners = yes if satisfied else no
    side = winners or given
    return replace(
        side[0],
        score=1.0 if satisfied else 0.0,
        probability=_average([vote.probability for vote in given]),
        raw_probability=_average([vote.raw_probability for vote in given]),
        choice_mass=_average([vote.choice_mass for vote in given]),
        step=_most_named([vote.step for vote in side]),
    )


def _mean(given: Sequence[JudgeResult]) -> JudgeResult:
    return replace(
        given[0],
        score=sum(vote.score for vote in given) / len(given),
        grade=_average([vote.grade for vote in given]),
        choice_mass=_average([vote.choice_mass for vote in given]),
    )


def _average(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known else None


def _most_named(steps: Sequence[int | None]) -> int | None:
    return Counter(steps).most_common(1)[0][0]
