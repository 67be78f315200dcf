"""The agreement benchmark: items, stored replies, contenders, and figures small enough to check by hand."""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from benchmarks.agreement import __main__ as command
from benchmarks.agreement import store as stores
from benchmarks.agreement.contenders import AdjudgeContender, ItemVerdict, PlainContender, UnknownContender
from benchmarks.agreement.fit import Calibrated, FittedMap, entry, fit_map, known_formats
from benchmarks.agreement.items import GSM8K_MODELS, TASKS, Item, balanced, load_items
from benchmarks.agreement.metrics import FIGURES, measure
from benchmarks.agreement.rows import labelled_row
from benchmarks.agreement.store import ReplyStore, StoredEngine, StoredReply, slug
from benchmarks.agreement.tables import detail, table_rows
from benchmarks.agreement.verdicts import judge_items, load_verdicts, started
from hypothesis import given
from hypothesis import strategies as st

from judge_server.engines.scripted import ScriptedEngine
from judge_server.evaluation.labelled import LabelledResponse, read_rows
from judge_server.evaluation.metrics import RESAMPLES
from judge_server.judging.calibration import FittedCalibration, ProbabilityMap
from judge_server.judging.prompts import PromptForm, PromptTemplates
from judge_server.judging.prompts.library import builtin_templates
from judge_server.ports import Batch, Call, CallFailure, JsonOutput, Option, Reasoning, Reply, TokenChoice
from trainer_client.wire import Criterion

MODEL = "tiny"
RIGHT, WRONG = "3*2 = <<3*2=6>>6 eggs\nA: 6", "3+2 = <<3+2=5>>5 eggs\nA: 5"
LONG = "This agreement says a great many things of no importance. " * 60


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Rows as JSONL."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder of made-up rows in the data sets' shapes."""
    data = tmp_path / "data"
    data.mkdir()
    write(
        data / "gsm8k_model_rollouts.jsonl",
        [
            {"question": f"Eggs, {n}?", "ground_truth": f"So 3 * 2 = <<3*2=6>>6 ({n})\nA: 6"}
            | {
                model: {"is_correct": solution is RIGHT, "solution": f"I am {model}. {solution}"}
                for model, solution in zip(GSM8K_MODELS, (RIGHT, WRONG, RIGHT, WRONG), strict=True)
            }
            for n in range(8)
        ],
    )
    evidence = {"evidence_spans": [0]}
    write(
        data / "contractnli_dev_test_docs.jsonl",
        [
            {
                "id": n,
                "text": f"Secrets stay secret, {n}. {LONG}",
                "spans": [[0, 24], [25, 80]],
                "criteria": [
                    {"id": "a", "hypothesis": "Secrets stay secret.", "choice": "Entailment"} | evidence,
                    {"id": "b", "hypothesis": "Secrets are told.", "choice": "Contradiction"} | evidence,
                    {"id": "c", "hypothesis": "Cats are kept.", "choice": "NotMentioned", "evidence_spans": []},
                ],
            }
            for n in range(24)
        ],
    )
    write(
        data / "processbench.jsonl",
        [{"id": f"p{n}", "problem": "?", "steps": ["a", "b", "c"], "label": n - 1} for n in range(4)],
    )
    write(
        data / "infobench_gpt4_decomposed.jsonl",
        [
            {
                "id": f"i{n}",
                "instruction": "Write.",
                "input": "",
                "output": f"Written {n}.",
                "decomposed_questions": ["Is it written?", "Is it long?"],
                "question_label": [["Content"], ["Style"]],
                "eval": [True, None],
            }
            for n in range(12)
        ],
    )
    write(
        data / "llmbar.jsonl",
        [{"input": f"Do {n}.", "output_1": "Done.", "output_2": "No.", "label": 1} for n in range(4)],
    )
    write(
        data / "biggen_instances_rubrics.jsonl",
        [
            {
                "id": f"b{n}",
                "capability": "planning",
                "input": f"Plan {n}.",
                "reference_answer": f"The plan {n}.",
                "score_rubric": {"criteria": "Is it a plan?"},
            }
            for n in range(12)
        ],
    )
    write(
        data / "healthbench_m42_responses_llmjudged.jsonl",
        [
            {
                "prompt_id": "h",
                "prompt": [{"role": "user", "content": "I cough."}],
                "rubrics": [{"criterion": "Asks how long."}, {"criterion": "Offers tea."}],
                "prompt_response": [{"content": "How long?"}],
                "responses": str([{"response_dict": {"criteria_met": met}} for met in (True, False)]),
            }
        ],
    )
    write(
        data / "pubmedqa.jsonl",
        [
            {"id": f"m{n}", "question": f"Is it {n}?", "contexts": ["It is."], "final_decision": ["yes", "no"][n % 2]}
            for n in range(8)
        ],
    )
    write(
        data / "wice_dev.jsonl",
        [
            {"id": f"w{n}", "claim": f"It is {n}.", "evidence": ["It", f"is {n}."], "label": label}
            for n, label in enumerate(["supported", "not_supported", "partially_supported", "supported"] * 2)
        ],
    )
    return data


