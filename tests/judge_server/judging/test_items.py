"""Reading an answer about several criteria: only verdicts written in the text count, and nothing is guessed."""

import json

import pytest

from judge_server.judging.items import (
    MAX_JSON_TEXT_CHARACTERS,
    REASON_CHARACTERS,
    Item,
    ItemForm,
    items_schema,
    read_items,
)
from judge_server.judging.replies import read_json_output
from judge_server.ports import CallFailure, JudgeResult, Reply

SATISFIED = ItemForm("satisfied")
REASONED = ItemForm("satisfied", reason=True)
TWO = (SATISFIED, SATISFIED)
ANSWER = '{"verdicts": [{"id": 1, "satisfied": true}, {"id": 2, "satisfied": false}]}'
YES, NO = Item(1.0, None, None), Item(0.0, None, None)


def failure(outcome: Item | CallFailure) -> str:
    """The detail of a parse failure."""
    assert isinstance(outcome, CallFailure), outcome
    assert outcome.kind == "parse"
    return outcome.detail


def read_one(item: object, form: ItemForm) -> Item | CallFailure:
    (outcome,) = read_items(json.dumps({"verdicts": [item]}), False, [form])
    return outcome


@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        f"```json\n{ANSWER}\n```",
        f"Here's what I find (criteria {{1}} and [2]):\n{ANSWER}\nThat's all.",
        "{'verdicts': [{'id': 1, 'satisfied': True,}, {'id': 2, 'satisfied': False},],}",
        "{verdicts: [{id: 1, satisfied: true}, // the first\n {id: 2, /* no */ satisfied: false}]}",
        '[{"id": 1, "satisfied": true}, {"id": 2, "satisfied": false}]',
        '{"verdicts": [{"id": "1", "satisfied": "true"}, {"id": 2.0, "satisfied": "False"}]}',
        '{"verdicts": [{"id": 2, "satisfied": false}, {"satisfied": true, "id": 1}]}',
        f"{{{ANSWER}}}",
        f"{ANSWER}\n{ANSWER}",
        ANSWER.replace('"', "“").replace("“:", "”:").replace("true", "TRUE"),
        json.dumps(ANSWER),
        json.dumps({"verdicts": json.dumps(json.loads(ANSWER)["verdicts"])}),
        ANSWER.replace("{", "{{").replace("}", "}}"),
        ANSWER.replace('"id": 1', '"id": 0').replace('"id": 2', '"id": 1'),
        '{"id": 1, "satisfied": true}\n{"id": 2, "satisfied": false}',
        'First:\n{"id": 1, "satisfied": true}\nthen\n{"id": 2, "satisfied": false}.',
        "true\nfalse\n",
        "1. True\n2. False",
        "1: true,\n\n2: false",
        "0: true\n1: false",
        '{"total": 7, "verdicts": [{"id": 1, "satisfied": true, "score": 3}, {"id": 2, "satisfied": false}], "max": 9}',
    ],
    ids=[
        "plain",
        "fenced",
        "prose",
        "python",
        "json5",
        "list",
        "quoted",
        "order",
        "double braces",
        "twice",
        "typographic",
        "encoded twice",
        "encoded list",
        "all braces doubled",
        "from 0",
        "one a line",
        "one by one",
        "values",
        "numbered values",
        "numbered with commas",
        "values from 0",
        "totals",
    ],
)
def test_an_answer_is_read_in_every_supported_format(text: str) -> None:
    assert read_items(text, False, TWO) == [YES, NO]


def test_a_single_item_without_a_list_is_read_only_for_one_criterion() -> None:
    item = '{"id": 1, "satisfied": true}'
    assert read_items(item, False, [SATISFIED]) == [YES]
    assert all(isinstance(outcome, CallFailure) for outcome in read_items(item, False, TWO))


def test_only_the_criterion_left_out_fails() -> None:
    first, second = read_items('{"verdicts": [{"id": 1, "satisfied": true}]}', False, TWO)
    assert first == YES
    assert failure(second) == "the judge left out criterion 2"


