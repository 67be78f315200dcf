"""Public data sets as labelled items: one response, one criterion, and whether the criterion is met.

The data sets are read from a folder; none of their text is stored. A fixed hash of a row's identifier assigns it to one
of two halves, so that anything fitted on one half can be measured on unseen rows.
"""

import argparse
import ast
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from judge_server.evaluation.data_sets import READERS
from judge_server.evaluation.labelled import MET_FROM, Half, LabelledResponse, half_of

GSM8K = "gsm8k_model_rollouts.jsonl"
CONTRACTNLI = "contractnli_dev_test_docs.jsonl"
PROCESSBENCH = "processbench.jsonl"

GSM8K_MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
"""The models whose rollouts a row of GSM8K contains."""


def rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSONL file."""
    with file.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def gsm8k_answer(solution: str) -> str:
    """Return the final answer of a GSM8K solution; empty if there is none."""
    _, marker, answer = solution.rpartition("A:")
    return answer.strip() if marker else ""


def in_steps(steps: list[str]) -> str:
    """Join steps into one response with numbered step headers."""
    return "\n".join(f"### Step {number}:\n{step}" for number, step in enumerate(steps, 1))


@dataclass(frozen=True, slots=True)
class Item:
    """One judgement with its label.

    Attributes:
        task: the name of the task.
        row: the identifier of the data set's row; all items of a row are in the same half.
        prompt: the prompt that the response answers, as text.
        response: the text to judge.
        criterion: the criterion to judge it by.
        label: whether the criterion is met (for a pitfall: whether the mistake is made).
        kind: the criterion's kind.
        grounding, reference_answer, ground_truth: further material for the judge.
    """

    task: str
    row: str
    prompt: str
    response: str
    criterion: str
    label: bool
    kind: str = "point"
    grounding: str | None = None
    reference_answer: str | None = None
    ground_truth: str | None = None

    @property
    def key(self) -> str:
        """A digest of everything but the label."""
        return _digest(json.dumps([getattr(self, name) for name in self.__slots__ if name != "label"]))

    @property
    def half(self) -> Half:
        """The half of the item's row."""
        return half_of(self.row)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def gsm8k_answer_named(folder: Path) -> Iterator[Item]:
    """Yield rollouts of four models with a criterion that names the right answer; labels by the answer check."""
    for row in rows(folder / GSM8K):
        truth = gsm8k_answer(row["ground_truth"])
        for model in GSM8K_MODELS:
            solution, right = row[model]["solution"], bool(row[model]["is_correct"])
            yield _rollout("gsm8k-answer", row, solution, f"The final answer is {truth}.", right)


def gsm8k_reference(folder: Path) -> Iterator[Item]:
    """Yield the same rollouts with a reference solution: is the reasoning right?"""
    criterion = "The reasoning is correct and comes to the result of the reference answer."
    for row in rows(folder / GSM8K):
        for model in GSM8K_MODELS:
            item = _rollout("gsm8k-reference", row, row[model]["solution"], criterion, bool(row[model]["is_correct"]))
            yield replace(item, reference_answer=plain_math(row["ground_truth"]))


CALCULATION = re.compile(r"<<([^<>=]+)=([^<>]+)>>")
"""GSM8K's markup of a calculation: the expression and the result."""


def gsm8k_steps(folder: Path) -> Iterator[Item]:
    """Yield lines of the reference solution as criteria, which are met if the rollout calculates the same result.

    Labels by program: the result of the line's calculation is among the results of the rollout's calculations.
    """
    for row in rows(folder / GSM8K):
        for line in row["ground_truth"].split("\n"):
            calculation = CALCULATION.search(line)
            if calculation is None:
                continue
            for solution in [row[model]["solution"] for model in GSM8K_MODELS]:
                results = {result for _, result in CALCULATION.findall(solution)}
                if results:
                    criterion = f"Finds that {plain_math(line).strip()}"
                    yield _rollout("gsm8k-steps", row, solution, criterion, calculation[2] in results)


