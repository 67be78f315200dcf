"""RuscaRL's scaffolds: how many criteria each sample is shown, which ones, and how a prompt shows them.

The prompt for generation contains some of the rubric's criteria: more of them early in training, and for the first
samples of a group. RuscaRL's reward is mode `points` in `trainer_client.rewards`.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from trainer_client.steps import edit_problem
from trainer_client.wire.criteria import Criterion

__all__ = [
    "draw_criteria",
    "scaffold_ratios",
    "scaffold_text",
    "scaffolded_prompt",
    "shown_count",
    "shown_to_sample",
    "training_progress",
]

PromptCriterion = Criterion | Mapping[str, Any]
"""A `Criterion`, or a mapping with its `description`, `weight` (default 1) and `kind` (default `point`)."""
Chat = Sequence[Mapping[str, Any]]
"""Chat messages, each with `role` and `content`."""


GroupPattern = Literal["linear", "binary", "full", "none"]
Decay = Literal["sigmoid", "linear", "power", "constant"]
Place = Literal["user", "system"]


def training_progress(step: int, total: int) -> float:
    """Compute t = (step - 1) / (total - 1), clamped to [0, 1]. `step` counts from 1. If `total` is 1, t is 0.

    Raises:
        ValueError: `total` is below 1.
    """
    if total < 1:
        raise ValueError(f"total is {total}; use at least 1 step")
    return min(1.0, max(0.0, (step - 1) / (total - 1))) if total > 1 else 0.0


def scaffold_ratios(
    progress: float,
    group_size: int,
    *,
    alpha: float = 125.0,
    midpoint: float = 0.2,
    pattern: GroupPattern = "linear",
    full: int = 1,
    decay: Decay = "sigmoid",
    power: float = 1.0,
) -> list[float]:
    """Compute the share of the criteria that each sample of a group is shown (RuscaRL, eq. 3).

    The share is the factor of the training step times that of the sample, for samples i = 1..G:

    - decay at progress t: `sigmoid` 1 / (1 + exp(alpha * (t - t0))) (paper), `linear` 1 - t, `power` (1 - t) ** n,
      `constant` 1;
    - pattern: `linear` (G - i) / (G - 1) (paper), `binary` 1 for the first `full` samples and 0 for the rest, `full` 1,
      `none` 0. In a group of one, `linear` is 1.

    Args:
        progress: t, in [0, 1].
        group_size: G, at least 1.
        alpha: steepness of the sigmoid, at least 0 (paper: 125).
        midpoint: t0, where the sigmoid is 1/2 (paper: 0.2).
        pattern: see above.
        full: for `binary` only: the number of samples with factor 1, at least 0.
        decay: see above.
        power: n, for `power` only, above 0.

    Returns:
        G ratios in [0, 1].

    Raises:
        ValueError: an argument is out of range.
    """
    if not 0.0 <= progress <= 1.0:
        raise ValueError(f"progress is {progress!r}; use a share in [0, 1], see training_progress")
    if group_size < 1 or full < 0:
        raise ValueError(f"group_size is {group_size} and full {full}; they must be at least 1 and 0")
    step_factor = _decay(progress, decay, alpha, midpoint, power)
    match pattern:
        case "linear":
            samples = [(group_size - i) / (group_size - 1) if group_size > 1 else 1.0 for i in range(1, group_size + 1)]
        case "binary":
            samples = [float(i <= full) for i in range(1, group_size + 1)]
        case "full":
            samples = [1.0] * group_size
        case "none":
            samples = [0.0] * group_size
        case _:
            raise ValueError(f"pattern is {pattern!r}; use one of {', '.join(get_args(GroupPattern))}")
    return [step_factor * sample for sample in samples]


def shown_count(ratio: float, criteria: int) -> int:
    """Compute how many of M criteria are shown: round(ratio * M), with halves rounded to even.

    Raises:
        ValueError: the ratio is not in [0, 1], or M is negative.
    """
    if not 0.0 <= ratio <= 1.0 or criteria < 0:
        raise ValueError(f"ratio is {ratio!r} and criteria {criteria}; use a share in [0, 1] and a count")
    return round(ratio * criteria)


def draw_criteria(
    criteria: int, count: int, *, run_seed: int, prompt_id: str | int, step: int, sample: int
) -> list[int]:
    """Draw the criteria to show, without replacement; each set of `count` criteria is equally likely.

    The result depends only on the arguments, on any machine and any version of Python: it is the criteria with the
    lowest SHA-256 of the seed and their index. A smaller count draws a subset of a larger one.

    Args:
        criteria: M, the number of criteria.
        count: the number of criteria to draw, 0 to M.
        run_seed: the seed of the training run.
        prompt_id: the id of the prompt, the same on every rank.
        step: the training step, so that a prompt that occurs again shows other criteria.
        sample: i, the sample's position in its group.

    Returns:
        The indices of the criteria, in the order of the rubric.

    Raises:
        ValueError: `count` is not in 0..M.
    """
    if not 0 <= count <= criteria:
        raise ValueError(f"count is {count}; of {criteria} criteria 0 to {criteria} can be drawn")
    seed = [run_seed, prompt_id, step, sample]
    ranks = sorted(range(criteria), key=lambda index: hashlib.sha256(json.dumps([*seed, index]).encode()).digest())
    return sorted(ranks[:count])


def shown_to_sample(
    criteria: int, ratios: Sequence[float], *, run_seed: int, prompt_id: str | int, step: int, sample: int
) -> list[int]:
    """Draw the criteria that one sample of a group is shown, by `shown_count` and `draw_criteria`.

    Args:
        criteria: M, the number of criteria.
        ratios: the G ratios of the group's samples, see `scaffold_ratios`.
        run_seed, prompt_id, step: as in `draw_criteria`.
        sample: i, the sample's position in its group, 1 to G.

    Returns:
        The indices of the criteria, in the order of the rubric.
    """
    count = shown_count(ratios[sample - 1], criteria)
    return draw_criteria(criteria, count, run_seed=run_seed, prompt_id=prompt_id, step=step, sample=sample)


def scaffold_text(criteria: Sequence[PromptCriterion], *, weights: bool = False) -> str:
    """Format criteria as advice for the answer; an empty text if there are none.

    A criterion of negative weight or of kind `pitfall` is a point to avoid, any other a point to include. A heading
    without points is left out (RuscaRL, appendix E.2; the wording is ours).

    Args:
        criteria: the criteria to show.
        weights: whether each point ends with its weight (RuscaRL's authors' code).

    Raises:
        ValueError: a criterion has no description.
    """
    include, avoid = as_bullet_points(criteria, weights=weights)
    if not include and not avoid:
        return ""
    parts = ["For this answer, keep the following in mind."]
    parts += under_headings(("Points to include:", include), ("Points to avoid:", avoid))
    parts.append("Answer the way you would on your own: never mention these points, or that you were given any.")
    return "\n\n".join(parts)


def scaffolded_prompt(
    prompt: str | Chat, criteria: Sequence[PromptCriterion], *, place: Place = "user", weights: bool = False
) -> str | Chat:
    """Add criteria to a prompt for generation; without criteria, the prompt is unchanged.

    Args:
        prompt: a text, to which they are appended, or chat messages.
        criteria: the criteria to show, see `draw_criteria`.
        place: the message of a chat to append them to: the last one of the `user`, or the `system` message, which is
            added if there is none (RuscaRL's authors' code).
        weights: as in `scaffold_text`.

    Returns:
        A new prompt of the same form.

    Raises:
        ValueError: the message is missing or its content is not text, `place` is invalid, or as for `scaffold_text`.
    """
    if place not in get_args(Place):
        raise ValueError(f"place is {place!r}; use one of {', '.join(get_args(Place))}")
    addition = scaffold_text(criteria, weights=weights)
    if not addition:
        return prompt
    return add_to_system(prompt, addition) if place == "system" else add_below(prompt, addition)


class BulletPoints(NamedTuple):
    """Lines that begin with a dash, one for each criterion: points to include, and points to avoid."""

    include: list[str]
    avoid: list[str]


def as_bullet_points(criteria: Sequence[PromptCriterion], *, weights: bool = False) -> BulletPoints:
    """Format each criterion as a bullet point; one of negative weight or of kind `pitfall` is a point to avoid.

    With `weights`, each point ends with its weight in parentheses.

    Raises:
        ValueError: a criterion has no description.
    """
    points = BulletPoints([], [])
    for index, criterion in enumerate(criteria):
        given = criterion if isinstance(criterion, Mapping) else criterion.model_dump()
        description = str(given.get("description") or "").strip()
        if not description:
            raise ValueError(f"criteria[{index}] has no description, which the prompt would show; add one")
        weight = given.get("weight", 1.0)
        negative = weight < 0 or given.get("kind") == "pitfall"
        if weights:
            description += f" ({weight:g} point{'' if abs(weight) == 1 else 's'})"
        (points.avoid if negative else points.include).append("- " + description.replace("\n", "\n  "))
    return points


def under_headings(*headed: tuple[str, list[str]]) -> list[str]:
    """Join each heading and its lines; a heading without lines is left out."""
    return ["\n".join([heading, *lines]) for heading, lines in headed if lines]


def add_below(prompt: str | Chat, addition: str) -> str | Chat:
    """Append a text to a prompt; in a chat, to the last user message.

    Returns:
        A new prompt of the same form.

    Raises:
        ValueError: the messages have no user message, or the content of the last one is not text.
    """
    return edit_problem(prompt, lambda text: f"{text}\n\n{addition}", "the criteria")


def add_to_system(prompt: str | Chat, addition: str) -> str | Chat:
    """Append a text to the system message of a chat, or to a prompt that is a text.

    A chat that does not begin with a system message gets one.

    Returns:
        A new prompt of the same form.

    Raises:
        ValueError: the content of the system message is not text.
    """
    if isinstance(prompt, str):
        return add_below(prompt, addition)
    if not prompt or prompt[0]["role"] != "system":
        return [{"role": "system", "content": addition}, *prompt]
    first = prompt[0]
    if not isinstance(first["content"], str):
        raise ValueError("the prompt's system message is not plain text; it must hold the criteria")
    return [{**first, "content": f"{first['content']}\n\n{addition}".strip()}, *prompt[1:]]


def _decay(progress: float, decay: Decay, alpha: float, midpoint: float, power: float) -> float:
    match decay:
        case "sigmoid":
            if not (0.0 <= alpha < math.inf and math.isfinite(midpoint)):
                raise ValueError(f"alpha is {alpha!r} and midpoint {midpoint!r}; use finite numbers, alpha at least 0")
            exponent = alpha * (progress - midpoint)
            small = math.exp(-abs(exponent))
            return (small if exponent > 0 else 1.0) / (1.0 + small)
        case "linear":
            return 1.0 - progress
        case "power":
            if not 0.0 < power < math.inf:
                raise ValueError(f"power is {power!r}; use a finite number above 0")
            return float((1.0 - progress) ** power)
        case "constant":
            return 1.0
        case _:
            raise ValueError(f"decay is {decay!r}; use one of {', '.join(get_args(Decay))}")