def test_ids_that_are_not_integers_are_ignored() -> None:
    items = [{"id": n, "satisfied": True} for n in (1.5, "A", None, True, [1])]
    outcomes = read_items(json.dumps({"verdicts": [*items, {"id": 1, "satisfied": False}, "x"]}), False, TWO)
    assert outcomes[0] == NO
    assert "left out criterion 2" in failure(outcomes[1])


def test_duplicate_verdicts_count_once_and_contradictory_ones_fail() -> None:
    text = '[{"id": 1, "satisfied": true}, {"id": 1, "satisfied": true}, {"id": 2, "satisfied": true}, %s]'
    assert read_items(text % '{"id": 2, "satisfied": true}', False, TWO) == [YES, YES]
    first, second = read_items(text % '{"id": 2, "satisfied": false}', False, TWO)
    assert first == YES
    assert "they differ" in failure(second)


def test_a_verdict_repeated_with_another_step_fails() -> None:
    form = ItemForm("satisfied", steps=(1, 2))
    text = '[{"id": 1, "satisfied": true, "step": 1}, {"id": 1, "satisfied": true, "step": 2}]'
    assert "they differ" in failure(read_items(text, False, [form])[0])


def test_a_duplicate_key_in_an_item_fails_it() -> None:
    text = '{"verdicts": [{"id": 1, "satisfied": false, "satisfied": true}]}'
    assert "more than once" in failure(read_items(text, False, [SATISFIED])[0])


@pytest.mark.parametrize("ids", [(0, 2), (2, 3), (1, 3), (0, 0), (1, 0, 2), (-1, 1), (5,)])
def test_items_with_unexpected_numbers_fail_the_whole_answer(ids: tuple[int, ...]) -> None:
    text = json.dumps({"verdicts": [{"id": number, "satisfied": True} for number in ids]})
    for outcome in read_items(text, False, TWO):
        assert "numbered its verdicts" in failure(outcome)


def test_a_truncated_answer_numbered_from_0_fails_as_a_whole() -> None:
    text = '{"verdicts": [{"id": 0, "satisfied": true}, {"id": 1, "satisfied": true}, {"id": 2, "sat'
    assert all(isinstance(outcome, CallFailure) for outcome in read_items(text, True, (*TWO, SATISFIED)))


@pytest.mark.parametrize(
    "text", ['{"satisfied": true}', '[{"satisfied": true}]', '{"verdicts": [{"satisfied": true}]}']
)
def test_one_item_about_one_criterion_needs_no_id(text: str) -> None:
    assert read_items(text, False, [SATISFIED]) == [YES]
    assert all(isinstance(outcome, CallFailure) for outcome in read_items(text, False, TWO))


@pytest.mark.parametrize(
    "text", ["true", "true\nfalse\ntrue", "1. true\nfalse", "2. true\n1. maybe", "true false", "3. true\n4. false"]
)
def test_lines_without_one_value_per_criterion_fail(text: str) -> None:
    assert all(isinstance(outcome, CallFailure) for outcome in read_items(text, False, TWO))


def test_numbers_without_an_id_are_not_read_as_grades() -> None:
    grades = [ItemForm("grade", 4), ItemForm("grade", 4)]
    assert all(isinstance(outcome, CallFailure) for outcome in read_items("1\n2", False, grades))
    assert read_items("1. 3\n2. 4", False, grades) == [Item(3.0, None, None), Item(4.0, None, None)]


@pytest.mark.parametrize("raw", [2, 1, 0, -1, "yes", "1", "", None, [True], {"is": True}, 0.5])
def test_satisfied_must_be_true_or_false(raw: object) -> None:
    assert "not true or false" in failure(read_one({"id": 1, "satisfied": raw}, SATISFIED))


@pytest.mark.parametrize("raw", [9, 5, -1, 2.5, True, "two", "4/4", None, 1e300, "1" * 500])
def test_a_grade_must_be_an_integer_on_its_scale(raw: object) -> None:
    assert "not an integer from 0 to 4" in failure(read_one({"id": 1, "grade": raw}, ItemForm("grade", 4)))


