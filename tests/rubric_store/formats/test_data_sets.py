"""The shapes in which data sets and tools keep rubrics: each is read with its meaning, or what is lost is named."""

import csv
import io
import json
import re
from pathlib import PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubric_store.formats import FormatError, RubricDocument, read_document, read_file, read_rows
from trainer_client import rewards
from trainer_client.wire import Criterion


def read(value: object, format: str | None = None) -> RubricDocument:
    """Read a value as JSON."""
    return read_document(value if isinstance(value, str) else json.dumps(value), format)


def one(value: object) -> Criterion:
    """The only criterion of a value."""
    (criterion,) = read(value).content.criteria
    return criterion


def notes(value: object) -> str:
    """What reading a value changed."""
    return "\n".join(map(str, read(value).changes))


RESEARCH = [
    {"criterion": "States the period from 9 to 11.", "weight": 5.0, "axis": "explicit"},
    {"criterion": "Invents a source.", "weight": -3, "axis": "Communication Quality"},
]


def test_research_rubrics_come_in_one_to_one_with_the_axis_as_a_tag() -> None:
    criteria = read(RESEARCH).content.criteria
    assert [(c.description, c.weight, c.tags) for c in criteria] == [
        ("States the period from 9 to 11.", 5.0, ("explicit",)),
        ("Invents a source.", -3.0, ("Communication Quality",)),
    ]
    assert read(RESEARCH).changes == ()


NO_PARAMETERS = {"N": None, "keyword": None, "num_words": None}


def test_rubric_hubs_criteria_for_the_judge_come_in_without_null_parameters() -> None:
    tags = {"function": "", "parameters": NO_PARAMETERS, "verifier": "llm"}
    criterion = one({"rubrics": [{"criterion": "Names a budget.", "points": 10, "tags": tags}]})
    assert criterion.verification is None
    assert criterion.weight == 10
    assert not any("null" in tag for tag in criterion.tags)


@pytest.mark.parametrize(
    ("function", "parameters", "met", "unmet"),
    [
        ("keywords:existence", {"keywords": ["tea", "cup"]}, "A Cup of TEA", "a cup"),
        ("keywords:forbidden_words", {"forbidden_words": ["tea"]}, "a steady cup, or a team", "Tea?"),
        ("startend:end_checker", {"end_phrase": "The end."}, "So. the end.\n", "The end. Or not."),
        ("startend:quotation", {}, ' "a\nb"', 'a "b"'),
        ("punctuation:no_comma", {}, "a\nb", "a\nb, c"),
        ("word_count_range", {"min_count": 2, "max_count": 3}, "a b c", "a b c d"),
    ],
)
def test_rubric_hubs_rules_become_programs(function: str, parameters: dict[str, Any], met: str, unmet: str) -> None:
    tags = {"function": function, "parameters": {**NO_PARAMETERS, **parameters}, "verifier": "rule"}
    verification = one([{"criterion": "x", "points": 1, "tags": tags}]).verification
    assert passes(verification, met)
    assert not passes(verification, unmet)


def test_a_rule_without_a_program_is_named_and_the_others_come_in() -> None:
    rows = [
        {"criterion": "Adds.", "points": 1, "tags": {"verifier": "llm"}},
        {"criterion": "In Hindi.", "points": 1, "tags": {"verifier": "rule", "function": "language:response_language"}},
    ]
    document = read({"rubrics": rows})
    assert [c.description for c in document.content.criteria] == ["Adds."]
    assert "language:response_language" in notes({"rubrics": rows})
    with pytest.raises(FormatError, match="language:response_language"):
        read({"rubrics": rows[1:]})


ORDINAL = {
    "name": "Köln, how well?",
    "weight": 4,
    "requirement": "Describes the cathedral.",
    "scale_type": "ordinal",
    "options": [
        {"label": "Not at all", "value": 0.0, "na": False},
        {"label": "In part", "value": 0.33, "na": False},
        {"label": "Fully", "value": 1.0, "na": False},
        {"label": "Is about another town", "value": 0.0, "na": True},
    ],
}


