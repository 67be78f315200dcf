"""Why something a model made is thrown away: a closed list of reasons, so that they can be counted.

A discard is a finding about what was written, and stands: the same input is not tried again. An engine that gave no
answer is no discard (`judge_server.generation.writer.WriterFailed`).
"""

from typing import Literal, get_args

DiscardReason = Literal[
    "unreadable",
    "wrong_shape",
    "cut_short",
    "too_long",
    "empty_source",
    "too_few",
    "too_many",
    "empty_criterion",
    "unknown_kind",
    "duplicate_criteria",
    "bad_weight",
    "leaks_reference",
    "wrong_reference_answer",
    "not_satisfied_by_reference",
    "not_self_contained",
    "no_contrast",
    "invalid_rubric",
]
"""
- `unreadable`: no JSON in what was written, or no answer on offer; `shape_error`: JSON that is not what was asked for;
  `cut_short`: the text ended at its limit of tokens.
- `context_overflow`: the prompt does not fit the model's context; `empty_source`: there is nothing to make a rubric from.
- `too_few`, `too_many`: the number of criteria; `duplicate_criteria`: two of them say the same.
- `empty_criterion`: one of them says nothing; `unknown_kind`: one is of a kind that the method has not.
- `bad_weight`: a weight outside the method's range, or none above zero.
- `leaks_reference`: a criterion gives away the reference answer.
- `wrong_reference_answer`: the reference answer that was written does not agree with the ground truth.
- `not_satisfied_by_reference`: the reference answer does not satisfy what is left.
- `not_self_contained`: a question or a criterion needs a text that its reader does not have.
- `no_contrast`: there is nothing to tell good from bad by.
- `invalid_rubric`: no rubric that could be published, for another reason.
"""

DISCARD_REASONS: tuple[DiscardReason, ...] = get_args(DiscardReason)


class RubricDiscarded(Exception):
    """What was made of an input is no rubric. `detail` says in a sentence what was wrong with it."""

    def __init__(self, reason: DiscardReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
