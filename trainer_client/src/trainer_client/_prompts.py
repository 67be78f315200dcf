"""Writes criteria down as points, and puts a text below a prompt that is a text or a chat.

In what words a model is told of them is not decided here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainer_client.wire.criteria import Criterion

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