def test_autorubrics_options_become_grades_and_its_names_ids() -> None:
    document = read(
        {"name": "t", "prompt": "?", "rubric": [ORDINAL, {"name": "short", "weight": 1, "requirement": "Is short."}]}
    )
    graded, plain = document.content.criteria
    assert (graded.id, graded.name, graded.scale, graded.weight) == ("Koln-how-well", "Köln, how well?", 3, 4)
    assert graded.scoring_guide is not None
    assert graded.scoring_guide.splitlines() == [
        "0: Not at all",
        "1: In part",
        "3: Fully",
        "Does not apply (Is about another town): give 3.",
    ]
    assert (plain.id, plain.name, plain.scale, plain.scoring_guide) == ("short", None, 1, None)
    said = "\n".join(map(str, document.changes))
    for part in ("protocol graded", "0.33 becomes 1/3", "Is about another town"):
        assert part in said


def test_autorubrics_sections_guidelines_and_penalties_are_kept() -> None:
    item = {"name": "toll", "weight": -8, "requirement": "Invents a toll."}
    fine = {"name": "toll", "weight": 8, "requirement": "Names the river."}
    value = {"rubric": {"guidelines": "Be strict.", "sections": [{"name": "Facts", "criteria": [item, fine]}]}}
    first, second = read(value).content.criteria
    assert (first.id, first.kind, first.weight, first.tags) == ("toll", "pitfall", -8, ("Facts",))
    assert second.id == "toll-2"
    assert first.verification_method == second.verification_method == "Be strict."


NATIVE = {"criteria": [{"id": "a", "description": "Adds."}]}


@pytest.mark.parametrize(
    "value",
    [
        {"rubric": NATIVE},
        {"rubric": NATIVE, "prompt": "?", "responses": ["a"]},
        {"Rubric": json.dumps(NATIVE), "ground_truth": "4"},
        {"extra_info": {"rubric": NATIVE}},
        {"rubric": {"criteria": [{"id": "a", "description": "Adds.", "verification": None, "tags": None}]}},
        {"criteria": [{"ID": "a", "Description": "Adds.", "Weight": "1.0"}]},
        {"data": [{"rubric": NATIVE}]},
    ],
)
def test_a_rubric_of_ours_is_found_in_a_row(value: object) -> None:
    assert read(value).content == read(NATIVE).content


@pytest.mark.parametrize("field", ["Rubric", "rubric", "rubrics", "criteria"])
def test_plans_statements_become_criteria_of_weight_1(field: str) -> None:
    value = {field: ["The plan names a budget.", "It names a date."], "Goal": "Plan.", "Reference solution": "Do."}
    assert [(c.description, c.weight) for c in read(value).content.criteria] == [
        ("The plan names a budget.", 1),
        ("It names a date.", 1),
    ]


shares = st.integers(0, 9)
leaf = st.fixed_dictionaries(
    {"id": st.uuids().map(str), "requirements": st.just("x"), "weight": shares, "sub_tasks": st.just([])},
    optional={"task_category": st.just("Code Development")},
)
trees = st.recursive(
    leaf,
    lambda inner: st.fixed_dictionaries(
        {
            "id": st.uuids().map(str),
            "requirements": st.sampled_from(["Part 1", "Part 2"]),
            "weight": shares,
            "sub_tasks": st.lists(inner, min_size=1, max_size=3).filter(lambda many: any(n["weight"] for n in many)),
        }
    ),
    max_leaves=12,
)


def tree_score(node: dict[str, Any], scores: dict[str, float]) -> float:
    """The score of a tree as the benchmark computes it: weighted means of the children, from the leaves up."""
    if not node["sub_tasks"]:
        return scores[node["id"]]
    total = sum(child["weight"] for child in node["sub_tasks"])
    return sum(child["weight"] / total * tree_score(child, scores) for child in node["sub_tasks"])


def leaf_ids(node: dict[str, Any]) -> list[str]:
    return [id_ for child in node["sub_tasks"] for id_ in leaf_ids(child)] if node["sub_tasks"] else [node["id"]]


@given(trees.map(lambda tree: {**tree, "weight": 1}), st.data())
def test_a_paper_tree_has_the_score_of_its_leaves_weighted_mean(tree: dict[str, Any], data: st.DataObject) -> None:
    ids = leaf_ids(tree)
    verdicts = dict(
        zip(ids, data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(ids), max_size=len(ids))), strict=True)
    )
    criteria = read(tree, "paperbench").content.criteria
    assert [c.id for c in criteria] == ids
    reward = rewards.reward(criteria, [verdicts[c.id] for c in criteria], "weighted_mean")
    assert reward == pytest.approx(tree_score(tree, verdicts))


