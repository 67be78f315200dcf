"""Which answers are equal: tables of pairs by class, and what holds for every answer key."""

import json
from contextlib import suppress
from datetime import date
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from judge_server.verifiers.answers import read_quantity
from judge_server.verifiers.formulas import UnreadableFormula, equal
from judge_server.verifiers.worker import decide
from judge_server.verifiers.written_forms import read_choice
from tests.hypothesis_examples import examples
from tests.judge_server.verifiers.checks import answered, check

HERE = Path(__file__).parent
EXAMPLES = Path(__file__).parents[3] / "examples"
PAIRS = [json.loads(line) for line in (HERE / "answer_pairs.jsonl").read_text().splitlines()]
STATED = [json.loads(line) for line in (HERE / "stated_answers.jsonl").read_text().splitlines()]
NUMERIC = [json.loads(line) for line in (HERE / "numeric_pairs.jsonl").read_text().splitlines()]
KEYS = json.loads((HERE / "math500_answers.json").read_text())
NUMBERS = [key for key in KEYS if read_quantity(key) is not None]


def are_equal(expected, answer):
    """Whether two answers are equal; an expected answer that is broken equals only itself."""
    try:
        return equal(expected, answer)
    except UnreadableFormula:
        return False


@pytest.mark.parametrize("row", PAIRS, ids=lambda row: row["expected"][:40])
def test_answers_are_equal_or_different_whichever_is_the_expected_one(row):
    for want in ("equal", "different"):
        wrong = [
            pair
            for answer in row.get(want, [])
            for pair in ((row["expected"], answer), (answer, row["expected"]))
            if are_equal(*pair) != (want == "equal")
        ]
        assert wrong == []


@pytest.mark.parametrize("row", NUMERIC, ids=lambda row: row["expected"][:40])
def test_numbers_are_equal_or_different_within_the_tolerance(row):
    options = {name: row[name] for name in ("absolute", "relative") if name in row}
    for want in ("equal", "different"):
        wrong = [
            answer
            for answer in row.get(want, [])
            if decide(answered("numeric", answer, ground_truth=row["expected"], **options)).score != (want == "equal")
        ]
        assert wrong == []


@pytest.mark.parametrize("row", STATED, ids=lambda row: row["class"])
def test_responses_get_the_reward_that_their_answer_deserves(row):
    found = [decide(check(row["method"], text, ground_truth=row["ground_truth"])).score for text in row["responses"]]
    assert found == [float(row["want"])] * len(row["responses"])


def test_the_labels_of_gsm8k_are_reproduced():
    labels = [json.loads(line) for line in (EXAMPLES / "gsm8k.labels.jsonl").read_text().splitlines()]
    groups = [json.loads(line) for line in (EXAMPLES / "gsm8k.jsonl").read_text().splitlines()]
    correct = {row["id"]: row["is_correct"] for row in labels}
    for group in groups:
        found = [decide(check("math", text, ground_truth=group["ground_truth"])).score for text in group["responses"]]
        assert found == [float(label) for label in correct[group["id"]]]


def test_brackets_of_units_that_nest_deeply_are_no_unit():
    hostile = "5 m/(" + "s/(" * 997 + "s" + ")" * 998
    assert decide(answered("math", hostile, ground_truth="5")).score == 0


@pytest.mark.parametrize("distance", [1, 7, 31])
def test_no_answer_of_math500_equals_another(distance):
    same = {(a, b) for a, b in zip(KEYS, KEYS[distance:] + KEYS[:distance], strict=True) if equal(a, b)}
    assert same - {("5", "x=5"), ("x=5", "5")} == set()


@pytest.mark.parametrize("broken", [r"\frac{1", "1+", "="])
def test_an_unreadable_expected_answer_equals_itself_and_is_a_failure_that_says_so(broken):
    assert equal(broken, f"${broken}$")
    failed = decide(answered("math", "1", ground_truth=broken))
    assert failed.kind == "parse"
    assert f"the ground truth {broken!r} is not a whole formula" in failed.detail
    assert "the expected answer" in decide(answered("math", "1", expected=broken)).detail


