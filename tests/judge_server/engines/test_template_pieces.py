"""A rendered chat template is split at its marks, or not at all."""

import pytest

from judge_server.engines.common import split_at_marks


def test_the_pieces_are_the_text_before_between_and_after_the_marks() -> None:
    assert split_at_marks("head<s>middle<u>tail", "<s>", "<u>") == ["head", "middle", "tail"]
    assert split_at_marks("<s><u>", "<s>", "<u>") == ["", "", ""]


@pytest.mark.parametrize("text", ["", "<u>", "<s>", "<u><s>", "<s><s><u>", "<s><u><s>", "<s><u><u>", "<u><s><u>"])
def test_a_mark_that_is_missing_repeated_or_out_of_order_gives_no_pieces(text: str) -> None:
    assert split_at_marks(text, "<s>", "<u>") is None