def gsm8k_pitfall(folder: Path) -> Iterator[Item]:
    """Yield a wrong line of a rollout as a pitfall, for that rollout and for a right one. Labels by construction."""
    for row in rows(folder / GSM8K):
        right, wrong = (
            [row[model]["solution"] for model in GSM8K_MODELS if bool(row[model]["is_correct"]) is correct]
            for correct in (True, False)
        )
        truths = {result for _, result in CALCULATION.findall(row["ground_truth"])}
        if not right or not wrong:
            continue
        lines = [
            line
            for line in wrong[0].split("\n")
            if (c := CALCULATION.search(line)) and c[2] not in truths and c[2] not in right[0]
        ]
        if not lines:
            continue
        mistake = f"Claims that {plain_math(lines[0]).strip()}"
        for solution, label in ((wrong[0], True), (right[0], False)):
            yield replace(_rollout("gsm8k-pitfall", row, solution, mistake, label), kind="pitfall")


def _rollout(task: str, row: dict[str, Any], solution: str, criterion: str, label: bool) -> Item:
    """Build an item about a solution of a row of GSM8K, which its question identifies."""
    return Item(task, row["question"], row["question"], plain_math(solution), criterion, label)


def plain_math(text: str) -> str:
    """Remove the markup of calculations from a GSM8K solution."""
    return re.sub(r"<<[^<>]*>>", "", text)


def contractnli(folder: Path) -> Iterator[Item]:
    """Yield hypotheses as criteria for a contract, which are met if the contract entails them."""
    prompt = "Draw up a non-disclosure agreement."
    for row in sorted(rows(folder / CONTRACTNLI), key=lambda row: len(row["text"])):
        for found in row["criteria"]:
            met = found["choice"] == "Entailment"
            yield Item("contractnli", str(row["id"]), prompt, row["text"], found["hypothesis"], met)


_EXCERPT = 1200


def faithful(folder: Path) -> Iterator[Item]:
    """Yield claims about an excerpt of a contract as one-line summaries: is each fact supported by the text?

    Supported: the claim is entailed, and the excerpt contains the annotators' evidence. Unsupported: the text
    contradicts it, or the excerpt is from another place of the contract, without the evidence.
    """
    task = "Summarize one point of the following agreement.\n\n{}"
    criterion = "Every fact in the summary is supported by the agreement."
    for row in rows(folder / CONTRACTNLI):
        text, spans = row["text"], row["spans"]
        for found in row["criteria"]:
            if found["choice"] == "NotMentioned" or not found["evidence_spans"]:
                continue
            begin, end = spans[min(found["evidence_spans"])][0], spans[max(found["evidence_spans"])][1]
            if end - begin > _EXCERPT:
                continue
            windows = [(_around(text, begin, end), found["choice"] == "Entailment")]
            if found["choice"] == "Entailment" and int(_digest(f"{row['id']} {found['id']}")[:4], 16) % 4:
                elsewhere = begin - _EXCERPT if begin > 2 * _EXCERPT else end + _EXCERPT // 2
                away = text[elsewhere : elsewhere + _EXCERPT]
                overlaps = elsewhere < end and begin < elsewhere + len(away)
                if len(away) > _EXCERPT // 2 and not overlaps:
                    windows = [(away, False)]
            for window, label in windows:
                yield Item("faithful", str(row["id"]), task.format(window), found["hypothesis"], criterion, label)


def _around(text: str, begin: int, end: int) -> str:
    margin = max(0, _EXCERPT - (end - begin)) // 2
    return text[max(0, begin - margin) : end + margin]


def grounded(folder: Path) -> Iterator[Item]:
    """Yield the same claims and excerpts with the excerpt as grounding."""
    for item in faithful(folder):
        _, _, source = item.prompt.partition("\n\n")
        yield replace(
            item,
            task="grounded",
            prompt="Summarize one point of the agreement.",
            criterion="What the response states is supported by the source.",
            grounding=source,
        )


def infobench(folder: Path) -> Iterator[Item]:
    """Yield experts' yes-no questions about a response, with GPT-4's verdicts as labels."""
    for row in rows(folder / "infobench_gpt4_decomposed.jsonl"):
        for question, label in zip(row["decomposed_questions"], row["eval"], strict=True):
            if label is not None:
                yield Item("infobench", row["id"], _infobench_prompt(row), row["output"], question, bool(label))


def _infobench_prompt(row: dict[str, Any]) -> str:
    return f"{row['instruction']}\n\n{row['input']}".strip()


