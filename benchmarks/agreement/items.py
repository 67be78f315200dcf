"""Public data sets as labelled items: one response, one criterion, and whether the criterion is met.

The data sets are read from a folder that the caller names; none of their text is stored. A fixed hash of what
identifies a row puts it into one of two halves, so that whatever is fitted on one half can be measured on rows it
never saw.
"""

import ast
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.data import CONTRACTNLI, GSM8K, GSM8K_MODELS, PROCESSBENCH, gsm8k_answer, in_steps, rows

Half = Literal["fit", "held"]


@dataclass(frozen=True, slots=True)
class Item:
    """One judgement with its label.

    Attributes:
        task: the task it belongs to.
        row: the row of the data set it was made of; all items of a row are in the same half.
        prompt: what the response answers, as text.
        response: the judged text.
        criterion: what is asked about it.
        label: whether the criterion is met (for a pitfall: whether the mistake is made).
        kind: the criterion's kind.
        grounding, reference_answer, ground_truth: what else the judge may see.
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
        """The half its row falls into."""
        return "fit" if int(_digest(self.row)[:8], 16) % 2 == 0 else "held"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def gsm8k_answer_named(folder: Path) -> Iterator[Item]:
    """Rollouts of four models under a criterion that names the right answer; labels by the data set's answer check."""
    for row in rows(folder / GSM8K):
        truth = gsm8k_answer(row["ground_truth"])
        for model in GSM8K_MODELS:
            made = row[model]
            yield Item(
                "gsm8k-answer",
                row["question"],
                row["question"],
                plain_math(made["solution"]),
                f"The final answer is {truth}.",
                bool(made["is_correct"]),
            )


def gsm8k_reference(folder: Path) -> Iterator[Item]:
    """The same rollouts beside a reference solution: is the reasoning right?"""
    for row in rows(folder / GSM8K):
        for model in GSM8K_MODELS:
            yield Item(
                "gsm8k-reference",
                row["question"],
                row["question"],
                plain_math(row[model]["solution"]),
                "The reasoning is correct and comes to the result of the reference answer.",
                bool(row[model]["is_correct"]),
                reference_answer=plain_math(row["ground_truth"]),
            )


CALCULATION = re.compile(r"<<([^<>=]+)=([^<>]+)>>")
"""GSM8K's mark of a calculation: what is worked out, and the result."""


def gsm8k_steps(folder: Path) -> Iterator[Item]:
    """Lines of the reference solution as criteria; met where the rollout calculates the same result.

    Labels by program: the result of the line's calculation is among the results that the rollout's calculations have.
    """
    for row in rows(folder / GSM8K):
        for line in row["ground_truth"].split("\n"):
            found = CALCULATION.search(line)
            if found is None:
                continue
            for model in GSM8K_MODELS:
                made = row[model]["solution"]
                results = {result for _, result in CALCULATION.findall(made)}
                if not results:
                    continue
                yield Item(
                    "gsm8k-steps",
                    row["question"],
                    row["question"],
                    plain_math(made),
                    f"Finds that {plain_math(line).strip()}",
                    found[2] in results,
                )


def gsm8k_pitfall(folder: Path) -> Iterator[Item]:
    """Wrong lines of one rollout as pitfalls, asked of that rollout and of a right one. Labels by construction."""
    for row in rows(folder / GSM8K):
        right = [model for model in GSM8K_MODELS if row[model]["is_correct"]]
        wrong = [model for model in GSM8K_MODELS if not row[model]["is_correct"]]
        truths = {result for _, result in CALCULATION.findall(row["ground_truth"])}
        if not right or not wrong:
            continue
        good = row[right[0]]["solution"]
        lines = [
            line
            for line in row[wrong[0]]["solution"].split("\n")
            if (c := CALCULATION.search(line)) and c[2] not in truths and c[2] not in good
        ]
        if not lines:
            continue
        mistake = f"Claims that {plain_math(lines[0]).strip()}"
        for solution, label in ((row[wrong[0]]["solution"], True), (good, False)):
            yield Item(
                "gsm8k-pitfall", row["question"], row["question"], plain_math(solution), mistake, label, "pitfall"
            )


def plain_math(text: str) -> str:
    """A GSM8K solution without the marks of its calculations."""
    return re.sub(r"<<[^<>]*>>", "", text)


