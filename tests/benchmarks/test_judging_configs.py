"""The benchmark of judging configurations: samples have the labels of their data, rows are right, and it runs."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.data import GSM8K_MODELS
from benchmarks.judging_configs import __main__ as command
from benchmarks.judging_configs.measure import CallConfig, ConfigAnswers, row
from benchmarks.judging_configs.samples import Sample, answers, contracts, steps

from trainer_client.wire import VerdictAnswer

RIGHT, WRONG = "3*2 = <<3*2=6>>6 eggs\nA: 6", "3+2 = <<3+2=5>>5 eggs\nA: 5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder of a few made-up rows in the data sets' shapes."""
    texts = [("long " * 30, "Entailment"), ("short", "NotMentioned"), ("of some length", "Contradiction")]
    write(
        tmp_path / "contractnli_dev_test_docs.jsonl",
        [
            {
                "id": n,
                "text": text,
                "criteria": [
                    {"id": f"nda-{i}", "hypothesis": f"Clause {i}.", "choice": choice if i else "Entailment"}
                    for i in range(6)
                ],
            }
            for n, (text, choice) in enumerate(texts)
        ],
    )
    write(
        tmp_path / "gsm8k_model_rollouts.jsonl",
        [
            {"question": "Eggs?", "ground_truth": "3 * 2 = <<3*2=6>>6\nA: 6"}
            | {
                model: {"is_correct": text is RIGHT, "solution": text}
                for model, text in zip(GSM8K_MODELS, texts, strict=True)
            }
            for texts in ((WRONG, RIGHT, WRONG, "6 eggs"), ("6 eggs", RIGHT, WRONG, RIGHT), (RIGHT,) * 4)
        ],
    )
    write(
        tmp_path / "processbench.jsonl",
        [
            {"id": f"p{n}", "split": split, "problem": "?", "steps": ["a", "b", "c", "d"], "label": label}
            for n, (split, label) in enumerate([("gsm8k", 0), ("math", 2), ("gsm8k", 2), ("gsm8k", -1)])
        ],
    )
    return tmp_path


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Rows as JSONL."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_the_shortest_contracts_come_first_and_only_entailment_is_a_yes(folder: Path) -> None:
    first, second = contracts(folder, 2)
    assert [first.group["responses"], second.group["responses"]] == [["short"], ["of some length"]]
    assert first.labels == ({"nda-0": 1} | {f"nda-{i}": 0 for i in range(1, 6)},)
    assert contracts(folder, 3)[-1].labels == ({f"nda-{i}": 1 for i in range(6)},)


def test_rollouts_are_labelled_by_their_answers_and_calculations(folder: Path) -> None:
    sample = answers(folder, 2)[0]
    described = {c["id"]: c["description"] for c in sample.group["rubric"]["criteria"]}
    assert described["first"] == "The final answer of the response is 5."
    assert described["other"] == "The final answer of the response is 6."
    assert described["calculation"] == "The response calculates 3*2."
    assert sample.group["ground_truth"] == "6"
    wrong = {"right": 0, "first": 1, "other": 0, "calculation": 0}
    right = {"right": 1, "first": 0, "other": 1, "calculation": 1}
    assert sample.labels == (wrong, right, wrong, dict.fromkeys(wrong, 0))


def test_answers_missing_from_the_first_rollout_are_not_requested(folder: Path) -> None:
    sample = answers(folder, 2)[1]
    assert [c["id"] for c in sample.group["rubric"]["criteria"]] == ["right", "other", "calculation"]
    assert all(set(labels) == {"right", "other", "calculation"} for labels in sample.labels)


def test_every_criterion_goes_to_the_judge_even_if_a_program_could_decide_it(folder: Path) -> None:
    samples = [*contracts(folder, 1), *answers(folder, 1), *steps(folder, 1)]
    criteria = [criterion for sample in samples for criterion in sample.group["rubric"]["criteria"]]
    assert all(criterion["verification"] == {"method": "judge"} for criterion in criteria)


def test_steps_are_asked_up_to_the_first_wrong_one_with_the_whole_solution_shown(folder: Path) -> None:
    (sample,) = steps(folder, 5)
    assert sample.labels == ({"step-1": 1, "step-2": 1, "step-3": 0},)
    assert sample.group["responses"] == ["### Step 1:\na\n### Step 2:\nb\n### Step 3:\nc\n### Step 4:\nd"]


def verdict(criterion: str, score: float | None, probability: float | None = None) -> dict[str, Any]:
    """A verdict of the wire contract; failed without a score."""
    said = {"criterion": criterion, "status": "failed" if score is None else "ok", "score": score}
    failure = {"kind": "parse", "detail": "nothing"} if score is None else None
    return said | {"probability": probability, "failure": failure}


def test_a_row_counts_tokens_for_every_judgement_and_compares_only_the_answered_ones() -> None:
    sample = Sample({"id": "g"}, ({"a": 1, "b": 0}, {"a": 0, "b": 1}))
    responses = [
        {"verdicts": [verdict("a", 1.0, 0.9), verdict("b", 1.0, 0.6)]},
        {"verdicts": [verdict("a", 0.0, 0.2), verdict("b", None)]},
    ]
    usage = {"prompt_tokens_computed": 100, "prompt_tokens_reused": 60, "tokens_written": 8, "failed": 1}
    answer = VerdictAnswer.model_validate(
        {"request_id": "r", "rubrics": [], "usage": usage, "groups": [{"id": "g", "responses": responses}]}
    )
    made = row("made up", CallConfig("binary", 4, True), [sample], ConfigAnswers((answer,), 2.0))
    assert made == {
        "data set": "made up",
        "protocol": "binary",
        "k": "4",
        "rationale": "yes",
        "verdicts": 4,
        "failed": 1,
        "judgements/s": 1.5,
        "computed": 25.0,
        "reused": 15.0,
        "written": 2.0,
        "yes, labels": 0.5,
        "agreement": pytest.approx(2 / 3),
        "AUROC": 1.0,
    }


def test_figures_without_any_verdict_are_null() -> None:
    sample = Sample({"id": "g"}, ({"a": 1},))
    groups = [{"id": "g", "responses": [{"verdicts": [verdict("a", None)]}]}]
    answer = VerdictAnswer.model_validate({"request_id": "r", "rubrics": [], "usage": {}, "groups": groups})
    made = row("made up", CallConfig("binary", 1, False), [sample], ConfigAnswers((answer,), 1.0))
    assert (made["agreement"], made["AUROC"], made["failed"]) == (None, None, 1)


@pytest.mark.slow
def test_the_command_asks_in_every_configuration_and_writes_its_rows(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.report.FOLDER", tmp_path / "bench")
    monkeypatch.setattr(sys, "argv", ["judging_configs", str(folder), "--engine", "scripted://hash", "--limit", "1"])
    command.main()
    (file,) = (tmp_path / "bench").iterdir()
    rows = json.loads(file.read_text())["rows"]
    assert [(r["data set"], r["k"], r["rationale"]) for r in rows] == [
        *[("ContractNLI", k, reason) for reason in ("no", "yes") for k in ("1", "4", "all")],
        *[(name, k, reason) for name in ("GSM8K", "ProcessBench") for reason in ("no", "yes") for k in ("1", "4")],
    ]
    assert [r["verdicts"] for r in rows] == [6] * 6 + [16] * 4 + [3] * 4
    assert all(r["failed"] == 0 for r in rows)
