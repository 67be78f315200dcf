"""Labelled data sets are read as published, and plain JSONL files as documented."""

import json
from pathlib import Path
from typing import Any

import pytest

from judge_server.evaluation.data_sets import LLM_RUBRIC, read_dataset
from judge_server.evaluation.labelled import DatasetError, Example, LabelledPair, LabelledResponse, half_of, sample

RUBRIC = {"criteria": [{"id": "a", "description": "Is right."}, {"id": "b", "description": "Is brief."}]}


def read(tmp_path: Path, reader: str, *rows: Any, suffix: str = ".jsonl") -> list[Example]:
    """Read rows with a reader."""
    file = tmp_path / f"data{suffix}"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return read_dataset(f"{reader}:{file}")[1]


def only_response(examples: list[Example]) -> LabelledResponse:
    """The only example, which must be a response."""
    (example,) = examples
    assert isinstance(example, LabelledResponse)
    return example


def test_a_labelled_group_gives_an_example_per_labelled_response(tmp_path: Path) -> None:
    group = {"id": "g", "prompt": "?", "responses": ["x", "y", "z"], "rubric": RUBRIC, "task": "t"}
    labels = [{"a": True, "b": False}, {"a": 0.25}, {}]
    first, second = read(tmp_path, "jsonl", group | {"labels": labels})
    assert isinstance(first, LabelledResponse)
    assert isinstance(second, LabelledResponse)
    assert (first.row, first.response, first.labels, first.task) == ("g", "x", {"a": 1.0, "b": 0.0}, "t")
    assert (second.response, second.labels) == ("y", {"a": 0.25})


def test_a_pair_and_a_stepwise_solution_are_read(tmp_path: Path) -> None:
    pair, solution = read(
        tmp_path,
        "jsonl",
        {"prompt": "?", "a": "x", "b": "y", "preferred": "b"},
        {"prompt": "?", "steps": ["one", "two", "three"], "first_wrong_step": 2},
    )
    assert isinstance(pair, LabelledPair)
    assert (pair.a, pair.b, pair.preferred, pair.row) == ("x", "y", "b", "line-1")
    assert isinstance(solution, LabelledResponse)
    assert (solution.labels, solution.first_wrong_step) == ({"step-1": 1.0, "step-2": 0.0}, 2)
    assert "### Step 3:\nthree" in solution.response


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "?", "a": "x", "b": "y", "preferred": "c"}, ":1: preferred is 'c'; write a or b"),
        ({"prompt": "?", "steps": ["x"], "first_wrong_step": 2}, "write a number from 1 to 1, or null"),
        ({"prompt": "?", "responses": ["x"], "labels": [{"a": True}]}, "rubric: write the rubric itself"),
        ({"prompt": "?", "responses": ["x"], "rubric": RUBRIC}, "labels: expected a list of 1 objects"),
        ({"prompt": "?", "responses": ["x"], "rubric": RUBRIC, "labels": [{"c": True}]}, "no criterion 'c'"),
        ({"prompt": "?", "responses": ["x"], "rubric": RUBRIC, "labels": [{"a": 2}]}, "a number from 0 to 1"),
        ({"prompt": 3, "responses": ["x"], "rubric": RUBRIC, "labels": [{"a": True}]}, "prompt"),
        ([1], "not an object with fields such as id, prompt, responses"),
    ],
    ids=str,
)
def test_an_unreadable_line_is_named(tmp_path: Path, row: Any, says: str) -> None:
    with pytest.raises(DatasetError) as failed:
        read(tmp_path, "jsonl", row)
    assert says in str(failed.value)


def test_a_file_of_another_form_names_the_missing_field(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="a field 'steps' is missing"):
        read(tmp_path, "processbench", {"id": "x"})
    with pytest.raises(DatasetError, match="there is no reader 'nope'; use one of jsonl"):
        read_dataset("nope:file.jsonl")
    with pytest.raises(DatasetError, match="cannot be read"):
        read_dataset(str(tmp_path / "missing.jsonl"))


def test_processbench_counts_steps_from_0_and_minus_1_means_no_error(tmp_path: Path) -> None:
    row = {"id": "x", "problem": "?", "steps": ["a", "b", "c"], "label": 1}
    assert only_response(read(tmp_path, "processbench", row)).first_wrong_step == 2
    right = only_response(read(tmp_path, "processbench", row | {"label": -1}))
    assert (right.first_wrong_step, len(right.labels)) == (None, 3)