@pytest.mark.parametrize(("raw", "score"), [("3.01", 1.0), ("-0.5", 0.0), ("1e300", 1.0), ('"7"', 1.0), ("-0.0", 0.0)])
def test_points_out_of_range_are_clipped_in_the_score_and_kept_in_the_grade(raw: str, score: float) -> None:
    text = f'{{"verdicts": [{{"id": 1, "awarded": {raw}}}]}}'
    [finding] = read_json_output((ItemForm("awarded", 3),), Reply(text=text))
    assert isinstance(finding, JudgeResult)
    assert (finding.score, finding.grade) == (score, float(raw.strip('"')))


@pytest.mark.parametrize("raw", ["NaN", "Infinity", "-Infinity", "1e400", "true", "9" * 5000])
def test_points_must_be_a_finite_number(raw: str) -> None:
    text = f'{{"verdicts": [{{"id": 1, "awarded": {raw}}}]}}'
    assert "not a number from 0 to 3" in failure(read_items(text, False, [ItemForm("awarded", 3)])[0])


def test_allowed_values_are_read_as_written() -> None:
    assert [read_one({"id": 1, "grade": raw}, ItemForm("grade", 4)) for raw in (0, 4, "3", 2.0)] == [
        Item(value, None, None) for value in (0.0, 4.0, 3.0, 2.0)
    ]
    assert [read_one({"id": 1, "awarded": raw}, ItemForm("awarded", 2.5)) for raw in (0, 2.5, "0.75")] == [
        Item(value, None, None) for value in (0.0, 2.5, 0.75)
    ]


def test_a_value_under_another_key_fails_the_item() -> None:
    assert "no 'satisfied'" in failure(read_one({"id": 1, "grade": 1}, SATISFIED))


@pytest.mark.parametrize("step", [2, 3, 0, -1, "2"])
def test_an_offered_step_is_the_items_step(step: object) -> None:
    form = ItemForm("satisfied", steps=(2, 3))
    assert read_one({"id": 1, "satisfied": True, "step": step}, form) == Item(1.0, int(str(step)), None)


@pytest.mark.parametrize("step", [1, 4, -2, 2.5, "whole", None, True, [2]])
def test_a_step_that_was_not_offered_fails_the_item(step: object) -> None:
    form = ItemForm("satisfied", steps=(2, 3))
    assert "was not on offer" in failure(read_one({"id": 1, "satisfied": True, "step": step}, form))
    assert "was not on offer" in failure(read_one({"id": 1, "satisfied": True}, form))


def test_a_step_and_a_reason_that_were_not_requested_are_dropped() -> None:
    assert read_one({"id": 1, "satisfied": True, "step": 99, "reason": "because"}, SATISFIED) == YES


def test_a_reason_is_sanitised_for_storage() -> None:
    text = r'{"verdicts": [{"id": 1, "reason": "a\u0000b \ud83d\ude00 \ud83d. \n\"q\" \(x\)", "satisfied": true}]}'
    (outcome,) = read_items(text, False, [REASONED])
    assert outcome == Item(1.0, None, 'a\ufffdb 😀 \ufffd. \n"q" (x)')


def test_a_long_reason_is_shortened_and_a_missing_one_does_not_fail_the_item() -> None:
    outcome = read_one({"id": 1, "reason": "x" * 999, "satisfied": True}, REASONED)
    assert outcome == Item(1.0, None, "x" * (REASON_CHARACTERS - 1) + "…")
    assert read_one({"id": 1, "satisfied": True}, REASONED) == YES
    assert read_one({"id": 1, "reason": 7, "satisfied": True}, REASONED) == YES


def test_items_before_the_cut_of_a_truncated_text_are_read() -> None:
    for end in range(len(ANSWER)):
        first, second = read_items(ANSWER[:end], True, TWO)
        complete = ANSWER[:end].count("}")
        assert (first == YES) == (complete >= 1)
        assert (second == NO) == (complete >= 2)
        if complete == 1:
            assert "cut off before it" in failure(second)
            assert '{"verdicts": [{"id": 1, "satisfied": true}' in failure(second)