def item(n: int, label: bool, *, row: str = "", task: str = "t", kind: str = "point") -> Item:
    return Item(task, row or f"row {n}", f"Prompt {n}.", f"Response {n}.", f"Criterion {n}.", label, kind)


def verdict(probability: float, satisfied: bool | None = None) -> ItemVerdict:
    yes = probability >= 0.5 if satisfied is None else satisfied
    return ItemVerdict(yes, probability, probability, probability, None, 0.9, 60, 40, 0.1)


# Items.


def test_every_task_reads_made_up_rows_and_no_row_is_in_both_halves(folder: Path) -> None:
    for task, declared in TASKS.items():
        items = list(declared.items(folder))
        assert items, task
        assert {i.task for i in items} == {task}
        assert len({i.key for i in items}) == len(items)
        halves = {half: {i.row for i in items if i.half == half} for half in ("fit", "held")}
        assert not halves["fit"] & halves["held"]


def test_items_have_the_labels_of_their_rows(folder: Path) -> None:
    first = list(TASKS["gsm8k-answer"].items(folder))[:2]
    assert [(i.criterion, i.response, i.label) for i in first] == [
        ("The final answer is 6.", "I am 6b_finetuning. 3*2 = 6 eggs\nA: 6", True),
        ("The final answer is 6.", "I am 6b_verification. 3+2 = 5 eggs\nA: 5", False),
    ]
    assert [i.label for i in TASKS["gsm8k-steps"].items(folder)][:2] == [True, False]
    assert [(i.kind, i.label) for i in TASKS["gsm8k-pitfall"].items(folder)][:2] == [
        ("pitfall", True),
        ("pitfall", False),
    ]
    assert [i.label for i in TASKS["contractnli"].items(folder)][:3] == [True, False, False]
    cut = [(i.response.count("###"), i.label) for i in TASKS["processbench"].items(folder)]
    assert cut == [(2, True), (1, False), (3, True), (2, False)]
    grounded = list(TASKS["grounded"].items(folder))
    assert {(i.response, i.label) for i in grounded} >= {("Secrets are told.", False), ("Secrets stay secret.", True)}
    assert all(i.grounding and i.grounding.startswith("Secrets stay secret") for i in grounded if i.label)


def test_a_task_that_is_only_measured_is_measured_on_all_rows(folder: Path) -> None:
    assert len(load_items(folder, "held", ["wice"])["wice"]) == 8
    held, fitted = (load_items(folder, half, ["pubmedqa"])["pubmedqa"] for half in ("held", "fit"))
    assert not {i.row for i in held} & {i.row for i in fitted}


def test_balanced_items_have_equal_shares_of_labels_in_any_input_order() -> None:
    items = [item(n, n % 4 == 0) for n in range(20)]
    chosen = balanced(items, 8)
    assert [sum(i.label is label for i in chosen) for label in (True, False)] == [4, 4]
    assert balanced(items[::-1], 8) == chosen
    assert [sum(i.label is label for i in balanced(items, 100)) for label in (True, False)] == [5, 5]


def test_items_longer_than_allowed_are_left_out() -> None:
    items = [item(n, n % 2 == 0) for n in range(4)] + [replace(item(9, True), prompt="x" * 100)]
    assert all(len(i.prompt) < 100 for i in balanced(items, 10, longest=90))
    assert balanced(items, 10, longest=3) == []


