"""Printed numbers stand for intervals, expressions are evaluated exactly, and wrong claims are flagged."""

from fractions import Fraction
from pathlib import Path

import pytest
from benchmarks.papers.claims import Claim, ClaimVerdict, judge, read_claims
from benchmarks.papers.expressions import Table, evaluate
from benchmarks.papers.numbers import RoundedNumber, exact, mean, printed
from benchmarks.papers.tables import row
from hypothesis import given
from hypothesis import strategies as st

TABLE = Table("Table 1", ("a", "b"), {"x": [printed("1.5"), printed("2.5")], "y": [printed("3.0"), printed("2.0")]})

FRACTIONS = st.decimals(-500, 500, places=4).map(Fraction)


def as_printed(value: Fraction, decimals: int) -> str:
    """A number as a paper would round it."""
    return f"{float(round(value, decimals)):.{decimals}f}"


@given(FRACTIONS, st.integers(1, 3))
def test_a_printed_number_bounds_all_values_that_round_to_it(value: Fraction, decimals: int) -> None:
    number = printed(as_printed(value, decimals))
    assert number.low <= value <= number.high
    assert number.high - number.low == Fraction(1, 10**decimals)


@given(st.lists(FRACTIONS, min_size=2, max_size=6))
def test_results_of_printed_numbers_bound_the_results_of_the_exact_ones(values: list[Fraction]) -> None:
    first, *others = [printed(as_printed(value, 2)) for value in values]
    own, *rest = values
    found = mean([first, *others]) - first * first
    assert found.low <= sum(values) / len(values) - own * own <= found.high
    if not any(number.low <= 0 <= number.high for number in others):
        quotient = first / others[0]
        assert quotient.low <= own / rest[0] <= quotient.high


@pytest.mark.parametrize(
    ("text", "value", "spread"),
    [
        ("1,234", 1234, 0),
        ("0", 0, 0),
        ("+14.3", Fraction("14.3"), Fraction("0.1")),
        ("–0.08", Fraction("-0.08"), Fraction("0.01")),
        ("98%", 98, 1),
        ("12K", 12000, 1000),
    ],
)
def test_integers_are_exact_and_decimals_percentages_and_thousands_are_rounded(
    text: str, value: Fraction, spread: Fraction
) -> None:
    number = printed(text)
    assert (number.value, number.high - number.low) == (value, spread)


def test_text_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a printed number"):
        printed("12 apples")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('mean(t["x"])', 2),
        ('sum(column(t, "a"))', Fraction("4.5")),
        ('t["x"][1] - t["y"][1]', Fraction("0.5")),
        ('count(t["x"] < t["y"])', 1),
        ('leads(t["y"], t["x"])', 1),
        ("100 * 350 / (1012 + 916)", Fraction(35000, 1928)),
        ("modulo(2004 * 2005 / 2 - 1000, 11)", 4),
        ("weighted([1, 2], [3, 1])", Fraction(5, 4)),
        ("median([1, 2], [1, 1])", Fraction(3, 2)),
        ("deviation([0, 2], [5, 5])", 1),
        ("attainable([33.3, 34.0], 3)", 1),
    ],
)
def test_expressions_are_evaluated(text: str, value: Fraction) -> None:
    assert evaluate(text, {"t": TABLE}).value == value


def test_literals_in_expressions_are_printed_numbers() -> None:
    assert evaluate("3.50", {}) == printed("3.50")
    assert evaluate("-0.30", {}) == -printed("0.30")
    assert evaluate('"12K"', {}) == printed("12K")


@pytest.mark.parametrize(
    ("correlation", "size", "p"), [("0.91", 6, 0.0118), ("-0.31", 100, 0.0017), ("0.8114", 6, 0.05), ("0.0", 12, 1.0)]
)
def test_p_values_of_correlations_use_students_t(correlation: str, size: int, p: float) -> None:
    found = evaluate(f"p_value({correlation}, {size})", {})
    assert float(found.value) == pytest.approx(p, abs=5e-5)
    assert found.low <= found.value <= found.high