def test_a_leaf_carries_its_path_and_category_as_tags() -> None:
    tree = {
        "id": "r", "requirements": "The paper is replicated.", "weight": 1, "sub_tasks": [
            {"id": "a", "requirements": "The model is built.", "weight": 3, "sub_tasks": [
                {"id": "b", "requirements": "It has 2 layers.", "weight": 1, "task_category": "Code Development"},
                {"id": "c", "requirements": "It is trained.", "weight": 2, "sub_tasks": []}]},
            {"id": "d", "requirements": "The table is there.", "weight": 1, "sub_tasks": []}],
    }  # fmt: skip
    criteria = read(tree).content.criteria
    assert [(c.id, round(c.weight, 4)) for c in criteria] == [("b", 0.25), ("c", 0.5), ("d", 0.25)]
    assert criteria[0].tags == ("The paper is replicated.", "The model is built.", "Code Development")


def test_a_subtree_whose_parts_all_weigh_0_is_named() -> None:
    nothing = {"id": "b", "requirements": "x", "weight": 0, "sub_tasks": []}
    some = {"id": "c", "requirements": "y", "weight": 1, "sub_tasks": []}
    tree = {"requirements": "r", "sub_tasks": [{"requirements": "a", "weight": 1, "sub_tasks": [nothing]}, some]}
    assert "weigh 0" in notes(tree)


@pytest.mark.parametrize(
    "value",
    [
        "Points: 1.5, Item: Names the cause.\nPoints: 0.5, Item: Gives a unit:\n- in metres\n",
        {
            "problem": "?",
            "answer": "Points: 1.5, Item: Names the cause.\nPoints: 0.5, Item: Gives a unit:\n- in metres",
        },
        {
            "rubric": "- **Points:** 1.5, **Item:** Names the cause.\n"
            "- **Points:** 0.5, **Item:** Gives a unit:\n- in metres"
        },
    ],
)
def test_a_text_of_points_and_items_is_read(value: object) -> None:
    assert [(c.weight, c.description) for c in read(value).content.criteria] == [
        (1.5, "Names the cause."),
        (0.5, "Gives a unit:\n- in metres"),
    ]


SCORES = {f"score{n}_description": f"Level {n}." for n in range(1, 6)}


@pytest.mark.parametrize(
    "value",
    [
        {"criteria": "Does it explain?", **SCORES},
        {"id": "x_1", "capability": "reasoning", "score_rubric": {"criteria": "Does it explain?", **SCORES}},
        {"orig_criteria": "Does it explain?", **{f"orig_{k}": v for k, v in SCORES.items()}, "orig_instruction": "?"},
        {"score_rubric": json.dumps({"criteria": "Does it explain?", **SCORES})},
        "[Does it explain?]\n" + "\n".join(f"Score {n}: Level {n}." for n in range(1, 6)),
    ],
)
def test_five_described_scores_become_a_graded_criterion(value: object) -> None:
    criterion = one(value)
    assert (criterion.description, criterion.scale) == ("Does it explain?", 4)
    assert criterion.scoring_guide == "\n".join(f"{n - 1}: Level {n}." for n in range(1, 6))


def test_levels_become_grades_with_anchors() -> None:
    criteria = [
        {"id": "CORR", "title": "Correctness", "description": "Is right.", "levels": {"0": "Wrong.", "3": "Right."}},
        {
            "id": "STYLE",
            "title": "Style",
            "weight": "2",
            "levels": [{"score": 1, "label": "Poor"}, {"score": 3, "label": "Good"}],
        },
    ]
    first, second = read({"name": "Course", "scale": {"min": 0, "max": 3}, "criteria": criteria}).content.criteria
    assert (first.id, first.name, first.scale, first.scoring_guide) == (
        "CORR",
        "Correctness",
        1,
        "0: Wrong.\n1: Right.",
    )
    assert (second.description, second.weight, second.scale) == ("Style", 2, 3)
    assert second.scoring_guide == "1: Poor\n3: Good"


def passes(verification: Any, text: str) -> bool:
    """Whether a text meets a verification by a program, as its docstring says."""
    flags = 0 if verification.case_sensitive else re.IGNORECASE
    if verification.method == "regex":
        return (
            getattr(re, {"full": "fullmatch", "search": "search"}[verification.match])(
                verification.pattern, text, flags
            )
            is not None
        )
    found = [re.search(re.escape(one), text, flags) for one in (*verification.all_of, *verification.any_of)]
    return any(found) if verification.any_of else all(found)