def test_the_key_of_an_item_does_not_depend_on_its_label() -> None:
    assert item(1, True).key == item(1, False).key != item(2, True).key


def test_measurement_only_tasks_are_refused_in_the_fit_half(folder: Path) -> None:
    with pytest.raises(ValueError, match="healthbench"):
        load_items(folder, "fit")
    assert list(load_items(folder, "held", ["healthbench"])) == ["healthbench"]


def test_every_item_is_a_labelled_row_for_the_commands_that_measure_judges(folder: Path, tmp_path: Path) -> None:
    items = [item for task in TASKS.values() for item in task.items(folder)]
    write(tmp_path / "rows.jsonl", [labelled_row(item) for item in items])
    read = list(read_rows(tmp_path / "rows.jsonl"))
    assert len(read) == len(items)
    for one, item in zip(read, items, strict=True):
        assert isinstance(one, LabelledResponse)
        assert (one.task, one.prompt, one.response, one.labels) == (
            item.task,
            item.prompt,
            item.response,
            {"c": float(item.label)},
        )
        assert (one.grounding, one.reference_answer) == (item.grounding, item.reference_answer)
        assert [(asked.description, asked.kind) for asked in one.criteria] == [(item.criterion, item.kind)]


# Metrics.


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.floats(0, 1)), min_size=1, max_size=20).map(
        lambda drawn: [*drawn, (True, 0, 0.5), (False, 1, 0.5)]
    )
)
def test_identical_contenders_differ_by_exactly_zero(drawn: list[tuple[bool, int, float]]) -> None:
    items = [item(n, label, row=f"row {row}") for n, (label, row, _) in enumerate(drawn)]
    found = {i.key: verdict(p) for i, (_, _, p) in zip(items, drawn, strict=True)}
    measured = measure(items, {"plain": found, "adjudge": dict(found)})
    for name in FIGURES:
        assert measured.tasks["t"].difference("adjudge", "plain", name) == (0.0, 0.0, 0.0)
        assert measured.mean.difference("adjudge", "plain", name) == (0.0, 0.0, 0.0)
        value, low, high = measured.mean.estimate("plain", name)
        assert 0 <= low <= high <= 1
        assert 0 <= value <= 1


def test_rows_are_resampled_whole_and_shared_rows_for_every_task_at_once() -> None:
    # Every row has a met item and an unmet one: both are judged right, or both wrong.
    items, found = [], {}
    for task in ("s", "t"):
        for n in range(12):
            for label in (True, False):
                one = replace(item(2 * n + label, label, row=f"row {n}"), task=task)
                items.append(one)
                found[one.key] = verdict(0.9 if label == (n % 2 == 0) else 0.1)
    measured = measure(items, {"plain": found})
    drawn = measured.tasks["s"].resampled["plain"]["balanced_accuracy"]
    assert drawn.shape == (RESAMPLES,)
    assert np.array_equal(drawn, measured.tasks["t"].resampled["plain"]["balanced_accuracy"])
    assert np.allclose(drawn * 12, np.round(drawn * 12))
    assert measured.mean.estimate("plain", "balanced_accuracy") == measured.tasks["s"].estimate(
        "plain", "balanced_accuracy"
    )
    assert measured.tasks["s"].estimate("plain", "balanced_accuracy").value == 0.5
    again = measure(items, {"plain": found})
    assert np.array_equal(drawn, again.tasks["s"].resampled["plain"]["balanced_accuracy"])


def test_items_that_one_contender_failed_on_are_counted_and_scored_for_none() -> None:
    items = [item(n, n % 2 == 0) for n in range(6)]
    plain = {i.key: verdict(0.9 if i.label else 0.1) for i in items}
    adjudge = {i.key: v for i, v in zip(items, plain.values(), strict=True) if i is not items[0]}
    task = measure(items, {"plain": plain, "adjudge": adjudge}).tasks["t"]
    assert (task.n, dict(task.failed)) == (5, {"plain": 0, "adjudge": 1})
    assert task.values["plain"]["yes_rate"] == 0.4
    assert task.tokens["plain"] == (60, 100)