def contractnli(folder: Path) -> Iterator[Item]:
    """Hypotheses as criteria of a contract, which is the judged text; met where the contract entails them."""
    for row in sorted(rows(folder / CONTRACTNLI), key=lambda row: len(row["text"])):
        for found in row["criteria"]:
            yield Item(
                "contractnli",
                str(row["id"]),
                "Draw up a non-disclosure agreement.",
                row["text"],
                found["hypothesis"],
                found["choice"] == "Entailment",
            )


_EXCERPT = 1200


def faithful(folder: Path) -> Iterator[Item]:
    """Claims about an excerpt of a contract as one-line summaries: is each fact supported by the text?

    Supported: the claim is entailed and the excerpt holds the annotators' evidence. Unsupported: the text contradicts
    it, or the excerpt of the same contract holds none of the evidence.
    """
    asked = "Summarize one point of the following agreement.\n\n{}"
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
                yield Item("faithful", str(row["id"]), asked.format(window), found["hypothesis"], criterion, label)


def _around(text: str, begin: int, end: int) -> str:
    room = max(0, _EXCERPT - (end - begin)) // 2
    return text[max(0, begin - room) : end + room]


def grounded(folder: Path) -> Iterator[Item]:
    """The same claims and excerpts with the excerpt as grounding."""
    for item in faithful(folder):
        _, _, source = item.prompt.partition("\n\n")
        yield Item(
            "grounded",
            item.row,
            "Summarize one point of the agreement.",
            item.response,
            "What the response states is supported by the source.",
            item.label,
            grounding=source,
        )


def infobench(folder: Path) -> Iterator[Item]:
    """Experts' yes-no questions about a response, with GPT-4's verdicts as labels."""
    for row in rows(folder / "infobench_gpt4_decomposed.jsonl"):
        for question, label in zip(row["decomposed_questions"], row["eval"], strict=True):
            if label is not None:
                yield Item("infobench", row["id"], _infobench_prompt(row), row["output"], question, bool(label))


def _infobench_prompt(row: dict[str, Any]) -> str:
    return f"{row['instruction']}\n\n{row['input']}".strip()


def infobench_swapped(folder: Path) -> Iterator[Item]:
    """The questions about content, asked of the right response and of another row's. Labels by construction."""
    found = [row for row in rows(folder / "infobench_gpt4_decomposed.jsonl") if len(row["output"]) < 1200]
    for half in ("fit", "held"):
        of_half = [row for row in found if Item("", row["id"], "", "", "", True).half == half]
        for number, row in enumerate(of_half):
            other = of_half[(number + 1) % len(of_half)]
            asked = zip(row["decomposed_questions"], row["question_label"], row["eval"], strict=True)
            questions = [question for question, kinds, met in asked if "Content" in kinds and met]
            for question in questions[:1]:
                for output, label in ((row["output"], True), (other["output"], False)):
                    yield Item("infobench-swapped", row["id"], _infobench_prompt(row), output, question, label)


def healthbench(folder: Path) -> Iterator[Item]:
    """Conversations under physicians' criteria, labelled by another LLM judge. Measured only, never fitted on."""
    found = sorted(rows(folder / "healthbench_m42_responses_llmjudged.jsonl"), key=lambda row: len(json.dumps(row)))
    for row in found:
        prompt = "\n\n".join(f"{m['role']}: {m['content']}" for m in row["prompt"])
        for asked, verdict in zip(row["rubrics"], ast.literal_eval(row["responses"]), strict=True):
            yield Item(
                "healthbench",
                row["prompt_id"],
                prompt,
                row["prompt_response"][-1]["content"],
                asked["criterion"],
                bool(verdict["response_dict"]["criteria_met"]),
            )


def llmbar(folder: Path) -> Iterator[Item]:
    """Pairs of outputs of which humans agree on the better one; each output is asked about by itself."""
    for row in rows(folder / "llmbar.jsonl"):
        for number in (1, 2):
            yield Item(
                "llmbar",
                row["input"],
                row["input"],
                row[f"output_{number}"],
                "The response does what the instruction asks for, and does it correctly.",
                str(row["label"]) == str(number),
            )


