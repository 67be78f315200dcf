"""SRaR's tagged lines."""

import pytest

from rubric_store import FormatError, read_rubric

RUBRIC = """<SUGGEST> Adds the two equations.

<suggest>Divides by two.
  <Pitfall>\tForgets the negative root.\r
<BONUS> Checks the result by substitution, <b>in full</b>.
<ANSWER> Reports x = 4.
"""


def test_each_tag_becomes_a_kind_with_its_own_numbering() -> None:
    criteria = read_rubric(RUBRIC).criteria
    assert [(c.id, c.kind, c.description) for c in criteria] == [
        ("s1", "suggest", "Adds the two equations."),
        ("s2", "suggest", "Divides by two."),
        ("p1", "pitfall", "Forgets the negative root."),
        ("b1", "bonus", "Checks the result by substitution, <b>in full</b>."),
        ("a1", "answer", "Reports x = 4."),
    ]
    assert {c.weight for c in criteria} == {1.0}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Just a remark.", "line 3: no tag; expected <SUGGEST>, <PITFALL>, <BONUS> or <ANSWER>"),
        ("SUGGEST> Adds.", "line 3: no tag"),
        ("<HINT> Adds.", "line 3: unknown tag <HINT>; expected <SUGGEST>"),
        ("</SUGGEST>", "line 3: no tag"),
        ("<ANSWER>", "line 3: after the tag: .*at least 1 character"),
        ("<ANSWER> " + "x" * 20_001, "line 3: after the tag: .*at most 20000"),
    ],
)
def test_a_malformed_line_is_an_error_with_its_number(line: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_rubric(f"<SUGGEST> Adds.\n\n{line}\n<ANSWER> Four.")


def test_too_many_criteria_are_refused() -> None:
    with pytest.raises(FormatError, match=r"criteria: .*at most 512"):
        read_rubric("<SUGGEST> Adds.\n" * 513)