def infobench_swapped(folder: Path) -> Iterator[Item]:
    """Yield questions about content, for the right response and for another row's. Labels by construction."""
    short = [row for row in rows(folder / "infobench_gpt4_decomposed.jsonl") if len(row["output"]) < 1200]
    for half in ("fit", "held"):
        half_rows = [row for row in short if half_of(row["id"]) == half]
        for number, row in enumerate(half_rows):
            other = half_rows[(number + 1) % len(half_rows)]
            labelled = zip(row["decomposed_questions"], row["question_label"], row["eval"], strict=True)
            questions = [question for question, kinds, met in labelled if "Content" in kinds and met]
            for question in questions[:1]:
                for output, label in ((row["output"], True), (other["output"], False)):
                    yield Item("infobench-swapped", row["id"], _infobench_prompt(row), output, question, label)


def healthbench(folder: Path) -> Iterator[Item]:
    """Yield conversations with physicians' criteria, labelled by another LLM judge. Only for measuring, not fitting."""
    shortest_first = sorted(
        rows(folder / "healthbench_m42_responses_llmjudged.jsonl"), key=lambda row: len(json.dumps(row))
    )
    for row in shortest_first:
        prompt = "\n\n".join(f"{m['role']}: {m['content']}" for m in row["prompt"])
        response = row["prompt_response"][-1]["content"]
        for rubric, verdict in zip(row["rubrics"], ast.literal_eval(row["responses"]), strict=True):
            met = bool(verdict["response_dict"]["criteria_met"])
            yield Item("healthbench", row["prompt_id"], prompt, response, rubric["criterion"], met)


def llmbar(folder: Path) -> Iterator[Item]:
    """Yield each output of pairs on whose better one humans agree, separately."""
    criterion = "The response does what the instruction asks for, and does it correctly."
    for row in rows(folder / "llmbar.jsonl"):
        for number in ("1", "2"):
            better = str(row["label"]) == number
            yield Item("llmbar", row["input"], row["input"], row[f"output_{number}"], criterion, better)


