"""RuscaRL's scaffolds: how many criteria each sample is shown, which ones, and how a prompt shows them.

RuscaRL's scaffolding: how many of a rubric's criteria the policy is shown, which ones, and in what words.

The criteria stand in the prompt that responses are generated from, more of them early in training and for the first
of a group. Generates nothing, and rewards nothing: that is `points` in `trainer_client.rewards`.

Writes criteria down as points, and puts a text below a prompt that is a text or a chat.

In what words a model is told of them is not decided here.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

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


class BulletPoints(NamedTuple):
    """Lines that begin with a dash, one for each criterion: what an answer should have, and what it should not."""

    include: list[str]
    avoid: list[str]


def as_bullet_points(criteria: Sequence[PromptCriterion], *, weights: bool = False) -> BulletPoints:
    """Write each criterion down; one of negative weight or of kind `pitfall` is a point to avoid.

    With `weights`, its weight stands behind it in parentheses, as points.

    Raises:
        ValueError: a criterion has no description.
    """
    points = BulletPoints([], [])
    for index, criterion in enumerate(criteria):
        given = criterion if isinstance(criterion, Mapping) else criterion.model_dump()
        description = str(given.get("description") or "").strip()
        if not description:
            raise ValueError(f"criteria[{index}] has no description, which is what the policy would be shown")
        weight = given.get("weight", 1.0)
        negative = weight < 0 or given.get("kind") == "pitfall"
        if weights:
            description += f" ({weight:g} point{'' if abs(weight) == 1 else 's'})"
        (points.avoid if negative else points.include).append("- " + description.replace("\n", "\n  "))
    return points


def under_headings(*headed: tuple[str, list[str]]) -> list[str]:
    """Give each heading with its lines below it; one without lines is left out."""
    return ["\n".join([heading, *lines]) for heading, lines in headed if lines]


def add_below(prompt: str | Chat, addition: str) -> str | Chat:
    """Put a text below a prompt: below the last message of the user, in a chat.

    Returns:
        A prompt of the same form; what was given is not changed.

    Raises:
        ValueError: the messages have none of the user's with a text as its content.
    """
    if isinstance(prompt, str):
        return f"{prompt}\n\n{addition}"
    places = [place for place, message in enumerate(prompt) if message["role"] == "user"]
    if not places or not isinstance(prompt[places[-1]]["content"], str):
        raise ValueError("the prompt's last user message is missing or not plain text; the criteria would stand there")
    last_message = prompt[places[-1]]
    extended = {**last_message, "content": f"{last_message['content']}\n\n{addition}"}
    return [extended if place == places[-1] else message for place, message in enumerate(prompt)]


def add_to_system(prompt: str | Chat, addition: str) -> str | Chat:
    """Put a text into the system message of a chat, below what it says; below a prompt that is a text.

    A chat that does not begin with a system message gets one.

    Returns:
        A prompt of the same form; what was given is not changed.

    Raises:
        ValueError: the content of the system message is not text.
    """
    if isinstance(prompt, str):
        return add_below(prompt, addition)
    if not prompt or prompt[0]["role"] != "system":
        return [{"role": "system", "content": addition}, *prompt]
    first = prompt[0]
    if not isinstance(first["content"], str):
        raise ValueError("the prompt's system message is not plain text; the criteria would stand there")
    return [{**first, "content": f"{first['content']}\n\n{addition}".strip()}, *prompt[1:]]


GroupPattern = Literal["linear", "binary", "full", "none"]
Decay = Literal["sigmoid", "linear", "power", "constant"]
Place = Literal["user", "system"]


def training_progress(step: int, total: int) -> float:
    """Compute t = (step - 1) / (total - 1), clamped to [0, 1]; step counts from 1. 0 if there is one step in all.

    Raises:
        ValueError: `total` is below 1.
    """
    if total < 1:
        raise ValueError(f"total is {total}; training has at least 1 step")
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

    The factor of the training step times that of the sample, for samples i = 1..G:

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
        full: of `binary` only: how many samples are shown all that the step allows, at least 0.
        decay: see above.
        power: n, of `power` only, above 0.

    Returns:
        G ratios in [0, 1].

    Raises:
        ValueError: an argument is out of range.
    """
    if not 0.0 <= progress <= 1.0:
        raise ValueError(f"progress is {progress!r}; it is a share in [0, 1], see training_progress")
    if group_size < 1 or full < 0:
        raise ValueError(f"group_size is {group_size} and full {full}; they are at least 1 and 0")
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
    """Compute how many of M criteria are shown: round(ratio * M), halves to the even number.

    Raises:
        ValueError: the ratio is not in [0, 1], or M is negative.
    """
    if not 0.0 <= ratio <= 1.0 or criteria < 0:
        raise ValueError(f"ratio is {ratio!r} and criteria {criteria}; they are a share in [0, 1] and a count")
    return round(ratio * criteria)


