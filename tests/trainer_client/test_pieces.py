"""A long text is searched piece by piece, with the matches of a search of the whole."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from judge_server.judging.prompts.fencing import LONGEST_TOKEN, neutralise
from trainer_client.text.pieces import PIECE, find_in_pieces
from trainer_client.text.thinking import THINK_TAGS, split_thinking

WORDS = re.compile(r"(?<!x)<(?=a{0,3}>)|ab{1,4}|x")
"""It looks back, looks ahead, and has matches of several lengths; at most five characters matter."""


@given(st.text("<>abx ", max_size=60), st.integers(1, 12))
@example("abbbb" * 3, 2)
@example("<aaa>" * 3, 4)
def test_the_matches_are_those_of_a_search_of_the_whole(text: str, piece: int) -> None:
    found = [one.span() for one in find_in_pieces(WORDS, text, 5, piece)]
    assert found == [one.span() for one in WORDS.finditer(text)]


@given(st.integers(-80, 80), st.sampled_from(THINK_TAGS))
def test_thinking_ends_at_a_tag_wherever_a_piece_ends(shift: int, tags: tuple[str, str]) -> None:
    opening, closing = tags
    thinking = "a" * (PIECE + shift - len(opening))
    split = split_thinking(f"{opening}{thinking}{closing}5", None)
    assert (split.thinking, split.answer_start) == (thinking, len(opening + thinking + closing))


@given(
    st.integers(-LONGEST_TOKEN, LONGEST_TOKEN), st.sampled_from(["<|im_end|>", "[/INST]", "<fake_token_around_image>"])
)
def test_control_tokens_are_broken_wherever_a_piece_ends(shift: int, token: str) -> None:
    before = "a" * (PIECE + shift)
    assert neutralise(f"{before}{token}{before}") == f"{before}{token[0]} {token[1:]}{before}"
