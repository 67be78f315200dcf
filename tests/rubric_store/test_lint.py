"""What lint finds in rubrics, and what it accepts."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given, settings

from rubric_store.lint import System, lint, similarity
from tests.growth import assert_linear
from tests.hypothesis_examples import examples
from tests.rubric_store.examples import contents
from trainer_client.wire import Criterion, RubricContent


def criteria(*given: str | dict[str, Any]) -> list[Criterion]:
    """Criteria `a`, `b`… with these descriptions or fields."""
    fields = [{"description": one} if isinstance(one, str) else one for one in given]
    return [
        Criterion.model_validate({"id": "abcdefghijkl"[i], "description": TEXTS[i], **f}) for i, f in enumerate(fields)
    ]


TEXTS = [
    "Names the river under the bridge.",
    "Gives the year of opening.",
    "States the length in metres.",
    "Tells who built it.",
    "Mentions the toll.",
    "Counts its arches.",
    "Dates the last repair.",
    "Compares two photographs.",
    "Cites a newspaper.",
    "Quotes the mayor.",
    "Lists its closures.",
    "Calculates traffic per hour.",
]


def codes(*given: str | dict[str, Any], **options: Any) -> list[tuple[str, str | None]]:
    """The codes found, each with its criterion."""
    return [(finding.code, finding.criterion) for finding in lint(criteria(*given), **options)]


def test_a_plain_rubric_has_no_findings() -> None:
    assert codes(*TEXTS) == []


GOOD: dict[System, list[dict[str, Any]]] = {
    "rgr": [{"kind": "factual", "weight": 5}, {"kind": "process", "weight": 3}, {"kind": "process", "weight": 2}],
    "srar": [{"kind": "suggest"}, {"kind": "pitfall"}, {"kind": "answer"}],
    "grounded": [
        {
            "name": "x",
            "required_elements": ["x"],
            "scoring_guide": "x",
            "expected_keywords": ["x"],
            "expected_concepts": ["x"],
            "verification_method": "x",
        }
    ]
    * 5,
    "dro": [{"description": f"Does it tell who built arch {n}?"} for n in range(3)],
    "ruscarl": [{"weight": 10}, {"weight": -9}],
}


def test_a_srar_rubric_with_more_items_than_the_prompt_requests_is_a_warning() -> None:
    given = [{"kind": "suggest"}] * 8 + [{"kind": "answer"}]
    [found] = [one for one in lint(criteria(*given), system="srar") if one.code == "srar-count"]
    assert found.severity == "warning"


@pytest.mark.parametrize("system", get_args(System))
def test_a_good_rubric_of_a_system_has_no_findings(system: System) -> None:
    assert codes(*GOOD[system], system=system) == []
    assert codes(*GOOD[system]) == []


@pytest.mark.parametrize(
    ("system", "given", "found"),
    [
        ("rgr", GOOD["rgr"][:2], [("rgr-count", None)]),
        ("rgr", GOOD["rgr"][1:] * 6, [("rgr-count", None)]),
        ("rgr", [*GOOD["rgr"][:2], {"kind": "point"}], [("rgr-category", "c")]),
        ("rgr", [*GOOD["rgr"][:2], {"kind": "process", "weight": 1.5}], [("rgr-weight", "c")]),
        ("rgr", [*GOOD["rgr"][:2], {"kind": "process", "weight": 6}], [("rgr-weight", "c")]),
        ("srar", [{"kind": "suggest"}] * 8 + [{"kind": "answer"}], [("srar-count", None)]),
        ("srar", [{"kind": "suggest"}], [("srar-answer", None)]),
        ("srar", [{"kind": "suggest"}, {"kind": "answer"}, {"kind": "answer"}], [("srar-answer", None)]),
        ("srar", [{"kind": "bonus"}, {"kind": "answer"}], [("srar-suggest", None)]),
        ("srar", [*GOOD["srar"], {"kind": "point"}], [("srar-kind", "d")]),
        ("grounded", GOOD["grounded"][:4], [("grounded-count", None)]),
        ("grounded", GOOD["grounded"] * 2 + GOOD["grounded"][:1], [("grounded-count", None)]),
        ("grounded", [*GOOD["grounded"][:4], {}], [("grounded-fields", "e")]),
        ("grounded", [*GOOD["grounded"][:4], {**GOOD["grounded"][0], "weight": -1}], [("grounded-weight", "e")]),
        ("dro", [*GOOD["dro"], {"description": "Tells who."}], [("dro-question", "d")]),
        ("dro", [*GOOD["dro"], {"description": "Who built it?"}], [("dro-question", "d")]),
        ("dro", [*GOOD["dro"], {"description": "Is it new?", "weight": -1}], [("dro-sign", "d")]),
        ("ruscarl", [{"weight": 10}, {"weight": -11}, {"weight": 3}], [("ruscarl-points", "b")]),
    ],
)
def test_a_violation_of_a_systems_rules_is_found(
    system: System, given: list[dict[str, Any]], found: list[tuple[str, str | None]]
) -> None:
    assert [one for one in codes(*given, system=system) if one[0].startswith(system)] == found


@pytest.mark.parametrize("system", get_args(System))
def test_the_rules_of_a_system_are_off_unless_asked(system: System) -> None:
    bad = [{**GOOD[system][0], "weight": 99.5, "description": "Tells who built it."}]
    assert any(code.startswith(system) for code, _ in codes(*bad, system=system))
    assert not any(code.startswith(get_args(System)) for code, _ in codes(*bad))


def test_a_yes_or_no_question_may_begin_with_other_words() -> None:
    assert codes("In the table, is there a row for each arch?", system="dro") == []


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"description": "Matches the reference answer."}, "leans-on"),
        ({"description": "Meets all of the rubric."}, "leans-on"),
        ({"description": "Answers appropriately."}, "vague"),
        ({"description": "Is the motto suitable?"}, "vague"),
        ({"description": "Shows proper reasoning."}, "vague"),
        ({"description": "Names the cause and states the remedy."}, "double-barrelled"),
        ({"description": "Gives the year; lists the builders."}, "double-barrelled"),
        ({"description": "Does it name the cause and does it state the remedy?"}, "double-barrelled"),
        ({"description": "Avoids inventing a toll.", "weight": -3}, "good-penalised"),
        ({"description": "Avoids inventing a toll.", "kind": "pitfall"}, "good-penalised"),
        ({"description": "Does not mention the toll.", "weight": -3}, "negated-penalty"),
        ({"description": "The response never names the river.", "kind": "pitfall"}, "negated-penalty"),
        ({"weight": 0}, "weightless"),
        ({"weight": 20}, "outweighs"),
        ({"description": TEXTS[1]}, "duplicate"),
        ({"description": "gives the YEAR, of opening"}, "duplicate"),
        ({"description": "Gives the year of its opening day."}, "overlap"),
    ],
)
def test_general_problems_are_found_in_the_criterion_concerned(given: dict[str, Any], code: str) -> None:
    assert (code, "d") in codes(*TEXTS[:3], given, system="ruscarl", similarity_threshold=0.6)


@pytest.mark.parametrize(
    "given",
    [
        {"description": "Avoids inventing a toll."},
        {"description": "Does not mention the toll."},
        {"description": "Fails to mention the toll.", "weight": -1},
        {"description": "Says that good weather helped."},
        {"description": "Names suitable materials, such as granite or brick."},
        {"description": "Tells of a ferry (Justification: its lack is grave and makes the answer useless)."},
        {"description": "Plainly states and explains the toll."},
        {"description": "Names Adams and Baker."},
        {"description": "Is it about movies and shows?"},
        {"description": "Gives the year 1894 of opening."},
    ],
)
def test_texts_that_only_resemble_a_problem_are_accepted(given: dict[str, Any]) -> None:
    found = codes(
        "Gives the year 1893 of opening.", "Tells who built it.", given, system="ruscarl", similarity_threshold=0.6
    )
    assert found == []


def test_criteria_that_differ_in_a_number_do_not_overlap() -> None:
    text = "Tells that the stone bridge over the wide river opened in {} after heavy rain."
    assert codes(text.format(1893), text.format(1894), similarity_threshold=0.6) == []
    assert codes(text.format(1893), text.format("1893 or 1893"), similarity_threshold=0.6) == [("overlap", "b")]


@pytest.mark.parametrize(
    ("one", "other"), [("States x > 5.", "States x < 5."), ("Uses C++.", "Uses C."), ("Gets -5.", "Gets 5.")]
)
def test_criteria_that_differ_in_a_sign_are_no_duplicates(one: str, other: str) -> None:
    assert "duplicate" not in [code for code, _ in codes(one, other)]
    assert ("duplicate", "b") in codes(one, f"“{one.rstrip('.')}”;")


def test_rewarding_a_thing_and_punishing_its_absence_counts_twice() -> None:
    found = lint(
        criteria(
            "Names the river under the bridge.",
            {"description": "Fails to name the river under the bridge.", "weight": -1},
        )
    )
    assert "counts twice" in next(one.problem for one in found if one.code == "overlap")


def test_an_answer_given_away_is_found_in_every_criterion_but_the_answer() -> None:
    rubric = (
        {"kind": "suggest", "description": "Adds to 12."},
        {"kind": "suggest", "description": "Subtracts 2 to get 10."},
        {"kind": "suggest", "description": "Has 10.5 or 110 or 10x on the way."},
        {"kind": "answer", "description": "The final value equals 10."},
    )
    assert codes(*rubric) == [("gives-answer", "b")]
    assert codes(*rubric, answer="12") == [("gives-answer", "a")]
    checked = {**rubric[3], "verification": {"method": "numeric", "expected": 12.0}}
    assert codes(*rubric[:3], checked) == [("gives-answer", "a")]


@pytest.mark.parametrize("answer", ["1,000", "500", "1", "1,234.5"])
def test_an_answer_is_not_found_within_a_number_with_thousands(answer: str) -> None:
    final = {"kind": "answer", "description": f"The final value equals {answer}."}
    assert codes("Adds 3,000 and 2,500 and 1,222.", final) == []
    assert codes(f"Adds {answer}, not less.", final) == [("gives-answer", "a")]


def test_the_similarity_threshold_is_a_share() -> None:
    one, other = "Gives the year of opening.", "Gives the year of its opening day."
    alike = similarity(one, other)
    assert 0 < alike < 1
    assert ("overlap", "b") in codes(one, other, similarity_threshold=alike)
    assert codes(one, other, similarity_threshold=min(alike + 0.01, 1)) == []
    for wrong in (0, -1, 1.1):
        with pytest.raises(ValueError, match="must be above 0"):
            lint(criteria(*TEXTS), similarity_threshold=wrong)


@settings(max_examples=examples(60), deadline=None)
@given(contents)
def test_any_rubric_is_checked_and_each_finding_has_advice(content: RubricContent) -> None:
    ids = {None, *(one.id for one in content.criteria)}
    for system in (None, *get_args(System)):
        found = lint(content.criteria, system=system)
        assert all(one.criterion in ids and one.problem and one.advice for one in found)
        order = [("error", "warning", "note").index(one.severity) for one in found]
        assert order == sorted(order)


@settings(max_examples=examples(60))
@given(contents)
def test_similarity_is_symmetric_and_one_for_the_same_words(content: RubricContent) -> None:
    texts = [one.description for one in content.criteria]
    for one in texts:
        for other in texts:
            assert similarity(one, other) == similarity(other, one)
            assert 0 <= similarity(one, other) <= 1
    assert similarity("bridge river", "River, bridge!") == 1


def test_a_rubric_of_equal_criteria_has_no_finding_for_every_pair() -> None:
    many = [Criterion(id=f"c{n}", description="Names the river.") for n in range(512)]
    found = [one for one in lint(many) if one.code == "duplicate"]
    assert len(found) == 511
    assert all("criterion c0," in one.problem for one in found)


def test_a_criterion_is_said_to_overlap_with_three_others_at_most() -> None:
    ends = ("early", "late", "today", "here", "now", "twice", "soon", "there")
    many = [Criterion(id=end, description=f"Names the wide river under a stone bridge in town {end}.") for end in ends]
    found = [one for one in lint(many, similarity_threshold=0.5) if one.code == "overlap"]
    assert Counter(one.criterion for one in found) == Counter(dict(zip(ends, (0, 1, 2, 3, 3, 3, 3, 3), strict=True)))


def test_similar_criteria_are_found_among_very_long_ones() -> None:
    def description(first: int) -> str:
        return " ".join(f"word{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{n // 676}" for n in range(first, first + 1800))

    many = [Criterion(id=f"c{n}", description=description(n * 2000)) for n in range(100)]
    again = Criterion(id="again", description=description(7 * 2000 + 20))
    assert [(one.code, one.criterion) for one in lint([*many, again], similarity_threshold=0.7)] == [
        ("overlap", "again")
    ]


@pytest.mark.parametrize(
    "unit", ["states and states and ", "and/or ", "(note: ", "a; ", "1,1", "that whether ", "by ing"]
)
def test_lint_takes_time_linear_in_a_description(unit: str) -> None:
    def work(size: int) -> Callable[[], object]:
        text = (unit * size)[:size]
        return lambda: lint([Criterion.model_construct(id="a", description=text, weight=-1.0, kind="pitfall")])

    assert_linear(work, 40_000)


def test_lint_takes_time_linear_in_the_criteria_of_a_rubric_with_long_descriptions() -> None:
    words = [f"w{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)}" for n in range(2000)]

    def work(size: int) -> Callable[[], object]:
        draw = Random(size)
        many = [Criterion(id=f"c{n}", description=" ".join(draw.sample(words, 1000))) for n in range(size)]
        return lambda: lint(many)

    assert_linear(work, 60)