def test_a_task_without_a_verdict_is_left_out_of_the_mean_and_null_in_the_file() -> None:
    items = [item(n, n % 2 == 0, task=task) for task in ("llmbar", "wice") for n in range(4)]
    found = {i.key: verdict(0.9 if i.label else 0.1) for i in items if i.task == "llmbar"}
    measured = measure(items, {"plain": found, "adjudge": found})
    assert measured.averaged == ("llmbar",)
    assert measured.mean.values["plain"]["balanced_accuracy"] == 1.0
    rows = table_rows(measured, ["plain", "adjudge"])
    assert [row["task"] for row in rows] == ["llmbar", "wice", "mean of 1 tasks", "all items at once"]
    assert (rows[0]["plain"], rows[0]["adjudge"]) == ("1.00", "1.00")
    assert rows[0]["adjudge - plain"] == rows[0]["AUROC, adjudge - plain"] == "+0.00 [+0.00, +0.00]"
    assert rows[1]["failed"] == "4 / 4"
    assert rows[-1]["n"] == 4
    written = detail(measured, ["plain", "adjudge"])
    assert written["tasks"]["wice"]["contenders"]["plain"]["auroc"] == {"value": None, "low": None, "high": None}
    json.dumps(written, allow_nan=False)


# The store.


def yes_or_no(question: str) -> Batch:
    options = (Option("yes", ("yes",)), Option("no", ("no",)))
    return Batch("system", "shared", (Call(question, TokenChoice(options)),))


async def test_a_reply_is_requested_once_even_across_processes(tmp_path: Path) -> None:
    file = tmp_path / "store" / "m.jsonl"
    first = StoredEngine(ReplyStore(file), ScriptedEngine())
    await first.start()
    reply = await first.ask(yes_or_no("a"))
    assert await first.ask(yes_or_no("a")) == reply
    assert first.asked == 1
    second = StoredEngine(ReplyStore(file), ScriptedEngine())
    await second.start()
    assert await second.ask(yes_or_no("a")) == reply
    assert isinstance(await second.ask(yes_or_no("b")), StoredReply)
    assert second.asked == 1
    assert isinstance(reply, StoredReply)
    assert reply.raw_probability == pytest.approx(reply.masses[0] / reply.choice_mass)
    assert len(file.read_text().splitlines()) == 2


async def test_a_truncated_last_line_is_dropped_with_a_note_and_requested_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.jsonl"
    engine = StoredEngine(ReplyStore(file), ScriptedEngine())
    await engine.start()
    for question in ("a", "b"):
        await engine.ask(yes_or_no(question))
    file.write_text(file.read_text()[:-20])
    torn = ReplyStore(file)
    assert f"{file}:2: dropped" in capsys.readouterr().err
    engine = StoredEngine(torn, ScriptedEngine())
    await engine.start()
    assert engine.find(yes_or_no("a")) is not None
    assert engine.find(yes_or_no("b")) is None
    await engine.ask(yes_or_no("b"))
    whole = StoredEngine(ReplyStore(file), ScriptedEngine())
    await whole.start()
    assert whole.find(yes_or_no("b")) is not None


async def test_failed_calls_are_not_stored_and_calls_for_reasons_are_refused(tmp_path: Path) -> None:
    def fail(batch: Batch, call: Call) -> Reply | CallFailure:
        return CallFailure("truncated_input", "too long")

    file = tmp_path / "m.jsonl"
    engine = StoredEngine(ReplyStore(file), ScriptedEngine(fail))
    await engine.start()
    assert isinstance(await engine.ask(yes_or_no("a")), CallFailure)
    assert not file.exists()
    with pytest.raises(ValueError, match="without reasons"):
        await engine.ask(Batch("", "", (Call("a", JsonOutput("{}", 5), Reasoning(5, "So?")),)))


# Contenders.


def test_the_plain_question_shows_every_part_and_calls_a_pitfall_a_mistake(tmp_path: Path) -> None:
    plain = PlainContender(StoredEngine(ReplyStore(tmp_path / "m.jsonl"), None))
    full = replace(item(1, True, kind="pitfall"), grounding="Source 1.", reference_answer="Reference 1.")
    (batch,) = plain.batches(full)
    assert batch.system == "You are a strict grader. Answer yes or no."
    assert batch.shared + batch.calls[0].question == (
        "Task:\nPrompt 1.\n\nSource:\nSource 1.\n\nReference answer:\nReference 1.\n\nResponse:\nResponse 1.\n\n"
        "Criterion: The response makes this mistake: Criterion 1.\n\nIs it met? Answer yes or no."
    )
    (bare,) = plain.batches(item(1, True))
    assert bare.shared + bare.calls[0].question == (
        "Task:\nPrompt 1.\n\nResponse:\nResponse 1.\n\nCriterion: Criterion 1.\n\nIs it met? Answer yes or no."
    )