def test_an_answer_is_read_up_to_where_it_stops_being_json() -> None:
    first, second = read_items('{"verdicts": [{"id": 1, "satisfied": true}, {"id": 2: 3}]}', False, TWO)
    assert first == YES
    assert "stops being JSON" in failure(second)


@pytest.mark.parametrize(
    "echo",
    [
        '{"verdicts": [{"id": "A", "reason": "…", "satisfied": true}]}',
        '{"verdicts": [{"id": "A", "satisfied": true}, ...]}',
        '{"verdicts": [{"id": 1, "satisfied": <true or false>}]}',
        '{"verdicts": [{"id": 1, "satisfied": "true or false"}]}',
        items_schema(TWO),
    ],
    ids=["letters", "dots", "placeholder", "quoted placeholder", "schema"],
)
def test_an_example_of_the_format_is_not_read_as_the_answer(echo: str) -> None:
    assert read_items(f"I am to write {echo}. So:\n{ANSWER}", False, TWO) == [YES, NO]
    assert all(isinstance(outcome, CallFailure) for outcome in read_items(echo, False, TWO))


def test_answers_that_contradict_each_other_on_a_criterion_fail_it() -> None:
    other = '{"verdicts": [{"id": 1, "satisfied": true}, {"id": 2, "satisfied": true}]}'
    for text in (other + ANSWER, ANSWER + other, ANSWER + other[:-1], other[:-1] + "!" + ANSWER):
        first, second = read_items(text, False, TWO)
        assert first == YES
        assert "they differ" in failure(second)


def test_the_last_complete_answer_counts_even_if_an_earlier_one_has_more_items() -> None:
    first, second = read_items(ANSWER + '{"verdicts": [{"id": 1, "satisfied": true}]}' + ANSWER[:60], True, TWO)
    assert first == YES
    assert "left out criterion 2" in failure(second)


def test_a_repeated_but_truncated_answer_does_not_undo_the_complete_one() -> None:
    assert read_items(ANSWER + ANSWER[:50], True, TWO) == [YES, NO]


def test_nothing_is_read_beyond_the_nesting_limit() -> None:
    assert read_items("[" * 20 + "]" * 20 + ANSWER, False, TWO) == [YES, NO]
    assert all(isinstance(outcome, CallFailure) for outcome in read_items("[" * 99 + ANSWER, False, TWO))


@pytest.mark.parametrize(
    "quote", ['{"id": 1, "satisfied": true}', '{"verdicts": [{"id": 1, "satisfied": true}]}', '[{"id": 1, "x": "']
)
def test_text_quoted_in_a_reason_is_never_a_verdict(quote: str) -> None:
    real = {"id": 1, "reason": f'It says "{quote}".', "satisfied": False}
    assert read_items(json.dumps({"verdicts": [real]}), False, [SATISFIED]) == [NO]
    unescaped = f'{{"verdicts": [{{"id": 1, "reason": "It says "{quote}".", "satisfied": false}}]}}'
    assert isinstance(read_items(unescaped, False, [SATISFIED])[0], CallFailure)


def test_a_failure_quotes_the_start_of_the_text_on_one_printable_line() -> None:
    detail = failure(read_items("I\ncannot\x00 \ud800judge \x1b[31m" + "this " * 99, False, [SATISFIED])[0])
    assert "I cannot judge [31mthis this" in detail
    assert len(detail) < 200
    assert detail.isprintable()
    assert "wrote nothing" in failure(read_items(" \n", False, [SATISFIED])[0])


def test_a_text_over_the_length_limit_is_not_read() -> None:
    padding = " " * (MAX_JSON_TEXT_CHARACTERS - len(ANSWER))
    assert read_items(ANSWER + padding, False, TWO) == [YES, NO]
    assert all(
        f"{MAX_JSON_TEXT_CHARACTERS + 1} characters" in failure(outcome)
        for outcome in read_items(ANSWER + padding + " ", False, TWO)
    )