def draw_criteria(
    criteria: int, count: int, *, run_seed: int, prompt_id: str | int, step: int, sample: int
) -> list[int]:
    """Draw which criteria are shown, without replacement, each set of `count` being equally likely.

    What is drawn depends on the arguments alone, on any machine and any version of Python: the criteria with the
    lowest SHA-256 of the seed and their index. A smaller count draws a part of what a larger one draws.

    Args:
        criteria: M, how many there are.
        count: how many to draw, 0 to M.
        run_seed: of the training run.
        prompt_id: of the prompt, the same on every rank.
        step: of training, so that a prompt seen again shows other criteria.
        sample: i, the sample's place in its group.

    Returns:
        Their indices in the order of the rubric.

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
    """Draw the criteria that one sample of a group is shown: its `shown_count` of them, by `draw_criteria`.

    Args:
        criteria: M, how many there are.
        ratios: of the samples of the group, see `scaffold_ratios`; shape (G,).
        run_seed, prompt_id, step: as in `draw_criteria`.
        sample: i, the sample's place in its group, 1 to G.

    Returns:
        Their indices in the order of the rubric.
    """
    count = shown_count(ratios[sample - 1], criteria)
    return draw_criteria(criteria, count, run_seed=run_seed, prompt_id=prompt_id, step=step, sample=sample)


def scaffold_text(criteria: Sequence[PromptCriterion], *, weights: bool = False) -> str:
    """Write criteria down as advice to whoever answers; an empty text if there are none.

    A criterion of negative weight or of kind `pitfall` is a point to avoid, any other a point to include. A heading
    without points is left out (RuscaRL, appendix E.2; the words are ours).

    Args:
        criteria: those shown.
        weights: whether each has its weight behind it, as points (RuscaRL's authors' code).

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
    """Give the prompt to generate from: with the criteria in it, or unchanged if there are none.

    Args:
        prompt: a text, which they go below, or chat messages.
        criteria: those drawn, see `draw_criteria`.
        place: where in chat messages: below the last message of the `user`, or in the `system` message, which is made
            where there is none (RuscaRL's authors' code).
        weights: as in `scaffold_text`.

    Returns:
        A prompt of the same form; what was given is not changed.

    Raises:
        ValueError: the message that they go into is missing or has no text as its content, the place is none, or as
            `scaffold_text`.
    """
    if place not in get_args(Place):
        raise ValueError(f"place is {place!r}; use one of {', '.join(get_args(Place))}")
    addition = scaffold_text(criteria, weights=weights)
    if not addition:
        return prompt
    return add_to_system(prompt, addition) if place == "system" else add_below(prompt, addition)


def _decay(progress: float, decay: Decay, alpha: float, midpoint: float, power: float) -> float:
    match decay:
        case "sigmoid":
            if not (0.0 <= alpha < math.inf and math.isfinite(midpoint)):
                raise ValueError(f"alpha is {alpha!r} and midpoint {midpoint!r}; they are finite, alpha at least 0")
            exponent = alpha * (progress - midpoint)
            small = math.exp(-abs(exponent))
            return (small if exponent > 0 else 1.0) / (1.0 + small)
        case "linear":
            return 1.0 - progress
        case "power":
            if not 0.0 < power < math.inf:
                raise ValueError(f"power is {power!r}; it is a finite number above 0")
            return float((1.0 - progress) ** power)
        case "constant":
            return 1.0
        case _:
            raise ValueError(f"decay is {decay!r}; use one of {', '.join(get_args(Decay))}")
