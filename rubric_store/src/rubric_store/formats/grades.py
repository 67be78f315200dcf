"""Graded criteria: levels with values and texts as a `scale` and a scoring guide.

A criterion's grades are 0..scale, and its score is grade / scale. Levels on another scale are placed on the smallest
one that holds them.
"""

from collections.abc import Sequence
from typing import Any

_MAX_SCALE = 100
_TOLERANCE = 0.005
"""How far a score may move, so that 0.33 and 0.67 are thirds."""


def graded_fields(
    levels: Sequence[tuple[float, str]], low: float, high: float, *, not_applicable: str | None = None, avoided: bool
) -> tuple[dict[str, Any], list[str]]:
    """Fields of a graded criterion, and what they do not keep.

    Args:
        levels: the value and the text of each level that is described, in any order.
        low: the value whose score is 0.
        high: the value whose score is 1.
        not_applicable: the text of an option for responses that the criterion does not concern.
        avoided: whether a good response gets a low grade.

    Raises:
        ValueError: no scale of at most 100 holds the levels.
    """
    if not low < high:
        raise ValueError(f"its lowest level is {low:g} and its highest {high:g}; it needs two different ones")
    shares = [(value - low) / (high - low) for value, _ in levels]
    scale = next((n for n in range(1, _MAX_SCALE + 1) if _fits(shares, n)), None)
    if scale is None or not all(0 <= share <= 1 for share in shares):
        given = ", ".join(f"{value:g}" for value, _ in levels)
        raise ValueError(f"no scale from 0 to at most {_MAX_SCALE} has the levels {given[:100]}")
    texts: dict[int, list[str]] = {}
    for share, (_, text) in zip(shares, levels, strict=True):
        texts.setdefault(round(share * scale), []).append(" ".join(text.split()))
    lines = [f"{grade}: {' / or: '.join(one)}" for grade, one in sorted(texts.items())]
    changes = [f"judge it with the protocol graded: its levels are the grades 0 to {scale}"]
    moved = [
        f"{value:g} becomes {round(share * scale)}/{scale}"
        for share, (value, _) in zip(shares, levels, strict=True)
        if abs(share - round(share * scale) / scale) > 1e-9
    ]
    if moved:
        changes.append(f"scores are rounded to the scale: {', '.join(moved)}")
    if not_applicable is not None:
        grade = 0 if avoided else scale
        lines.append(f"Does not apply ({' '.join(not_applicable.split())}): give {grade}.")
        changes.append(
            f"grades have no {not_applicable!r}: the guide asks for {grade}, so such a response is not excluded from "
            "the mean but loses nothing"
        )
    return {"scale": scale, "scoring_guide": "\n".join(lines)}, changes


def _fits(shares: Sequence[float], scale: int) -> bool:
    """Whether each share is near a grade, and different shares have different grades."""
    if any(abs(share - round(share * scale) / scale) > _TOLERANCE for share in shares):
        return False
    return len({round(share * scale) for share in shares}) == len(set(shares))
