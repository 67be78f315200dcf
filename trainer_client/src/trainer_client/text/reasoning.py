"""Split a response into its reasoning and its answer, as DRO does.

DRO measures the policy's certainty of the reference answer after the reasoning (`dro.reasoning_reflection_reward`), and
lets rubrics judge the answer (`dro.gate`). Positions are Unicode code points.
"""

import operator
from collections.abc import Callable
from typing import NamedTuple

from trainer_client.text.final_answer import final_answer_line
from trainer_client.text.thinking import split_thinking

__all__ = ["ReasoningSplit", "SplitRule", "find_answer", "split_reasoning"]

SplitRule = Callable[[str], int | None]
"""Returns where the answer of a response begins, in code points; None if it has no separate answer."""


class ReasoningSplit(NamedTuple):
    """The two parts of a response, and where its answer begins, in code points.

    The reasoning is everything before the answer, including tags and whitespace, so that reasoning + answer is the
    response and another answer can replace its own. If no separate answer was found, both are the whole response, and
    the answer begins at 0.
    """

    reasoning: str
    answer: str
    answer_start: int


def find_answer(text: str) -> int | None:
    r"""Find where the answer begins, by the default rule.

    The answer begins after the last closing tag of a thinking block and the whitespace that follows it
    (`thinking.split_thinking`); after thinking that was cut off, it is empty. Without such tags, it begins with the
    last `Final answer` line, or else with the line of the last `\boxed{…}` (`final_answer.final_answer_line`). None if
    the text has none of these.
    """
    return split_thinking(text).answer_start or final_answer_line(text)


def split_reasoning(text: str, *, rule: SplitRule = find_answer) -> ReasoningSplit:
    """Split a response into reasoning and answer (DRO, section 3.1).

    If the rule finds no separate answer, both are the whole text.

    Args:
        text: the response.
        rule: finds where the answer begins (ours: `find_answer`).

    Raises:
        ValueError: the rule returned a position outside the text.
    """
    start = rule(text)
    if start is None:
        return ReasoningSplit(text, text, 0)
    start = operator.index(start)
    if not 0 <= start <= len(text):
        raise ValueError(
            f"the rule returned {start} for a text of {len(text)} characters; return a position in the text, or None"
        )
    return ReasoningSplit(text[:start], text[start:], start)
