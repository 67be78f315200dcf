"""`numeric`: which texts are read as one number, and how tolerances apply."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from judge_server.verifiers.answers import read_quantity, within_tolerance
from judge_server.verifiers.worker import decide
from tests.cases import each_case
from tests.judge_server.verifiers.checks import answered, check

FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100)
TOLERANCE = st.floats(min_value=0, max_value=1e100)


@each_case("text", "value")
def test_a_number_is_read_as_people_write_it(text, value):
    assert read_quantity(text).value == Fraction(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a few",
        "12 or 13",
        "12, 13",
        "1,2,3",
        "1.2.3",
        "0 123",
        "1 + 1",
        r"2\pi",
        "2 pi",
        "2x",
        "5xy",
        "5i",
        "1/0",
        "5 or more",
        r"\frac{1}{2}5",
        r"2\text{3}",
        r"2\,3",
        "2^{10}",
        r"\sqrt{2}",
        "NaN",
        "inf",
        "1e9999",
        "9" * 300,
    ],
)
def test_a_text_that_needs_arithmetic_or_guessing_is_not_a_number(text):
    assert read_quantity(text) is None


def test_percent_is_read_as_a_number_and_as_a_fraction():
    for expected in (12, 0.12):
        assert decide(answered("numeric", "12%", expected=expected)).score == 1.0
        assert decide(answered("numeric", r"12\%", expected=expected)).score == 1.0
    assert decide(answered("numeric", "12", expected=0.12)).score == 0.0
    assert decide(answered("numeric", "0.12", ground_truth="12%")).score == 1.0


def test_tolerances_are_added_and_bounds_are_included():
    def score(answer, **options):
        return decide(answered("numeric", answer, **options)).score

    assert score("0.3", expected=0.1, absolute=0.2) == 1.0
    assert score("0.31", expected=0.1, absolute=0.2) == 0.0
    assert score("110", expected=100, absolute=0, relative=0.1) == 1.0
    assert score("111", expected=100, absolute=1, relative=0.1) == 1.0
    assert score("-111", expected=-100, absolute=0, relative=0.1) == 0.0


def test_the_number_is_taken_from_the_final_answer_unless_the_whole_response_is_requested():
    assert decide(check("numeric", "First 3.\nA: 18 dollars", ground_truth="It is 18.\n#### 18")).score == 1.0
    assert decide(check("numeric", " 18 ", expected=18, of="response")).score == 1.0
    assert decide(check("numeric", "It is 18", expected=18, of="response")).score == 0.0
    assert decide(check("numeric", "Final answer: It is 18 dollars.", expected=18)).score == 1.0
    assert decide(check("numeric", "Final answer: It is 17 or 18.", expected=18)).score == 0.0


def test_a_ground_truth_that_is_not_a_number_is_a_failure_that_says_so():
    failed = decide(answered("numeric", "18", ground_truth="eighteenth"))
    assert failed.kind == "parse"
    assert "the ground truth 'eighteenth' is not a number" in failed.detail


def test_large_whole_numbers_are_distinguished():
    assert decide(answered("numeric", str(2**80 + 1), ground_truth=str(2**80))).score == 0.0


@given(FINITE)
def test_a_printed_number_equals_itself_without_tolerance(number):
    assert decide(answered("numeric", repr(number), expected=number, absolute=0)).score == 1.0


@given(FINITE, FINITE, TOLERANCE)
def test_an_absolute_tolerance_is_symmetric(a, b, absolute):
    x, y = Fraction(repr(a)), Fraction(repr(b))
    assert within_tolerance(x, y, absolute=absolute, relative=0) == within_tolerance(
        y, x, absolute=absolute, relative=0
    )
    assert within_tolerance(x, y, absolute=absolute, relative=0) == within_tolerance(
        -x, -y, absolute=absolute, relative=0
    )


@given(FINITE, FINITE, TOLERANCE, TOLERANCE)
def test_more_tolerance_never_excludes_a_number(a, b, less, more):
    x, y = Fraction(repr(a)), Fraction(repr(b))
    less, more = sorted((less, more))
    assert within_tolerance(x, y, absolute=more, relative=0) or not within_tolerance(x, y, absolute=less, relative=0)
    assert within_tolerance(x, y, absolute=0, relative=more) or not within_tolerance(x, y, absolute=0, relative=less)


@given(st.text() | st.text("0123456789.,/%$e+- \\frac{}^", max_size=30))
@example("0.0/1")
@example("-1.5/0.25")
def test_any_text_is_read_without_error(text):
    quantity = read_quantity(text)
    if quantity is not None:
        assert read_quantity(f"{quantity.value.numerator}/{quantity.value.denominator}").value == quantity.value