def biggen(folder: Path) -> Iterator[Item]:
    """Questions of instance-specific rubrics, asked of the reference answer and of another instance's.

    Labels by construction. The other instance is of the same task where there is one in the same half.
    """
    by_half: dict[tuple[Half, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows(folder / "biggen_instances_rubrics.jsonl"):
        if len(row["reference_answer"]) + len(row["input"]) < 5000:
            by_half[Item("", row["id"], "", "", "", True).half, row["capability"]].append(row)
    for same in by_half.values():
        for number, row in enumerate(same):
            other = same[(number + 1) % len(same)]
            if other is row:
                continue
            for answer, label in ((row["reference_answer"], True), (other["reference_answer"], False)):
                yield Item("biggen", row["id"], row["input"], answer, row["score_rubric"]["criteria"], label)


def processbench(folder: Path) -> Iterator[Item]:
    """Solutions in steps, cut off after and before their first wrong step: is there a mistake? Labels by humans."""
    for row in rows(folder / PROCESSBENCH, wanted=lambda row: row["label"] > 0):
        for end, label in ((row["label"] + 1, True), (row["label"], False)):
            yield Item(
                "processbench",
                row["id"],
                row["problem"],
                in_steps(row["steps"][:end]),
                "A step that reasons or calculates wrongly.",
                label,
                "pitfall",
            )


TASKS: dict[str, Callable[[Path], Iterator[Item]]] = {
    "gsm8k-answer": gsm8k_answer_named,
    "gsm8k-reference": gsm8k_reference,
    "gsm8k-steps": gsm8k_steps,
    "gsm8k-pitfall": gsm8k_pitfall,
    "contractnli": contractnli,
    "faithful": faithful,
    "grounded": grounded,
    "infobench": infobench,
    "infobench-swapped": infobench_swapped,
    "healthbench": healthbench,
    "llmbar": llmbar,
    "biggen": biggen,
    "processbench": processbench,
}
"""The tasks by name."""

LABELLED_BY = {
    "gsm8k-answer": "answer check",
    "gsm8k-reference": "answer check",
    "gsm8k-steps": "program",
    "gsm8k-pitfall": "construction",
    "contractnli": "human",
    "faithful": "human",
    "grounded": "human",
    "infobench": "GPT-4",
    "infobench-swapped": "construction",
    "healthbench": "LLM judge",
    "llmbar": "human",
    "biggen": "construction",
    "processbench": "human",
}
"""Where each task's labels come from."""

MEASURED_ONLY = frozenset({"healthbench"})
"""Tasks whose licence asks not to train on them: nothing is fitted on them."""


def tasks_of(half: Half) -> list[str]:
    """The tasks whose rows may be read in a half."""
    return [task for task in TASKS if half == "held" or task not in MEASURED_ONLY]


LONGEST = 6000
"""The default limit on the characters of prompt, response and sources together; two cores read longer items slowly."""


def load_items(
    folder: Path, half: Half, tasks: Sequence[str] = tuple(TASKS), size: int = 150, longest: int = LONGEST
) -> dict[str, list[Item]]:
    """Read the balanced items of each task in one half of the rows.

    Raises:
        ValueError: a task whose rows may only be measured is asked for in the half that is for fitting.
    """
    refused = MEASURED_ONLY.intersection(tasks)
    if half == "fit" and refused:
        raise ValueError(f"nothing may be fitted on {', '.join(sorted(refused))}; leave it out, or read the half held")
    return {
        task: balanced([item for item in TASKS[task](folder) if item.half == half], size, longest) for task in tasks
    }


def balanced(items: Sequence[Item], size: int, longest: int = LONGEST) -> list[Item]:
    """Choose at most `size` items, as many met as not.

    The choice and its order are fixed. Items with the same text follow one another, so that an engine reads it once.
    """
    short = [item for item in items if _length(item) <= longest]
    halves = [
        sorted((item for item in short if item.label is label), key=lambda item: _digest(item.key))[: size // 2]
        for label in (True, False)
    ]
    fewest = min(len(alike) for alike in halves)
    kept = [item for alike in halves for item in alike[:fewest]]
    return sorted(kept, key=lambda item: (item.row, item.prompt, item.response, item.criterion))


def _length(item: Item) -> int:
    return sum(len(text or "") for text in (item.prompt, item.response, item.grounding, item.reference_answer))