@pytest.mark.parametrize(
    ("kind", "value", "met", "unmet"),
    [
        ("contains", "A.b", "xA.b", "a.b"),
        ("icontains", "A.b", "a.B", "aXb"),
        ("contains-any", ["a", "b"], "b", "c"),
        ("contains-all", "a, b", "b a", "a"),
        ("icontains-all", ["a", "b"], "B A", "A"),
        ("not-contains", "a.b", "aXb\n", "x\na.b"),
        ("not-icontains", "A.b", "aXb", "x\na.B"),
        ("not-contains-any", ["a", "b"], "c", "x\nb"),
        ("not-contains-all", ["a", "b"], "a", "b\na"),
        ("regex", r"\d+$", "a 12", "12 a"),
        ("not-regex", r"^\d", "a\n1", "1"),
        ("starts-with", "Yes", "Yes.", "no Yes"),
        ("not-equals", "a b", "a b c", " a  b\n"),
        ("word-count", {"min": 2, "max": 3}, "a b", "a"),
    ],
)
def test_a_deterministic_assertion_becomes_a_program(kind: str, value: object, met: str, unmet: str) -> None:
    criterion = one({"assert": [{"type": kind, "value": value}]})
    assert passes(criterion.verification, met)
    assert not passes(criterion.verification, unmet)


@given(
    st.lists(st.text("ab.( \n", min_size=1, max_size=3), min_size=1, max_size=3),
    st.text("ab.( \n", max_size=8),
    st.booleans(),
)
def test_absent_is_the_opposite_of_present(texts: list[str], response: str, any_of: bool) -> None:
    texts = [text for text in texts if text.strip()] or ["a"]
    kind = "contains-any" if any_of else "contains-all"
    holds, fails = (one({"assert": [{"type": f"{sign}{kind}", "value": texts}]}).verification for sign in ("", "not-"))
    assert passes(holds, response) != passes(fails, response)


CONFIG = """# our tests
prompts: [prompt.txt]
providers: [echo]
defaultTest:
  assert:
    - {type: cost, threshold: 0.01}
    - {type: icontains, value: "{{city}}", weight: 2}
tests:
  - description: First city
    vars: {city: Köln}
    threshold: 0.7
    assert:
      - type: llm-rubric
        value: Describes {{city}} well.
        metric: Quality
      - {type: javascript, value: output.length < 10}
  - vars: {city: Bonn}
    assert:
      - {type: not-contains, value: Berlin}
"""


def test_a_promptfoo_configuration_holds_a_rubric_per_test_and_names_what_has_no_counterpart() -> None:
    first, second = read_file(CONFIG.encode(), PurePath("config.yaml"))
    assert [c.description for c in first.document.content.criteria] == [
        "Describes Köln well.",
        'Contains "K\\u00f6ln".',
    ]
    assert [c.weight for c in first.document.content.criteria] == [1, 2]
    assert first.document.content.criteria[0].name == "Quality"
    said = "\n".join(map(str, first.document.changes))
    for part in ("javascript", "cost", "threshold"):
        assert part in said
    assert [c.description for c in second.document.content.criteria] == [
        'Does not contain "Berlin".',
        'Contains "Bonn".',
    ]
    assert (first.name, second.name) == ("config/first-city", "config/row-2")


def test_an_assert_set_shares_its_weight() -> None:
    value = [
        {"type": "contains", "value": "a", "weight": 1},
        {"type": "assert-set", "weight": 3, "threshold": 0.5, "assert": [
            {"type": "contains", "value": "b"}, {"type": "llm-rubric", "value": "Is kind.", "weight": 2}]},
    ]  # fmt: skip
    weights = [c.weight for c in read(value).content.criteria]
    assert weights == pytest.approx([0.25, 0.25, 0.5])
    assert "threshold" in notes(value)