async def test_adjudge_asks_what_the_service_plans_and_its_templates_can_be_replaced(tmp_path: Path) -> None:
    templates = tmp_path / "mine"
    templates.mkdir()
    (templates / "question.j2").write_text("Now, truly: " + builtin_templates()["question.j2"])
    engine = StoredEngine(ReplyStore(tmp_path / "m.jsonl"), ScriptedEngine())
    async with started(["plain", "adjudge", f"adjudge:{templates}"], engine) as contenders:
        shipped, mine = contenders["adjudge"], contenders[f"adjudge:{templates}"]
        assert isinstance(shipped, AdjudgeContender)
        one = item(1, True)
        batch = shipped.batches(one)[0]
        assert all(text in batch.shared + batch.calls[0].question for text in (one.prompt, one.response, one.criterion))
        assert mine.batches(one)[0].calls[0].question == "Now, truly: " + batch.calls[0].question
        found = await shipped.judge(one)
        stored = engine.find(batch)
        assert isinstance(found, ItemVerdict)
        assert stored is not None
        assert (found.raw_probability, found.choice_mass) == (stored.raw_probability, stored.choice_mass)
        assert engine.asked == 1
        await mine.judge(one)
        assert engine.asked == 2


async def test_an_unknown_contender_is_refused_with_the_list_of_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownContender, match="plain, adjudge"):
        async with started(["fancy"], StoredEngine(ReplyStore(tmp_path / "m.jsonl"), None)):
            pass


def test_a_model_may_be_named_by_an_engine_url() -> None:
    assert slug("vllm:///models/judge-1b/?context=8192") == "vllm-judge-1b"
    assert slug("hf://owner/repo/file.gguf") == "hf-owner-repo-file.gguf"
    assert isinstance(stores.engine_of("scripted://hash"), ScriptedEngine)


def test_verdicts_are_read_from_the_store_without_a_model(tmp_path: Path) -> None:
    items = [item(n, n % 2 == 0) for n in range(3)]

    async def ask() -> None:
        engine = StoredEngine(ReplyStore.of_model(MODEL, tmp_path), ScriptedEngine())
        async with started(["plain", "adjudge"], engine) as contenders:
            for contender in contenders.values():
                await judge_items(contender, items[:2])

    asyncio.run(ask())
    for name in ("plain", "adjudge"):
        found = load_verdicts(items, name, MODEL, tmp_path)
        assert list(found) == [i.key for i in items[:2]]
        assert all(0 <= v.raw_probability <= 1 for v in found.values())


# The command.


