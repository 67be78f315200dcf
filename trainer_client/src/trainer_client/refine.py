"""RGR-GRPO's refinement: whether a group needs it, what its best response misses, and how the policy is asked for more.

Of a group of G, G - 1 responses are sampled as ever. If the best of them satisfies every criterion, so is the last one;
otherwise the policy writes the last one from a prompt that shows the best response and the points it missed
(section 2.3). Generates nothing, judges nothing; the loss of a refined response is in `trainer_client.losses`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from trainer_client._criteria import CriterionLike, Score, Term, as_number, read_criteria, read_scores
from trainer_client.scaffold import (
    Chat,
    PromptCriterion,
    add_below,
    as_bullet_points,
    scaffolded_prompt,
    under_headings,
)

__all__ = [
    "BOXED_INSTRUCTION",
    "INSTRUCTION",
    "RefinementDecision",
    "RefinementOutcome",
    "assess_group",
    "prompt_with_criteria",
    "refinement_prompt",
]

Reward = Any
"""A finite number (float, int, a numpy or tensor scalar), or None where there is no reward."""

RefinementOutcome = Literal["satisfied", "refine", "undecided", "unrewarded"]

INSTRUCTION = (
    "Write a better answer to the task, a full one that stands on its own, in the form that the task asks for. Never "
    "mention the previous answer, what it lacks, or that you were told of either."
)
"""What is asked for below the points; in our own words, not the paper's."""

BOXED_INSTRUCTION = (
    "Write a better answer to the task that meets all of the points above: reason step by step, clearly and briefly, "
    "and end with the final answer in \\boxed{}. Never mention the previous answer, what it lacks, or that you were "
    "told of either."
)
"""What the paper asks for (appendix E.2), in our own words: for tasks whose final answer is read from a box."""

_ROUNDING = 1e-9


class RefinementDecision(NamedTuple):
    """Whether a group's last response is to be a refined one, and of what.

    `outcome` is

    - `refine`: the best response is known to miss criteria, those in `failed`;
    - `satisfied`: it satisfies all criteria;
    - `undecided`: it misses none that is known, but some have no score, so there is no point to refine it by;
    - `unrewarded`: no response has a reward, so there is no best one.

    All but `refine` leave the group on-policy; the last two are worth counting. `best` is the index of the best
    response, None if `unrewarded`. `failed` holds indices of criteria in the order of the rubric.
    """

    outcome: RefinementOutcome
    best: int | None
    failed: tuple[int, ...] = ()

    @property
    def satisfies_all(self) -> bool | None:
        """Whether the best response satisfies all criteria; None where that is not known."""
        return {"satisfied": True, "refine": False}.get(self.outcome)


def assess_group(
    rewards: Sequence[Reward], criteria: Sequence[CriterionLike], scores: Sequence[Sequence[Score]]
) -> RefinementDecision:
    """Assess how far a group's sampling got by itself (RGR-GRPO, eqs. 7 and 8).

    The best response has the highest reward. Of several, it is one that satisfies all criteria, then the one that
    satisfies most, then the first; rewards are the same if they differ by no more than a rounding error of 1e-9.

    A criterion is satisfied when its score is 1, and one of negative weight or of kind `pitfall` when its score is 0.
    One without a score is neither satisfied nor failed.

    Args:
        rewards: of each of the G - 1 responses, by the rubric and **before any length penalty**; None where there is
            none, which leaves the response out.
        criteria: M criteria, as `Criterion` models or mappings; without any, every response satisfies all. Of weights,
            only the sign counts.
        scores: for each response, M numbers in [0, 1]; None where the judge failed.

    Raises:
        ValueError: there are not as many rows of scores as rewards, or a reward, score or criterion is none.
    """
    if len(rewards) != len(scores):
        raise ValueError(f"{len(rewards)} rewards and {len(scores)} rows of scores; give one of each per response")
    terms = read_criteria(criteria)
    rows = [_satisfied(terms, row) for row in scores]
    values = [None if given is None else _finite(index, given) for index, given in enumerate(rewards)]
    highest = max((value for value in values if value is not None), default=None)
    if highest is None:
        return RefinementDecision("unrewarded", None)
    leading = [index for index, value in enumerate(values) if value is not None and value >= highest - _ROUNDING]
    best = max(leading, key=lambda index: rows[index].count(True))
    failed = tuple([index for index, satisfied in enumerate(rows[best]) if satisfied is False])
    return RefinementDecision("refine" if failed else "undecided" if None in rows[best] else "satisfied", best, failed)


def refinement_prompt(
    prompt: str | Chat, response: str, failed_criteria: Sequence[PromptCriterion], *, instruction: str = INSTRUCTION
) -> str | Chat:
    """Ask for a refined response: the prompt, below it the previous response, the points it missed, and what is wanted.

    Args:
        prompt: a text, or chat messages, where the rest goes below the last message of the user.
        response: the one to refine, without special tokens; leave out thinking that the policy need not see again.
        failed_criteria: those it misses, as `RefinementDecision.failed` names them. A point to avoid, by negative weight or
            kind `pitfall`, stands under a heading of its own. Without any, for the ablation that refines every group, a
            better answer is asked for and no points are named.
        instruction: what is wanted, the last paragraph.

    Returns:
        A prompt of the same form; what was given is not changed.

    Raises:
        ValueError: a criterion has no description, or the messages have none of the user's with a text as its content.
    """
    include, avoid = as_bullet_points(failed_criteria)
    points = under_headings(
        ("What that answer lacks and a better one has:", include),
        ("What that answer does and a better one avoids:", avoid),
    )
    opening = "This was answered before, but not well enough." if points else "This was answered before."
    fenced = f"<previous_answer>\n{response.strip()}\n</previous_answer>"
    return add_below(prompt, "\n\n".join([opening, fenced, *points, instruction]))


def prompt_with_criteria(
    prompt: str | Chat, criteria: Sequence[PromptCriterion], *, factual_only: bool = False
) -> str | Chat:
    """Give the prompt with a rubric's criteria below it as points to keep in mind, and no previous response.

    RGR-GRPO's refinement at test time (section 5.2), in the words of `scaffold.scaffold_text`.

    Args:
        prompt: a text, or chat messages, where the points go below the last message of the user.
        criteria: of the rubric.
        factual_only: show those of kind `factual` alone. Without any the prompt is unchanged.

    Returns:
        A prompt of the same form; what was given is not changed.

    Raises:
        ValueError: as `refinement_prompt`.
    """
    return scaffolded_prompt(prompt, [shown for shown in criteria if not factual_only or _kind(shown) == "factual"])


def _satisfied(terms: Sequence[Term], scores: Sequence[Score]) -> list[bool | None]:
    wanted = [0.0 if term.weight < 0 or term.kind == "pitfall" else 1.0 for term in terms]
    values = read_scores(scores, len(terms))
    return [None if value is None else value == want for value, want in zip(values, wanted, strict=True)]


def _kind(criterion: PromptCriterion) -> Any:
    return criterion.get("kind") if isinstance(criterion, Mapping) else criterion.kind


def _finite(index: int, given: Reward) -> float:
    number = as_number(given)
    if not math.isfinite(number):
        raise ValueError(f"rewards[{index}] is {given!r}; a reward is a finite number, or None where there is none")
    return number
