"""A grounding is cut to its budget at the end of a sentence, or as close to it as the text allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.judging.presentation import fit_grounding

pieces = st.one_of(
    st.sampled_from(
        [
            "One. ",
            "Two words! ",
            "Is it?) ",
            'He said "no." ',
            "1. ",
            "\n\n",
            " \n \n",
            "\n",
            "3.5",
            "...",
            "e.g. ",
        ]
    ),
    st.sampled_from(["你好。", "真的？」", "再见！", "e\u0301", "\u200d", "👍\U0001f3fd", "\ud83d\ude00"]),
    st.text(max_size=6),
)
texts = st.lists(pieces, max_size=30).map("".join)
budgets = st.integers(0, 120)


def fit(text: str, budget: int | None) -> str:
    return fit_grounding(text, budget)[0]


@pytest.mark.parametrize(
    ("text", "budget", "shown"),
    [
        ("One two. Three four.", 12, "One two."),
        ("One two. Three four.", 8, "One two."),
        ("One two! Three four.", 12, "One two!"),
        ("One two?! Three four.", 12, "One two?!"),
        ("One two… Three four.", 12, "One two…"),
        ("One two...\nThree four.", 14, "One two..."),
        ("He said “no.” Then he went.", 20, "He said “no.”"),
        ("(It is so.) And this is too.", 15, "(It is so.)"),
        ('"Is it?" he asked her.', 15, '"Is it?"'),
        ("A heading of words\n\nThen a sentence.", 30, "A heading of words"),
        ("A heading of words \n \nThen a sentence.", 30, "A heading of words"),
        ("今天很好。明天也很好。", 8, "今天很好。"),
        ("他说：「很好。」明天也很好。", 10, "他说：「很好。」"),
        ("真的吗？！是的，真的是。", 8, "真的吗？！"),
        ("क्या हाल है। सब ठीक है।", 16, "क्या हाल है।"),
    ],
)
def test_a_grounding_ends_with_the_last_sentence_or_paragraph_within_the_budget(
    text: str, budget: int, shown: str
) -> None:
    assert fit_grounding(text, budget) == (shown, len(text) - len(shown))


@pytest.mark.parametrize(
    ("text", "budget", "shown"),
    [
        ("It cost 3.5 million in all.", 12, "It cost 3.5"),
        ("One is so.\n2. Two is so too.", 14, "One is so."),
        ("One is so.\n12. Two is so too.", 15, "One is so."),
        ("One is so.\nb. Two is so too.", 14, "One is so."),
        ("A line of a table\nanother line", 20, "A line of a table"),
        ("It ends here.” And goes on.", 13, "It ends"),
    ],
)
def test_text_that_only_resembles_the_end_of_a_sentence_is_ignored(text: str, budget: int, shown: str) -> None:
    assert fit(text, budget) == shown


def test_a_grounding_ends_with_a_word_if_the_last_sentence_end_would_omit_more_than_half() -> None:
    text = "Short. Then a line that goes on and on without any end at all"
    assert fit(text, 12) == "Short."
    assert fit(text, 13) == "Short. Then a"
    assert fit("He says 你好。" + "x" * 40, 30) == "He says 你好。"


@pytest.mark.parametrize(
    ("text", "budget", "shown"),
    [
        ("abcdefghij", 4, "abcd"),
        ("abce\u0301\u0302fg", 5, "abc"),
        ("ab👍\U0001f3fdcd", 3, "ab"),
        ("ab👩\N{ZERO WIDTH JOINER}🔬cd", 4, "ab"),
        ("ab\ud83d\ude00cd", 3, "ab"),
        ("e" + "\u0301" * 9, 4, "e" + "\u0301" * 3),
    ],
)
def test_a_text_without_words_ends_before_a_character_that_would_be_split(text: str, budget: int, shown: str) -> None:
    assert fit(text, budget) == shown


@given(texts)
def test_a_text_within_its_budget_is_shown_whole(text: str) -> None:
    assert fit_grounding(text, None) == fit_grounding(text, len(text)) == (text, 0)


@given(texts, budgets)
def test_the_beginning_within_the_budget_is_shown_and_the_rest_is_counted(text: str, budget: int) -> None:
    shown, omitted = fit_grounding(text, budget)
    assert text.startswith(shown)
    assert len(shown) <= budget
    assert omitted == len(text) - len(shown)


@given(texts, budgets)
def test_a_cut_grounding_is_not_cut_again(text: str, budget: int) -> None:
    shown = fit(text, budget)
    assert fit_grounding(shown, budget) == (shown, 0)


@given(texts, budgets, budgets)
def test_a_larger_budget_never_shows_less(text: str, one: int, other: int) -> None:
    assert len(fit(text, min(one, other))) <= len(fit(text, max(one, other)))


@given(texts, st.integers(1, 120))
def test_a_positive_budget_always_shows_some_text(text: str, budget: int) -> None:
    assert fit(text, budget) or not text
