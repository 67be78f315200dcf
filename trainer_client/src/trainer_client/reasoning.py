"""Parts a response into its reasoning and its answer, as DRO does.

The policy's certainty of the reference answer is taken after the reasoning (`dro.reasoning_reflection_reward`), and
rubrics judge the answer (`dro.gate`). Computes no reward, and tokenises nothing: positions are Unicode code points.
"""

import operator
from collections.abc import Callable
from typing import NamedTuple

from trainer_client.final_answer import final_answer_line
from trainer_client.thinking import split_thinking

__all__ = ["ReasoningSplit", "SplitRule", "find_answer", "split_reasoning"]

SplitRule = Callable[[str], int | None]
"""Says where in a response its answer begins, in code points; None if it has no part of its own."""


class ReasoningSplit(NamedTuple):
    """The two parts of a response, and where its answer begins, in code points.

    The reasoning is all that stands before the answer, tags and space too, so that another answer can follow in its
    place: reasoning + answer is the response. Only where no answer was found apart is each of them the whole response,
    and the answer begins at 0.
    """

    reasoning: str
    answer: str
    answer_start: int


def find_answer(text: str) -> int | None:
    r"""Find where the answer begins: the default rule.

    After the last tag that closes a thinking block, and the space behind it (`thinking.split_thinking`); thinking that
    was cut off leaves an empty answer at the end. Without such tags, at the beginning of the last `Final answer` line,
    or else of the line with the last `\boxed{…}` (`final_answer.final_answer_line`). None if there is none of these.
    """
    return split_thinking(text).answer_start or final_answer_line(text)


def split_reasoning(text: str, *, rule: SplitRule = find_answer) -> ReasoningSplit:
    """Part a response into reasoning and answer (DRO, section 3.1).

    Where the rule finds no answer of its own, the whole text serves as both.

    Args:
        text: the response.
        rule: where its answer begins (ours: `find_answer`).

    Raises:
        ValueError: the rule gave no position in the text.
    """
    start = rule(text)
    if start is None:
        return ReasoningSplit(text, text, 0)
    start = operator.index(start)
    if not 0 <= start <= len(text):
        raise ValueError(
            f"the rule gave {start} for a text of {len(text)}; give a position in it, or None for no answer"
        )
    return ReasoningSplit(text[:start], text[start:], start)
