"""RGR-GRPO's refinement: whether a group needs it, what its best response misses, and the prompt for a better one.

In a group of G, the first G - 1 responses are sampled as usual. If the best of them satisfies every criterion, so is
the last one. Otherwise the policy writes the last one from a prompt that shows the best response and the points it
missed (section 2.3). The loss of a refined response is in `trainer_client.losses`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from trainer_client.modes import Term
from trainer_client.rewards import CriterionLike, Reward, Score, read_criteria, read_finite_or_none, read_scores
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

RefinementOutcome = Literal["satisfied", "refine", "undecided", "unrewarded"]

INSTRUCTION = (
    "Write a better answer to the task, a full one that stands on its own, in the form that the task asks for. Never "
    "mention the previous answer, what it lacks, or that you were told of either."
)
"""The last paragraph of the refinement prompt, in our own words."""

BOXED_INSTRUCTION = (
    "Write a better answer to the task that meets all of the points above: reason step by step, clearly and briefly, "
    "and end with the final answer in \\boxed{}. Never mention the previous answer, what it lacks, or that you were "
    "told of either."
)
"""The paper's instruction (appendix E.2), in our own words, for tasks whose final answer is in a box."""

_ROUNDING = 1e-9


class RefinementDecision(NamedTuple):
    """Whether to refine a group's best response for its last one.

    `outcome` is

    - `refine`: the best response fails the criteria in `failed`;
    - `satisfied`: the best response satisfies all criteria;
    - `undecided`: it fails no criterion that has a score, but some have none, so there is nothing to refine it by;
    - `unrewarded`: no response has a reward, so there is no best one.

    All outcomes but `refine` leave the group on-policy; the last two are worth counting. `best` is the index of the
    best response, None if `unrewarded`. `failed` holds the indices of criteria, in the order of the rubric.
    """

    outcome: RefinementOutcome
    best: int | None
    failed: tuple[int, ...] = ()


def assess_group(
    rewards: Sequence[Reward], criteria: Sequence[CriterionLike], scores: Sequence[Sequence[Score]]
) -> RefinementDecision:
    """Decide from a group's sampled responses whether to refine the best one (RGR-GRPO, eqs. 7 and 8).

    The best response has the highest reward. Among equal rewards, it is the one that satisfies the most criteria, then
    the first. Rewards are equal if they differ by at most a rounding error of 1e-9.

    A criterion is satisfied if its score is 1; one of negative weight or of kind `pitfall`, if its score is 0. A
    criterion without a score is neither satisfied nor failed.

    Args:
        rewards: the rubric rewards of the G - 1 responses **before any length penalty**; None leaves a response out.
        criteria: M criteria, as `Criterion` models or mappings; without any, every response satisfies all. Only the
            sign of a weight matters.
        scores: M numbers in [0, 1] for each response; None where judging failed.

    Raises:
        ValueError: the numbers of rewards and of rows of scores differ, or a reward, score or criterion is invalid.
    """
    if len(rewards) != len(scores):
        raise ValueError(f"{len(rewards)} rewards and {len(scores)} rows of scores; give one of each per response")
    terms = read_criteria(criteria)
    rows = [_satisfied(terms, row) for row in scores]
    values = [read_finite_or_none(f"rewards[{index}]", given) for index, given in enumerate(rewards)]
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
    """Build the prompt for a refined response: the prompt, the previous response, what it missed, and the instruction.

    Args:
        prompt: a text, or chat messages, where the rest is appended to the last user message.
        response: the response to refine, without special tokens. Leave out thinking that the policy need not see again.
        failed_criteria: the criteria it fails, see `RefinementDecision.failed`. Those of negative weight or of kind
            `pitfall` are points to avoid and have their own heading. Without criteria, for the ablation that refines
            every group, the prompt asks for a better answer without naming points.
        instruction: the last paragraph.

    Returns:
        A new prompt of the same form.

    Raises:
        ValueError: a criterion has no description, or the content of the last user message is missing or not text.
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
    """Add a rubric's criteria to a prompt as points to keep in mind, without a previous response.

    This is RGR-GRPO's refinement at test time (section 5.2), in the wording of `scaffold.scaffold_text`.

    Args:
        prompt: a text, or chat messages, where the points are appended to the last user message.
        criteria: the rubric's criteria.
        factual_only: show only those of kind `factual`. If there are none, the prompt is unchanged.

    Returns:
        A new prompt of the same form.

    Raises:
        ValueError: as for `refinement_prompt`.
    """
    return scaffolded_prompt(prompt, [shown for shown in criteria if not factual_only or _kind(shown) == "factual"])


def _satisfied(terms: Sequence[Term], scores: Sequence[Score]) -> list[bool | None]:
    wanted = [0.0 if term.weight < 0 or term.kind == "pitfall" else 1.0 for term in terms]
    values = read_scores(scores, len(terms))
    return [None if value is None else value == want for value, want in zip(values, wanted, strict=True)]


def _kind(criterion: PromptCriterion) -> Any:
    return criterion.get("kind") if isinstance(criterion, Mapping) else criterion.kind