def biggen(folder: Path) -> Iterator[Item]:
    """Yield questions of instance-specific rubrics, for the reference answer and for another instance's.

    Labels by construction. The other instance has the same capability and is in the same half.
    """
    by_half: dict[tuple[Half, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows(folder / "biggen_instances_rubrics.jsonl"):
        if len(row["reference_answer"]) + len(row["input"]) < 5000:
            by_half[half_of(row["id"]), row["capability"]].append(row)
    for same in by_half.values():
        for number, row in enumerate(same):
            other = same[(number + 1) % len(same)]
            if other is row:
                continue
            for answer, label in ((row["reference_answer"], True), (other["reference_answer"], False)):
                yield Item("biggen", row["id"], row["input"], answer, row["score_rubric"]["criteria"], label)


def processbench(folder: Path) -> Iterator[Item]:
    """Yield solutions in steps, cut off after and before the first wrong step: is there a mistake? Human labels."""
    for row in rows(folder / PROCESSBENCH):
        if row["label"] <= 0:  # no mistake, or no step before it
            continue
        for end, label in ((row["label"] + 1, True), (row["label"], False)):
            solution, mistake = in_steps(row["steps"][:end]), "A step that reasons or calculates wrongly."
            yield Item("processbench", row["id"], row["problem"], solution, mistake, label, "pitfall")


def wice(folder: Path) -> Iterator[Item]:
    """Yield sentences of Wikipedia with the page that they cite as grounding: is the sentence supported?"""
    return _read("wice", folder / "wice_dev.jsonl")


def wice_prompt(folder: Path) -> Iterator[Item]:
    """Yield the same sentences with the page in the prompt."""
    for item in wice(folder):
        yield replace(
            item,
            task="wice-prompt",
            prompt=f"Write one sentence that states a point of the following article.\n\n{item.grounding}",
            criterion="Every fact in the response is supported by the article.",
            grounding=None,
        )


def pubmedqa(folder: Path) -> Iterator[Item]:
    """Yield the answer yes to research questions, with the abstract as grounding: do its findings support it?"""
    return _read("pubmedqa", folder / "pubmedqa.jsonl")


def _read(reader: str, file: Path) -> Iterator[Item]:
    """Yield an item for each label that a reader of `adjudge evaluate` finds; the task is called like the reader."""
    for example in READERS[reader].read(file):
        assert isinstance(example, LabelledResponse)
        for one in example.criteria:
            met = example.labels[one.id] >= MET_FROM
            asked = (example.row, example.prompt, example.response, one.description, met)
            yield Item(reader, *asked, grounding=example.grounding)


class Task(NamedTuple):
    """A task: how its items are read from the folder, where their labels come from, and what they may be used for.

    Nothing is fitted or chosen on a task that is `measured_only`: HealthBench, whose licence asks for that, and tasks
    that were kept to the end.
    """

    items: Callable[[Path], Iterator[Item]]
    labelled_by: str
    measured_only: bool = False


TASKS: dict[str, Task] = {
    "gsm8k-answer": Task(gsm8k_answer_named, "answer check"),
    "gsm8k-reference": Task(gsm8k_reference, "answer check"),
    "gsm8k-steps": Task(gsm8k_steps, "program"),
    "gsm8k-pitfall": Task(gsm8k_pitfall, "construction"),
    "contractnli": Task(contractnli, "human"),
    "faithful": Task(faithful, "human"),
    "grounded": Task(grounded, "human"),
    "infobench": Task(infobench, "GPT-4"),
    "infobench-swapped": Task(infobench_swapped, "construction"),
    "healthbench": Task(healthbench, "LLM judge", measured_only=True),
    "llmbar": Task(llmbar, "human"),
    "biggen": Task(biggen, "construction"),
    "processbench": Task(processbench, "human"),
    "pubmedqa": Task(pubmedqa, "experts"),
    "wice": Task(wice, "human", measured_only=True),
    "wice-prompt": Task(wice_prompt, "human", measured_only=True),
}
"""The tasks by name."""


def tasks_of(half: Half) -> list[str]:
    """Return the tasks that may be used in a half."""
    return [name for name, task in TASKS.items() if half == "held" or not task.measured_only]


LONGEST = 6000
"""Default limit on the total characters of prompt, response and sources; longer items are slow on two cores."""


def load_items(
    folder: Path, half: Half, tasks: Sequence[str] = tuple(TASKS), size: int = 150, longest: int = LONGEST
) -> dict[str, list[Item]]:
    """Read balanced items of each task in one half of the rows; of a task that is measured only, of all rows.

    Raises:
        ValueError: such a task is requested in the half for fitting.
    """
    refused = sorted(set(tasks).difference(tasks_of(half)))
    if refused:
        raise ValueError(f"{', '.join(refused)} must not be used for fitting; leave it out, or use the half held")
    found = {}
    for name in tasks:
        items = [item for item in TASKS[name].items(folder) if item.half == half or TASKS[name].measured_only]
        found[name] = balanced(items, size, longest)
    return found


def add_item_options(parser: argparse.ArgumentParser, size: int = 150) -> None:
    """Add the options that choose items, for `chosen_items`; `size` is the default number of a task."""
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("--half", choices=["fit", "held"], default="held", help="half of the rows; default: held")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), help="default: all that the half may be used for")
    parser.add_argument("--size", type=int, default=size, help="maximum items per task, half of them met")
    parser.add_argument("--longest", type=int, default=LONGEST, help="maximum characters of an item's texts")


def chosen_items(given: argparse.Namespace, without: Sequence[str] = ()) -> dict[str, list[Item]]:
    """Read the items that the options choose, but for some tasks. Raises `ValueError` as `load_items` does."""
    names = [name for name in given.tasks or tasks_of(given.half) if name not in without]
    return load_items(given.data, given.half, names, given.size, given.longest)


def balanced(items: Sequence[Item], size: int, longest: int = LONGEST) -> list[Item]:
    """Choose at most `size` items, with as many met as unmet.

    The choice and its order are deterministic. Items with the same text are adjacent, so that an engine reads it once.
    """
    short = [item for item in items if _length(item) <= longest]
    halves = [
        sorted((item for item in short if item.label is label), key=lambda item: _digest(item.key))[: size // 2]
        for label in (True, False)
    ]
    fewest = min(len(half) for half in halves)
    chosen = [item for half in halves for item in half[:fewest]]
    return sorted(chosen, key=lambda item: (item.row, item.prompt, item.response, item.criterion))


def _length(item: Item) -> int:
    return sum(len(text or "") for text in (item.prompt, item.response, item.grounding, item.reference_answer))
