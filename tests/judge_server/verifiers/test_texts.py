"""`exact` and `contains`: plain text comparisons."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.verifiers.check import find, texts_equal
from judge_server.verifiers.notation import strip_markup
from judge_server.verifiers.worker import decide
from tests.judge_server.verifiers.checks import answered, check

ANY = st.text(st.characters())


@pytest.mark.parametrize(
    ("expected", "answer", "score"),
    [
        ("New York", "  new\n  york ", 1.0),
        ("New York", "NewYork", 0.0),
        ("Straße", "STRASSE", 1.0),
        ("18", "18.0", 0.0),
    ],
)
def test_exact_ignores_case_and_the_amount_of_white_space(expected, answer, score):
    assert decide(answered("exact", answer, expected=expected)).score == score


def test_exact_respects_case_when_requested():
    assert decide(answered("exact", "Ja", expected="ja", case_sensitive=True)).score == 0.0
    assert decide(answered("exact", "ja", expected="ja", case_sensitive=True)).score == 1.0


def test_exact_compares_with_the_final_answer_of_the_ground_truth():
    worked = "3 apples and 4 apples are 7 apples.\n#### 7"
    assert decide(answered("exact", "7", ground_truth=worked)).score == 1.0
    assert decide(answered("exact", "7", ground_truth="7")).score == 1.0


def test_exact_of_the_whole_response_compares_with_the_whole_ground_truth():
    truth = "Seven.\nA: 7"
    assert decide(check("exact", " Seven. A: 7", ground_truth=truth, of="response")).score == 1.0
    assert decide(check("exact", "7", ground_truth=truth, of="response")).score == 0.0


def test_a_response_without_a_final_answer_is_not_satisfied():
    for method in ("exact", "math", "numeric"):
        assert decide(check(method, "I cannot say.", ground_truth="7")).score == 0.0


def test_contains_needs_all_of_one_list_and_any_of_the_other():
    def score(text, **options):
        return decide(check("contains", text, **options)).score

    assert score("Salt and Pepper", all_of=["salt", "pepper"]) == 1.0
    assert score("salt", all_of=["salt", "pepper"]) == 0.0
    assert score("pepper", any_of=["salt", "pepper"]) == 1.0
    assert score("pepper", all_of=["pepper"], any_of=["salt", "sugar"]) == 0.0
    assert score("Pepper", any_of=["pepper"], case_sensitive=True) == 0.0


@given(ANY, st.booleans())
def test_a_text_equals_itself_with_any_white_space(text, case_sensitive):
    assert texts_equal(text, text, case_sensitive=case_sensitive)
    assert texts_equal(f" {text}\n", "  ".join(text.split()), case_sensitive=case_sensitive)


@given(ANY, ANY)
def test_equality_is_symmetric_and_respecting_case_only_narrows_it(a, b):
    assert texts_equal(a, b, case_sensitive=False) == texts_equal(b, a, case_sensitive=False)
    assert texts_equal(a, b, case_sensitive=False) or not texts_equal(a, b, case_sensitive=True)


@given(ANY, ANY, ANY, st.booleans())
def test_an_inserted_text_is_found_at_its_place_or_earlier(before, needle, after, case_sensitive):
    text = before + needle + after
    for all_of, any_of in (([needle, before], []), ([needle], [before]), ([], [needle, "\0" + text])):
        place = find(text, all_of, any_of, case_sensitive=case_sensitive)
        assert place is not None
        assert 0 <= place <= len(before)
    assert find(text, [text + "\0"], [], case_sensitive=case_sensitive) is None


@given(st.text("sS ßﬃİi", max_size=8), st.text("sS ßﬃİi", min_size=1, max_size=3))
def test_the_place_found_is_right_whatever_the_case(text, needle):
    place = find(text, [needle], [], case_sensitive=False)
    folded = text.casefold()
    if needle.casefold() not in folded:
        assert place is None
        return
    at = folded.index(needle.casefold())
    assert len(text[:place].casefold()) <= at < len(text[: place + 1].casefold())


def test_the_place_is_that_of_the_first_text_of_all_of_or_else_the_earliest_of_any_of():
    def place(**options):
        options = {"all_of": [], "any_of": []} | options
        return find("one two three two", **options, case_sensitive=True)

    assert place(all_of=["two", "one"]) == 4
    assert place(any_of=["three", "two"]) == 4
    assert place(all_of=["three"], any_of=["one"]) == 8
    assert place(all_of=["two", "four"]) is None
    assert place(all_of=["two"], any_of=["four"]) is None


@given(ANY)
def test_stripping_markup_twice_changes_nothing(answer):
    assert strip_markup(strip_markup(answer)) == strip_markup(answer)


@pytest.mark.parametrize(
    "dress", ["${}$", r"\({}\)", r"\[ {} \]", "$${}$$", "**{}**", "`{}`", r"\boxed{{{}}}", " {}. "]
)
def test_an_answer_is_the_same_in_any_markup(dress):
    assert strip_markup(dress.format("x + 1")) == "x + 1"
    assert strip_markup(dress.format(r"\(x + 1.\)")) == "x + 1"