def test_the_command_measures_both_contenders_and_repeats_no_call(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.report.FOLDER", tmp_path / "bench")
    monkeypatch.setattr(stores, "FOLDER", tmp_path / "store")
    monkeypatch.setattr(stores, "engine_of", lambda model: ScriptedEngine())
    tasks = ["gsm8k-answer", "llmbar"]
    monkeypatch.setattr(
        sys, "argv", ["agreement", str(folder), "--models", MODEL, "--size", "8", "--half", "fit", "--tasks", *tasks]
    )
    command.main()
    said = capsys.readouterr().out
    items = load_items(folder, "fit", tasks, 8)
    for task in tasks:
        assert items[task]
        for name in ("plain", "adjudge"):
            assert f"{MODEL} {task} {name}: {len(items[task])} items, asked {len(items[task])}\n" in said
    (file,) = (tmp_path / "bench").iterdir()
    written = json.loads(file.read_text())
    assert file.name == f"agreement_fit_{MODEL}.json"
    assert [row["task"] for row in written["rows"]] == [*tasks, "mean of 2 tasks", "all items at once"]
    assert [row["n"] for row in written["rows"][:-2]] == [len(items[task]) for task in tasks]
    assert "adjudge - plain" in written["detail"]["mean"]["differences"]
    command.main()
    assert all(line.endswith("asked 0") for line in capsys.readouterr().out.splitlines() if "items, asked" in line)
    assert json.loads(file.read_text())["detail"] == written["detail"]


def test_the_command_explains_invalid_arguments(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stores, "FOLDER", tmp_path / "store")
    monkeypatch.setattr(stores, "engine_of", lambda model: ScriptedEngine())
    for words, reason in (
        ([str(folder), "--contenders", "fancy"], "there is no contender 'fancy'"),
        ([str(folder), "--contenders", f"adjudge:{tmp_path / 'none'}"], "none"),
        ([str(folder), "--half", "fit", "--tasks", "healthbench"], "healthbench must not be used for fitting"),
        ([str(tmp_path / "nothing")], "nothing"),
        ([str(folder), "--longest", "1"], "no item is left"),
    ):
        monkeypatch.setattr(sys, "argv", ["agreement", *words])
        with pytest.raises(SystemExit):
            command.main()
        assert reason in capsys.readouterr().err


# Fitting.


def judged(given: list[float]) -> tuple[list[Item], dict[str, ItemVerdict]]:
    """Items and verdicts with these probabilities."""
    items = [Item("t", f"r{n}", "?", f"Response {n}", "?", n % 2 == 0) for n in range(len(given))]
    return items, {item.key: verdict(p) for item, p in zip(items, given, strict=True)}


@given(st.floats(0.2, 3), st.floats(-2, 2))
def test_the_map_leads_to_the_log_odds_of_the_plain_prompt_whatever_the_labels(slope: float, intercept: float) -> None:
    given_ = [0.1, 0.3, 0.4, 0.6, 0.8, 0.9]
    items, ours = judged(given_)
    _, plain = judged([ProbabilityMap(slope, intercept).calibrate(p) for p in given_])
    for labelled in (items, [replace(item, label=not item.label) for item in items]):
        fitted = fit_map(labelled, {item.key: ours[item.key] for item in labelled}, plain)
        assert fitted == pytest.approx((slope, intercept), abs=2e-3)


def test_every_task_counts_the_same_for_the_map() -> None:
    items = [item(n, True, task="a") for n in range(30)] + [item(n, True, task="b") for n in range(30, 33)]
    ours = {i.key: verdict([0.2, 0.5, 0.8][n % 3]) for n, i in enumerate(items)}
    shifts = {"a": 0.0, "b": 1.0}
    plain = {i.key: verdict(ProbabilityMap(1.0, shifts[i.task]).calibrate(ours[i.key].probability)) for i in items}
    assert fit_map(items, ours, plain) == pytest.approx((1.0, 0.5), abs=2e-3)


def test_an_entry_states_the_judging_that_its_map_applies_to() -> None:
    items, _ = judged([0.6, 0.4])
    made = FittedCalibration.model_validate(entry(["w", "x"], "binary", "v", items, FittedMap(0.8, -0.4)))
    assert made.weights == ("w", "x")
    assert made.calibration.default == ProbabilityMap(0.8, -0.4)


def test_both_protocols_ask_in_the_same_words_so_their_maps_are_the_same() -> None:
    binary, stepwise = (PromptTemplates(PromptForm(protocol)) for protocol in get_args(Calibrated))
    criterion = Criterion(id="c", description="Is right.")
    assert (binary.system, binary.question(criterion)) == (stepwise.system, stepwise.question(criterion))


def test_a_new_map_keeps_the_other_formats_of_its_weights() -> None:
    maps = [{"weights": ["gguf", "converted"]}, {"weights": ["other"]}]
    assert known_formats(["gguf"], maps) == ["gguf", "converted"]
    assert known_formats(["new"], maps) == ["new"]
    assert known_formats(["converted", "new"], maps) == ["gguf", "converted", "new"]


@pytest.mark.parametrize(("ours", "plain"), [([0.2, 0.8], [0.8, 0.2]), ([0.5, 0.5], [0.2, 0.8])])
def test_a_map_that_would_lose_the_order_is_refused(ours: list[float], plain: list[float]) -> None:
    items, given_ = judged(ours)
    with pytest.raises(ValueError, match=r"order|several"):
        fit_map(items, given_, judged(plain)[1])