def test_a_program_never_looks_for_an_expression_that_the_vars_do_not_fill() -> None:
    test = {
        "vars": {"city": ["Oslo", "Bonn"], "year": 1990},
        "assert": [
            {"type": "llm-rubric", "value": "Describes {{ city }}."},
            {"type": "not-contains", "value": "{{ city | upper }}"},
            {"type": "contains-all", "value": ["{{year}}", "{{city}}"]},
            {"type": "contains", "value": "{{year}}"},
        ],
    }
    assert [c.description for c in read(test).content.criteria] == ["Describes {{ city }}.", 'Contains "1990".']
    for expression in ("text has {{ city }}", "value has {{ city | upper }}", "value has {{city}}"):
        assert f"{expression}, which the test's vars do not fill" in notes(test)


def test_a_test_without_any_counterpart_is_refused_by_name() -> None:
    with pytest.raises(FormatError, match="'javascript' has no counterpart"):
        read({"assert": [{"type": "javascript", "value": "output"}]})


def test_a_deepeval_metric_becomes_a_criterion_that_its_steps_guide() -> None:
    metric = {
        "name": "Correctness", "criteria": "Is the output right?", "threshold": 0.5,
        "evaluation_steps": ["Compare the facts.", "Look for gaps."], "evaluation_params": ["actual_output"],
    }  # fmt: skip
    criterion = one(metric)
    assert (criterion.id, criterion.description) == ("Correctness", "Is the output right?")
    assert criterion.verification_method == "1. Compare the facts.\n2. Look for gaps."
    assert "threshold: the field is not kept" in notes(metric)
    assert [c.id for c in read([metric, {**metric, "name": "Tone"}]).content.criteria] == ["Correctness", "Tone"]


TREE = """type: group
name: Safety
children:
  - type: question
    id: dose
    question: Does the response recommend a dose?
    pass_answer: NO
    question_type: hard_gate
  - type: group
    name: Form
    children:
      - {type: question, question: Is it short?, pass_answer: YES, weight: 2}
"""


def test_questions_are_negated_where_the_passing_answer_is_no_and_gates_are_named() -> None:
    gate, short = read(TREE).content.criteria
    assert gate.id == "dose"
    assert gate.description == "The right answer to this question is no: Does the response recommend a dose?"
    assert gate.tags == ("Safety", "hard_gate")
    assert (short.description, short.weight, short.tags) == ("Is it short?", 2, ("Safety", "Form"))
    assert "hard gate" in notes(TREE)
    with pytest.raises(FormatError, match="neither yes nor no"):
        read({"type": "question", "question": "Is it?", "pass_answer": "maybe"})


SHAPES: dict[str, object] = {
    "research": RESEARCH,
    "hub": {"rubrics": [{"criterion": "Adds.", "points": 1, "tags": {"verifier": "llm"}}]},
    "autorubric": {"rubric": [ORDINAL]},
    "wrapper": {"rubric": NATIVE},
    "plan": {"Rubric": ["The plan names a budget."]},
    "paper": {"requirements": "r", "weight": 1, "sub_tasks": [{"requirements": "a", "weight": 1, "sub_tasks": []}]},
    "points": {"answer": "Points: 1, Item: Adds."},
    "scores": {"score_rubric": {"criteria": "Does it?", **SCORES}},
    "levels": {"criteria": [{"title": "Style", "levels": {"0": "Poor", "1": "Good"}}]},
    "promptfoo": {"assert": [{"type": "llm-rubric", "value": "Is kind."}]},
    "geval": {"name": "Tone", "criteria": "Is it kind?", "evaluation_steps": ["Read."]},
    "questions": {"type": "group", "children": [{"type": "question", "question": "Is it?", "pass_answer": "NO"}]},
}