def test_prm800k_follows_the_completion_chosen_by_the_labeller(tmp_path: Path) -> None:
    def step(ratings: list[int], chosen: int | None, human: str | None = None) -> dict[str, Any]:
        completions = [{"text": f"c{n}", "rating": rating} for n, rating in enumerate(ratings)]
        return {"completions": completions, "chosen_completion": chosen, "human_completion": human and {"text": human}}

    steps = [step([1, -1], 0), step([-1, -1], None, "by hand"), step([-1, 1], None)]
    example = only_response(read(tmp_path, "prm800k", {"question": {"problem": "?"}, "label": {"steps": steps}}))
    assert example.labels == {"step-1": 1.0, "step-2": 1.0, "step-3": 0.0}
    assert "by hand" in example.response


def test_prmbench_labels_every_step_and_takes_one_problem_as_one_row(tmp_path: Path) -> None:
    steps = ["1. Let p be the price.", "2. So p is 3.", "3. It costs 3 cents."]
    row = {
        "original_question": "?",
        "modified_question": "What does it cost?",
        "original_process": steps,
        "modified_process": steps,
        "modified_steps": [2],
        "error_steps": [2],
        "reason": "It assumes the result.",
        "idx": "circular_prm_test_p1_0",
        "question": "?",
        "classification": "circular",
    }
    other = row | {"idx": "deception_prm_test_p1_0", "classification": "deception", "error_steps": []}
    found = read(tmp_path, "prmbench", row, other, row | {"error_steps": [3, 4]})
    assert [one.row for one in found] == ["prm_test_p1_0"] * 2
    first, second = [one for one in found if isinstance(one, LabelledResponse)]
    assert (first.labels, first.task) == ({"step-1": 1.0, "step-2": 0.0, "step-3": 1.0}, "circular")
    assert (set(second.labels.values()), second.task, second.prompt) == ({1.0}, "deception", "What does it cost?")


def test_pairs_of_llmbar_judgebench_and_rewardbench_know_the_better_response(tmp_path: Path) -> None:
    (bar,) = read(tmp_path, "llmbar", {"input": "?", "output_1": "x", "output_2": "y", "label": 2, "subset": "s"})
    bench = {"pair_id": "p", "question": "?", "response_A": "x", "response_B": "y", "label": "A>B", "source": "s"}
    (judged,) = read(tmp_path, "judgebench", bench)
    assert isinstance(bar, LabelledPair)
    assert isinstance(judged, LabelledPair)
    assert (bar.preferred, judged.preferred) == ("b", "a")
    names = {"chosen_model": "m", "rejected_model": "n", "subset": "math-prm", "id": 4}
    (rewarded,) = read(tmp_path, "rewardbench", {"prompt": "?", "chosen": "x", "rejected": "y", **names})
    assert rewarded == LabelledPair("?", "?", "x", "y", "a", "math-prm")


def test_scales_become_labels_between_0_and_1(tmp_path: Path) -> None:
    answers = dict.fromkeys(LLM_RUBRIC, "4") | {"Q1": "1", "Q2": "", "text_id": "t"}
    spoken = {"messages": [{"role": "user", "content": "Hi"}]}
    rubric = only_response(read(tmp_path, "llm-rubric", {"human": answers, "conversation": spoken}))
    assert (rubric.labels["Q1"], rubric.labels["Q0"], "Q2" in rubric.labels) == (0.0, 1.0, False)
    scores = {"criteria": "Is good.", **{f"score{n}_description": f"d{n}" for n in range(1, 6)}}
    row = {"id": "x", "system_prompt": "Be kind.", "input": "?", "response": "!", "human_score": 4}
    biggen = only_response(read(tmp_path, "biggen", row | {"score_rubric": scores}))
    assert (biggen.labels, biggen.prompt) == ({"c1": 0.75}, "Be kind.\n\n?")
    assert "5: d5" in (biggen.criteria[0].scoring_guide or "")
    qualities = {name: [5, 3] for name in ("coherence", "consistency", "fluency", "relevance")}
    summaries = read(tmp_path, "summeval", {"id": "x", "text": "t", "machine_summaries": ["a", "b"], **qualities})
    assert [one.labels["fluency"] for one in summaries if isinstance(one, LabelledResponse)] == [1.0, 0.5]
    experts = [dict.fromkeys(qualities, score) for score in (5, 4, 3)]
    paired = {"id": "x", "model_id": "M0", "decoded": "a", "text": "t", "expert_annotations": experts}
    assert only_response(read(tmp_path, "summeval", paired)).labels == dict.fromkeys(qualities, 0.75)
    with pytest.raises(DatasetError, match="pair the annotations with their articles"):
        read(tmp_path, "summeval", {name: value for name, value in paired.items() if name != "text"})