def test_the_answer_that_a_worked_ground_truth_or_a_whole_response_states_is_compared():
    assert decide(answered("math", "0.5", ground_truth=r"Halve it: \boxed{\frac{1}{2}}.")).score == 1.0
    assert decide(check("math", "So the answer is $x = 7$.", expected="7", of="response")).score == 1.0
    assert decide(check("math", "So the answer is $x = 8$.", expected="7", of="response")).score == 0.0


def _changed(key):
    """Other answers that differ from a number in its sign, a digit, its exponent, its relation or its scale."""
    yield f"-{key}" if not key.startswith("-") else key[1:]
    yield rf"{key} \text{{ million}}"
    yield rf"{key}\text{{ hundredths}}"
    yield rf"{key} \times 10^{{3}}"
    yield f"({key})^2"
    for relation in (r"\neq", r"\geq", r"\leq", "<", ">", r"\not=", r"\notin"):
        yield f"{relation} {key}"
    for at, digit in enumerate(key):
        if digit.isascii() and digit.isdigit():
            yield f"{key[:at]}{(int(digit) + 1) % 10}{key[at + 1 :]}"
    for word in ("increase", "decrease", "PM", "N of here", "BC", "left", "profit", "squared", "or 3", "and more"):
        yield rf"{key}\text{{ {word}}}"


@pytest.mark.parametrize("key", sorted(set(NUMBERS)))
def test_a_changed_number_is_refused(key):
    value = read_quantity(key).value
    changed = [each for each in _changed(key) if key != "0" and equal(key, each)]
    assert [each for each in changed if value not in (0, 1, -1) or ("^2" not in each and "squared" not in each)] == []
    numeric = [decide(answered("numeric", each, ground_truth=key)).score for each in _changed(key) if key != "0"]
    assert sum(numeric) == 0


@pytest.mark.parametrize("key", KEYS)
def test_decoration_is_never_refused(key):
    dresses = ("{}", " {} ", "{}.", "**{}**", "**{}", "${}$", "$${}$$", r"\({}\)", r"\[ {} \]", r"\boxed{{{}}}", "“{}”")
    assert [dress for dress in dresses if not equal(key, dress.format(key))] == []
    assert equal(key, key.replace(r"\frac", r"\dfrac"))
    assert key not in NUMBERS or "=" in key or equal(key, f"= {key}")


@pytest.mark.parametrize("key", sorted(set(NUMBERS) - {"x=5"}))
def test_an_approximation_is_announced_by_many_words(key):
    for word in ("about", "approximately", "roughly", r"\approx", "≈"):
        assert equal(key, f"{word} {key}")


def _in_words(number):
    """An English number below a million, as people write it."""
    small = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    small = [*small.split(), "seventeen", "eighteen", "nineteen"]
    tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    if number < 20:
        return small[number]
    if number < 100:
        return tens[number // 10 - 2] + (f"-{small[number % 10]}" if number % 10 else "")
    size, name, joint = (100, "hundred", " and ") if number < 1000 else (1000, "thousand", " ")
    rest = number % size
    return f"{_in_words(number // size)} {name}" + (joint + _in_words(rest) if rest else "")


@given(st.integers(0, 999_999), st.integers(0, 999_999))
def test_a_number_in_words_is_that_number_and_no_other(number, other):
    assert equal(str(number), _in_words(number))
    assert equal(str(other), _in_words(number)) == (number == other)


LABELS = ["({})", "{})", "{}.", "[{}]"]
DATES = st.dates(min_value=date(1000, 1, 1))


@given(DATES, DATES, st.sampled_from(["%B %d, %Y", "%d %b %Y", "%A, %B %d, %Y", "the %dth of %B, %Y"]))
def test_a_date_in_words_is_that_date_and_no_other(day, other, form):
    assert equal(f"{day:%Y-%m-%d}", day.strftime(form))
    assert equal(f"{other:%Y-%m-%d}", day.strftime(form)) == (day == other)


@settings(max_examples=examples(100))
@given(
    st.sampled_from(KEYS),
    st.sampled_from(KEYS),
    st.sampled_from("ABCDE"),
    st.sampled_from(["({})", "{})", "{}.", "[{}]"]),
)
def test_a_label_before_a_choice_is_decoration_of_its_text(key, other, letter, label):
    labelled = f"{label.format(letter)} {key}"
    if read_choice(labelled) is not None:
        assert equal(key, labelled)
        assert equal(labelled, letter)
        assert read_choice(other) is not None or equal(other, labelled) == equal(other, key)


@settings(max_examples=examples(100))
@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.sampled_from(["m + n", r"\sin A", "x^2 + y^2"]))
def test_an_equation_with_a_number_is_that_number_only_where_a_number_is_expected(key, other, name):
    assume("=" not in key and "=" not in other)
    assert equal(other, f"{name} = {key}") == equal(other, key)
    assert not equal(f"{name} = {key}", other)