def upper(value: object) -> object:
    """A value with the names of its own fields in upper case."""
    return {key.upper(): inner for key, inner in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_read_alike_in_every_wrapper(shape: str) -> None:
    value = SHAPES[shape]
    wanted = read(value).content
    row = value if isinstance(value, dict) else {"rubrics": value}
    assert read("\ufeff" + json.dumps(value)).content == wanted
    assert read(upper(value)).content == wanted
    assert read({**row, "split": "dev", "uid_2": None, "source": None}).content == wanted
    assert read({"rubric": json.dumps(value), "prompt": "?"}).content == wanted
    assert read({"data": [{**row, "split": "dev"}]}).content == wanted
    several = {
        "a.jsonl": "\n".join(json.dumps({"rubric": value, "id": number}) for number in range(2)),
        "a.json": json.dumps([{"rubric": value}, {"rubric": value}]),
        "b.json": json.dumps({"data": [{"rubric": value}, {"rubric": value}]}),
    }
    for name, text in several.items():
        assert [one.document.content for one in read_file(text.encode(), PurePath(name))] == [wanted, wanted], name
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerows([["prompt", "rubric"], ["?", json.dumps(value)]])
    assert read_file(table.getvalue().encode(), PurePath("a.csv"))[0].document.content == wanted


@pytest.mark.parametrize("shape", ["research", "hub", "autorubric", "plan", "scores", "levels", "wrapper"])
def test_a_shape_is_read_from_parquet(shape: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = SHAPES[shape] if isinstance(SHAPES[shape], dict) else {"rubrics": SHAPES[shape]}
    other = {"rubrics": [{"criterion": "x", "weight": 1, "axis": None, "extra": 1}]} if shape == "research" else {}
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([row, *([other] if other else [])]), buffer)
    found = read_rows(buffer.getvalue(), PurePath("a.parquet"))
    assert found.problems == ()
    assert found.rubrics[0].document.content == read(SHAPES[shape]).content


def test_a_table_of_criteria_is_one_rubric() -> None:
    (rubric,) = read_file(b"criterion,points\nAdds.,2\nSubtracts.,-1\n", PurePath("sum.csv"))
    assert rubric.name == "sum"
    assert [(c.description, c.weight) for c in rubric.document.content.criteria] == [("Adds.", 2), ("Subtracts.", -1)]
    lines = '{"requirement": "Adds.", "weight": 1}\n{"requirement": "Is short.", "weight": 2}\n'
    assert len(read_file(lines.encode(), PurePath("sum.jsonl"))[0].document.content.criteria) == 2


def test_a_row_of_csv_with_a_comma_too_many_is_refused_and_not_cut() -> None:
    found = read_rows(b"id,rubric\n1,<SUGGEST> Adds, sums.\n2,<SUGGEST> Adds.,,\n", PurePath("a.csv"))
    assert [(one.line, "more cells than the header" in one.message) for one in found.problems] == [(2, True)]
    assert [one.name for one in found.rubrics] == ["a/2"]
    with pytest.raises(FormatError, match="line 1: it has the column 'rubric' twice"):
        read_rows(b"id,rubric,rubric\n1,<SUGGEST> Adds.,<SUGGEST> Sums.\n", PurePath("a.csv"))


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"criterion,points\nAdds.,2\nSums, too.,1\nSubtracts.,-1\n", "sum.csv"),
        (b'{"criterion": "Adds.", "points": 2}\n{\n{"criterion": "Subtracts.", "points": -1}\n', "sum.jsonl"),
    ],
)
def test_a_rubric_is_not_read_without_a_criterion_whose_line_cannot_be_read(content: bytes, name: str) -> None:
    found = read_rows(content, PurePath(name))
    assert (found.rubrics, found.refused, len(found.problems)) == ([], 1, 1)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            [{"criteriom": "Adds.", "pionts": 1}],
            r'a list of 1 objects with the fields "criteriom", "pionts".*nearest format is healthbench',
        ),
        ({"subtasks": [], "requirement_text": "x"}, r'an object with the fields "subtasks", "requirement_text"'),
        ({"checklist": [{"requirements": "x"}]}, r'in them "requirements"'),
        ({"rubric": "team/math@3"}, r'an object with the fields "rubric"'),
        ([], "an empty list"),
    ],
)
def test_an_unknown_shape_is_described_with_the_nearest_format(value: object, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        read(value)


def test_problems_of_one_kind_are_folded_and_good_rows_are_kept() -> None:
    bad = json.dumps({"rubrics": [{"criterion": "Adds."}]})
    good = json.dumps({"rubrics": [{"criterion": "Adds.", "points": 1}]})
    found = read_rows("\n".join([good, good, *[bad] * 812, good]).encode(), PurePath("a.jsonl"))
    assert (len(found.rubrics), found.refused, len(found.problems)) == (3, 812, 812)
    message = str(FormatError(found.problems))
    assert message == "rubrics[].points: this field is required (812 lines; first: line 3, rubrics[0].points)"


def test_fields_that_are_not_kept_are_named_and_near_misses_refused() -> None:
    assert "annotator: the field is not kept" in notes([{"criterion": "Adds.", "points": 1, "annotator": 7}])
    with pytest.raises(FormatError, match="not permitted"):
        read([{"criterion": "Adds.", "points": 1, "point": 7}])
