"""`math`: mathematical equality of answers, on the answers of MATH-500 and the labelled rollouts of GSM8K."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.verifiers.formulas import equal
from judge_server.verifiers.worker import decide
from tests.cases import each_case
from tests.hypothesis_examples import examples
from tests.judge_server.verifiers.checks import answered, check

ANSWERS = json.loads((Path(__file__).parent / "math500_answers.json").read_text())
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("dress", ["{}", " {}. ", "${}$", r"\({}\)", r"\[ {} \]", "**${}$**", r"$\boxed{{{}}}$"])
def test_every_answer_of_math500_equals_itself_in_any_markup(dress):
    assert [answer for answer in ANSWERS if not equal(answer, dress.format(answer))] == []


def test_every_answer_of_math500_equals_itself_with_another_fraction_command():
    assert [answer for answer in ANSWERS if not equal(answer, answer.replace(r"\frac", r"\dfrac"))] == []


@pytest.mark.parametrize("distance", [1, 7, 31])
def test_no_answer_of_math500_equals_another(distance):
    others = ANSWERS[distance:] + ANSWERS[:distance]
    same = {(a, b) for a, b in zip(ANSWERS, others, strict=True) if equal(a, b)}
    assert same - {("5", "x=5"), ("x=5", "5")} == set()


def test_the_labels_of_gsm8k_are_reproduced():
    labels = [json.loads(line) for line in (EXAMPLES / "gsm8k.labels.jsonl").read_text().splitlines()]
    groups = [json.loads(line) for line in (EXAMPLES / "gsm8k.jsonl").read_text().splitlines()]
    correct = {row["id"]: row["is_correct"] for row in labels}
    for group in groups:
        found = [decide(check("math", text, ground_truth=group["ground_truth"])).score for text in group["responses"]]
        assert found == [float(label) for label in correct[group["id"]]]


@each_case("expected", "answer")
def test_equal_mathematics_is_equal_however_it_is_written(expected, answer):
    assert equal(expected, answer)


@each_case("expected", "answer")
def test_different_mathematics_is_not_equal(expected, answer):
    assert not equal(expected, answer)


@each_case("expected", "answer")
def test_words_and_choices_are_compared_as_text(expected, answer):
    assert equal(expected, answer)


@pytest.mark.parametrize(
    ("expected", "answer"),
    [("east", "seat"), ("no", "on"), ("巴黎", "黎巴"), ("Paris", "Paris, Texas"), ("B", "A) B"), ("B", "Because of C")],
)
def test_words_are_never_read_as_products_of_their_letters(expected, answer):
    assert not equal(expected, answer)


@pytest.mark.parametrize("broken", [r"\frac{1", "1+", "="])
def test_an_unreadable_expected_answer_is_a_failure_that_says_so(broken):
    failed = decide(answered("math", "1", ground_truth=broken))
    assert failed.kind == "parse"
    assert f"the ground truth {broken!r} is not a whole formula" in failed.detail
    assert "the expected answer" in decide(answered("math", "1", expected=broken)).detail


@pytest.mark.parametrize("broken", [r"\frac{1", "1+", "="])
def test_an_unreadable_expected_answer_equals_itself(broken):
    assert equal(broken, f"${broken}$")


@each_case("ground_truth", "right", "wrong")
def test_the_outcome_depends_on_the_whole_answer(ground_truth, right, wrong):
    assert [decide(check("math", text, ground_truth=ground_truth)).score for text in (right, wrong)] == [1.0, 0.0]


def test_a_worked_ground_truth_is_compared_by_its_final_answer():
    assert decide(answered("math", "0.5", ground_truth=r"Halve it: \boxed{\frac{1}{2}}.")).score == 1.0


def test_a_whole_response_is_searched_for_its_answer_when_requested():
    assert decide(check("math", "So the answer is $x = 7$.", expected="7", of="response")).score == 1.0
    assert decide(check("math", "So the answer is $x = 8$.", expected="7", of="response")).score == 0.0


@settings(max_examples=examples(60))
@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_whole_numbers_are_equal_exactly_if_their_values_are(a, b):
    assert equal(str(a), f"${a}.0$")
    assert equal(str(a), str(b)) == (a == b)


@settings(max_examples=examples(60))
@given(st.text(max_size=40) | st.text(r"\frac{}()[]^_$0123456789xyz+-=,. ", max_size=15))
def test_no_answer_makes_the_comparison_raise(answer):
    equal("1/2", answer)