def test_contractnli_is_read_as_published_and_row_by_row(tmp_path: Path) -> None:
    published = {
        "documents": [
            {"id": 1, "text": "t", "annotation_sets": [{"annotations": {"n": {"choice": "Entailment", "spans": []}}}]}
        ],
        "labels": {"n": {"hypothesis": "h"}},
    }
    row = {"id": 1, "text": "t", "criteria": [{"id": "n", "hypothesis": "h", "choice": "Entailment"}]}
    assert read(tmp_path, "contractnli", published, suffix=".json") == read(tmp_path, "contractnli", row)


def test_claims_of_wikipedia_are_met_only_if_all_of_them_is_supported(tmp_path: Path) -> None:
    labels = ["supported", "partially_supported", "not_supported"]
    given = [{"claim": "c", "evidence": ["a", "b"], "label": label, "meta": {"id": label}} for label in labels]
    found = [one for one in read(tmp_path, "wice", *given) if isinstance(one, LabelledResponse)]
    assert [(one.row, one.labels["supported"]) for one in found] == list(zip(labels, [1.0, 0.0, 0.0], strict=True))
    assert {(one.response, one.grounding) for one in found} == {("c", "a\nb")}


def test_pubmedqa_is_read_as_published_and_row_by_row_without_what_is_undecided(tmp_path: Path) -> None:
    decisions = {"1": "yes", "2": "no", "3": "maybe"}
    published = {n: {"QUESTION": "q?", "CONTEXTS": ["a", "b"], "final_decision": d} for n, d in decisions.items()}
    given = [{"id": n, "question": "q?", "contexts": ["a", "b"], "final_decision": d} for n, d in decisions.items()]
    hub = [{"pubid": int(r["id"]), "context": {"contexts": r["contexts"]}, **r} for r in given]
    for row in hub:
        del row["id"], row["contexts"]
    read_rows = read(tmp_path, "pubmedqa", *given)
    assert read(tmp_path, "pubmedqa", published, suffix=".json") == read_rows == read(tmp_path, "pubmedqa", *hub)
    responses = [one for one in read_rows if isinstance(one, LabelledResponse)]
    assert [(one.row, one.labels["supported"]) for one in responses] == [("1", 1.0), ("2", 0.0)]
    assert {(one.prompt, one.response, one.grounding) for one in responses} == {("q?", "Yes.", "a\nb")}


def test_physicians_who_disagree_give_no_label(tmp_path: Path) -> None:
    row = {"prompt_id": "p", "prompt": [{"role": "user", "content": "?"}], "completion": "!", "rubric": "Is safe."}
    votes = [[True, True, False], [True, False], [False]]
    found = read(tmp_path, "healthbench", *(row | {"binary_labels": each} for each in votes))
    assert [one.labels for one in found if isinstance(one, LabelledResponse)] == [{"c1": 1.0}, {"c1": 0.0}]


def test_infobench_reads_a_question_as_a_criterion(tmp_path: Path) -> None:
    row = {"id": "x", "instruction": "Do", "input": "", "output": "!", "decomposed_questions": ["Done?", "Well?"]}
    example = only_response(read(tmp_path, "infobench", row | {"eval": [True, None]}))
    assert (example.labels, example.criteria[1].description, example.prompt) == ({"q1": 1.0}, "Well?", "Do")


def test_a_sample_takes_tasks_in_turn_and_does_not_depend_on_the_order(tmp_path: Path) -> None:
    rows = [
        {"id": f"r{n}", "prompt": "?", "a": "x", "b": f"y{n}", "preferred": "a", "task": "t" if n % 5 else "u"}
        for n in range(20)
    ]
    found, backwards = (sample(read(tmp_path, "jsonl", *some), 6) for some in (rows, rows[::-1]))
    assert {one.row for one in found} == {one.row for one in backwards}
    assert sorted(one.task for one in found) == ["t"] * 3 + ["u"] * 3
    assert {half_of(one.row) for one in found} <= {"fit", "held"}