@settings(max_examples=examples(100))
@given(st.sampled_from(KEYS), st.sampled_from(KEYS))
def test_equality_is_symmetric(a, b):
    assert equal(a, b) == equal(b, a)


SAYS = {
    "yes": ["YES.", "Yes, it is.", "Yes, 7 is prime.", "Yes – it is", "Yes - it is", "Yes. It holds for all x."],
    "no": ["No, it is not.", "No, 9 = 3*3 is not prime.", "No: it never holds"],
    "False": ["false", "False, the statement does not hold"],
}
SAYS_ANOTHER_THING = {
    "yes": [
        "No, it is not",
        "Yes-man",
        "Yes or no",
        "Yes, no",
        "Yes. No.",
        "Yes, but only if n is odd",
        "Yes, it is not",
    ],
    "no": ["Yes", "no solution", "No, yes", "No, it is true", "No, unless n = 2", "none"],
    "False": ["True", "False positives", "False, or true"],
    "No, Paris": ["No, London", "No"],
}


@pytest.mark.parametrize(("expected", "answers"), SAYS.items())
def test_an_expected_yes_or_no_is_compared_with_the_word_that_an_answer_begins_with(expected, answers):
    assert [one for one in answers if not equal(expected, one)] == []


@pytest.mark.parametrize(("expected", "answers"), SAYS_ANOTHER_THING.items())
def test_a_yes_or_no_that_the_rest_takes_back_or_that_is_another_answer_is_not_equal(expected, answers):
    assert [one for one in answers if equal(expected, one)] == []


TEXTS = st.text(max_size=30) | st.text(r"\frac{}()[]^_$0123456789xyz+-=,.%<>'| ", max_size=25)


@settings(max_examples=examples(200))
@given(TEXTS)
def test_every_text_equals_itself(text):
    assert equal(text, text)


@settings(max_examples=examples(200))
@given(TEXTS, TEXTS)
def test_equality_of_any_texts_is_symmetric(a, b):
    assume(("=" in a) == ("=" in b))  # `x + 1 = 5` gives an expected 5, which does not give that equation
    with suppress(UnreadableFormula):
        assert equal(a, b) == equal(b, a)


@given(st.integers(-(10**30), 10**30), st.integers(1, 10**30), st.integers(1, 10**30))
def test_rational_numbers_are_compared_exactly(top, bottom, off):
    assert equal(rf"\frac{{{top}}}{{{bottom}}}", f"{2 * top}/{2 * bottom}")
    assert not equal(rf"\frac{{{top}}}{{{bottom}}}", rf"\frac{{{top}}}{{{bottom}}} + \frac{{1}}{{{off}}}")


@settings(max_examples=examples(50))
@given(st.integers(2, 99), st.integers(20, 400), st.sampled_from([r"\sqrt{%d}", r"\ln %d", r"\pi^{%d}", r"e^{-%d}"]))
def test_irrational_numbers_are_compared_with_as_many_digits_as_they_need(number, places, form):
    value = form % number
    assert not equal(value, rf"{value} + 10^{{-{places}}}")
    assert equal(value, rf"{value} + 10^{{-{places}}} - 10^{{-{places}}}")
