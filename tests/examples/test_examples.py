"""The example files: groups that can be scored, rubrics that can be read, and right labels."""

import json
from pathlib import Path

import pytest

from adjudge_services.cli.scoring.score_file import BadLine, GroupLine, read_groups, read_rubric_argument
from trainer_client.final_answer import extract_final_answer
from trainer_client.rewards import check_rubric
from trainer_client.steps import has_format, split_steps
from trainer_client.wire import RubricContent

EXAMPLES = Path(__file__).parents[2] / "examples"


def groups(name: str) -> list[GroupLine]:
    lines = list(read_groups(EXAMPLES / name))
    assert not [line for line in lines if isinstance(line, BadLine)]
    return [line for line in lines if isinstance(line, GroupLine)]


@pytest.mark.parametrize(("name", "count"), [("srar.jsonl", 2), ("gsm8k.jsonl", 10)])
def test_every_line_is_a_valid_group(name: str, count: int) -> None:
    assert len(groups(name)) == count


def test_the_step_wise_rubrics_suit_the_stepwise_mode() -> None:
    for line in groups("srar.jsonl"):
        assert isinstance(line.group.rubric, RubricContent)
        check_rubric(line.group.rubric.criteria, "stepwise")


def test_the_four_responses_to_the_first_problem_match_the_readme() -> None:
    clean, short, pitfall, empty = groups("srar.jsonl")[0].group.responses
    assert [extract_final_answer(text) for text in (clean, short, pitfall, empty)] == ["10", "10", "12", None]
    assert [len(split_steps(text)) for text in (clean, short, pitfall, empty)] == [3, 2, 2, 0]
    assert "xy + 2 + 1/(xy)" in clean
    assert "xy + 2" not in short
    assert "= xy + 1/(xy)" in pitfall
    assert not has_format(empty)


def test_the_gsm8k_rubric_suits_the_factual_override() -> None:
    check_rubric(read_rubric_argument(str(EXAMPLES / "gsm8k.rubric.json")).criteria, "factual_override")


def test_the_gsm8k_labels_equal_the_comparison_of_final_answers() -> None:
    labels = [json.loads(line) for line in (EXAMPLES / "gsm8k.labels.jsonl").read_text().splitlines()]
    for line, label in zip(groups("gsm8k.jsonl"), labels, strict=True):
        assert line.group.id == label["id"]
        assert line.group.ground_truth is not None
        right = float(line.group.ground_truth)
        found = [extract_final_answer(text) for text in line.group.responses]
        assert [answer is not None and float(answer.replace(",", "")) == right for answer in found] == label[
            "is_correct"
        ]


def test_the_labelled_gsm8k_rows_are_the_groups_with_these_labels() -> None:
    labels = [json.loads(line) for line in (EXAMPLES / "gsm8k.labels.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (EXAMPLES / "gsm8k.labelled.jsonl").read_text().splitlines()]
    for line, label, row in zip(groups("gsm8k.jsonl"), labels, rows, strict=True):
        assert (row["id"], row["responses"]) == (line.group.id, list(line.group.responses))
        assert [found["answer"] for found in row["labels"]] == label["is_correct"]