@pytest.mark.parametrize("text", ["__import__('os')", "t.rows", "lambda: 1", "2 ** 3", "eval('1')"])
def test_other_python_syntax_is_refused_in_expressions(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        evaluate(text, {"t": TABLE})


@pytest.mark.parametrize(
    ("says", "computed", "relation", "verdict"),
    [
        ("3.57", exact(Fraction("3.573")), "equal", ClaimVerdict.AGREES),
        ("3.57", exact(Fraction("3.58")), "equal", ClaimVerdict.DIFFERS),
        ("3.57", printed("3.58"), "equal", ClaimVerdict.DIFFERS),
        ("97.3", exact(Fraction("96.87")), "equal", ClaimVerdict.DIFFERS),
        ("0.9", RoundedNumber(Fraction("0.98"), Fraction("0.93"), Fraction("1.03")), "equal", ClaimVerdict.ROUNDING),
        ("1000", exact(997), "equal", ClaimVerdict.DIFFERS),
        ("1000", exact(1001), "more than", ClaimVerdict.AGREES),
        ("1000", exact(1000), "more than", ClaimVerdict.DIFFERS),
        ("1000", exact(1000), "at least", ClaimVerdict.AGREES),
        ("1000", exact(999), "less than", ClaimVerdict.AGREES),
        ("10K", exact(10574), "about", ClaimVerdict.AGREES),
        ("10K", exact(11574), "about", ClaimVerdict.DIFFERS),
        ("12", exact(8), "unclear", ClaimVerdict.UNKNOWN),
        ("12", None, "equal", ClaimVerdict.UNKNOWN),
    ],
)
def test_verdicts(says: str, computed: RoundedNumber | None, relation: str, verdict: ClaimVerdict) -> None:
    assert judge(printed(says), computed, relation).verdict is verdict  # type: ignore[arg-type]


def test_a_wrong_claim_is_flagged_with_its_difference() -> None:
    claim = Claim("paper", "Table 1", "the sum", printed("4.7"), printed("4.52"))
    assert row(claim)["verdict"] == "differs by -0.18"


def test_the_worst_of_several_numbers_decides_and_differing_ones_are_counted() -> None:
    says, computed = [printed("1.0"), printed("2.0")], [printed("1.0"), printed("2.5")]
    claim = Claim("paper", "Table 1", "both", says, computed)
    assert claim.verdict is ClaimVerdict.DIFFERS
    assert row(claim)["verdict"] == "differs by +0.5 (1 of 2)"


def test_a_claim_whose_printed_number_is_lost_cannot_be_told() -> None:
    shown = row(Claim("paper", "Table 2", "times faster", None, printed("3.0")))
    assert (shown["says"], shown["computed"], shown["verdict"]) == ("lost", "3.0", "cannot be told")


def test_a_data_file_gives_a_claim_per_row_and_bracketed_values(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        paper = "Some paper"
        [tables.t]
        where = "Table 1"
        columns = "a b"
        rows = { "Initial" = "1.0 2.0", "Ours" = "1.5 (+0.5) 2.1 (+0.2)" }
        [[claims]]
        each = "t_gains"
        where = "Table 1"
        claim = "{row}: gains"
        says = 't_gains["{row}"]'
        is = 't["{row}"] - t["Initial"]'
        """,
    )
    (claim,) = read_claims(tmp_path)
    assert (claim.paper, claim.claim) == ("Some paper", "Ours: gains")
    assert [judged.verdict for judged in claim.judged] == [ClaimVerdict.AGREES, ClaimVerdict.ROUNDING]


@pytest.mark.parametrize("entry", ["is = 't[\"none\"]'", "is = '[1.0, 2.0]'\nsays = '[1.0]'", "is = '1 / 0'"])
def test_a_claim_that_cannot_be_computed_is_named_in_the_error(tmp_path: Path, entry: str) -> None:
    write(tmp_path, f'paper = "p"\n[[claims]]\nwhere = "w"\nclaim = "the odd one"\n{entry}')
    with pytest.raises(ValueError, match=r"claims\.toml, 'the odd one'"):
        read_claims(tmp_path)


def write(folder: Path, text: str) -> None:
    """A paper's data file."""
    (folder / "paper").mkdir()
    (folder / "paper/claims.toml").write_text(text, encoding="utf-8")
