"""Labelled examples that a judge is measured on, and the rows in which users write them, as JSONL, CSV or Parquet.

A row is one of three objects:

- a labelled group, as `POST /v1/operations` takes it for `evaluate_judge`: `prompt`, `responses`, `rubric`, and
  `labels` with one object per response, by criterion id, whether it is met. A label may also be a number in [0, 1],
  which counts as met from 0.5 on;
- a pair: `prompt`, `a`, `b` and `preferred` (`a` or `b`);
- a solution in steps: `prompt`, `steps` and `first_wrong_step` (counted from 1; null if all are right).

Each row may have an `id`, a `task` to group figures by, and the material that only the judge sees.

Public labelled data sets are read in the form in which each is published.
"""

import ast
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import ValidationError

from judge_server.evaluation.row_files import RowFile
from trainer_client.client.tables import GROUP_FIELDS, parse_rubric
from trainer_client.wire import Criterion, RubricContent
from trainer_client.wire.groups import Group, as_response
from trainer_client.wire.problems import field_errors
from trainer_client.wire.verdicts import Pair

T = TypeVar("T")
Half: TypeAlias = Literal["fit", "held"]

FEWEST_LABELS_OF_A_PROBE = 16
"""With fewer labels, a probe decides no better than calibrated words do (docs/studies/agreement.md)."""

MET_FROM = 0.5
"""The lowest label that counts as met, and the lowest score of a verdict that counts as a yes."""

STEP_CRITERION = "Step {number} of the response reasons and calculates correctly."


class DatasetError(ValueError):
    """A data set cannot be read; the message says where, why and what to write."""


@dataclass(frozen=True, slots=True)
class LabelledResponse:
    """A response with the criteria to judge it by and their labels.

    Attributes:
        row: the row of the data set. All examples of a row are resampled together, and are in the same half.
        prompt: text, or messages as JSON objects.
        response: the text to judge.
        criteria: the criteria, in the order in which they are asked.
        labels: by criterion id, the label in [0, 1]. Criteria without a label are judged, but not measured.
        task: the part of the data set, by which figures are grouped.
        grounding, reference_answer, ground_truth: further material for the judge.
        in_steps: whether the criteria are `step-1`, `step-2`, … of a solution, the first unmet one being its first
            wrong step.
    """

    row: str
    prompt: Any
    response: str
    criteria: tuple[Criterion, ...]
    labels: Mapping[str, float]
    task: str = ""
    grounding: str | None = None
    reference_answer: str | None = None
    ground_truth: str | None = None
    in_steps: bool = False

    @property
    def first_wrong_step(self) -> int | None:
        """The number of the first step that is labelled wrong; None if there is none."""
        return first_unmet(self.criteria, {name: label >= MET_FROM for name, label in self.labels.items()})

    @property
    def text_length(self) -> int:
        """Characters of the texts that the judge reads, without the criteria."""
        return sum(len(text or "") for text in (str(self.prompt), self.response, self.grounding, self.reference_answer))


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """Two responses to a prompt, and which one people prefer. `row` and `task` are as in `LabelledResponse`."""

    row: str
    prompt: Any
    a: str
    b: str
    preferred: Literal["a", "b"]
    task: str = ""
    grounding: str | None = None
    reference_answer: str | None = None

    @property
    def text_length(self) -> int:
        """Characters of the texts that the judge reads."""
        return sum(len(text or "") for text in (str(self.prompt), self.a, self.b, self.grounding))


Example: TypeAlias = LabelledResponse | LabelledPair


def first_unmet(criteria: Sequence[Criterion], met: Mapping[str, bool]) -> int | None:
    """Return the number (from 1) of the first of a solution's step criteria that is not met; None if all are."""
    return next((n for n, criterion in enumerate(criteria, 1) if met.get(criterion.id) is False), None)


def half_of(row: str) -> Half:
    """Return the half of a row by a fixed hash, so that what is fitted on one half is measured on unseen rows."""
    return "fit" if int(hashlib.sha256(row.encode()).hexdigest()[:8], 16) % 2 == 0 else "held"


def criterion(id_: str, description: str, kind: str = "point") -> Criterion:
    """Build a criterion that always goes to the judge, even if a program could decide it: the judge is measured."""
    return Criterion.model_validate(
        {"id": id_, "description": description, "kind": kind, "verification": {"method": "judge"}}
    )


def labelled_response(
    row: Any, prompt: str, response: str, asked: Iterable[tuple[str, str, float | None]], task: Any = "", **fields: Any
) -> LabelledResponse:
    """Build the example of a response from what is asked about it.

    Args:
        row, prompt, response, task: as in `LabelledResponse`.
        asked: the id and the description of each criterion, and its label if it has one.
        fields: further fields of the example.
    """
    criteria, labels = [], {}
    for name, description, label in asked:
        criteria.append(criterion(name, description))
        if label is not None:
            labels[name] = float(label)
    return LabelledResponse(str(row), prompt, response, tuple(criteria), labels, str(task), **fields)


def labelled_steps(
    row: str, prompt: str, steps: Sequence[str], labels: Mapping[int, float], task: Any = ""
) -> LabelledResponse:
    """Build the example of a solution in steps: one criterion per step, and labels by step number (from 1)."""
    shown = "\n".join(f"### Step {number}:\n{step}" for number, step in enumerate(steps, 1))
    asked = [(f"step-{n}", STEP_CRITERION.format(number=n), labels.get(n)) for n in range(1, len(steps) + 1)]
    return labelled_response(row, prompt, shown, asked, task, in_steps=True)


def up_to_first_wrong(steps: int, first_wrong: int | None) -> dict[int, float]:
    """Return the labels of steps of which the first wrong one is known: nothing is known of those after it."""
    last = steps if first_wrong is None else first_wrong
    return {number: float(number != first_wrong) for number in range(1, last + 1)}


LABELLED_FIELDS = (*GROUP_FIELDS, "labels", "task", "a", "b", "preferred", "steps", "first_wrong_step")
"""The fields of a labelled row."""


def read_rows(
    file: str | Path, columns: Mapping[str, str] | None = None, notify: Callable[[str], None] = lambda _: None
) -> Iterator[Example]:
    """Yield the examples of a file in the documented format: JSONL, or CSV or Parquet by its ending.

    Args:
        file: a path or a URL.
        columns: the column that holds a field, where it has another name.
        notify: told at the end which columns were not read.

    Raises:
        DatasetError: a row cannot be read; the message has its number.
    """
    rows = RowFile(str(file), columns=columns, fields=LABELLED_FIELDS)
    try:
        for number, row in rows:
            if isinstance(row, ValueError):
                raise DatasetError(f"{file}:{number}: {row}")
            try:
                yield from examples_of(row, number)
            except ValidationError as error:
                first = field_errors(error.errors())[0]
                hint = rows.hint(first.field)
                said = f"{file}:{number}: {first.field}: {first.message}" + (f"; {hint}" if hint else "")
                raise DatasetError(said) from None
            except ValueError as error:
                raise DatasetError(f"{file}:{number}: {error}") from None
    except OSError as error:
        raise DatasetError(f"{file} cannot be read: {error.strerror or error}; give the path of a file") from None
    if rows.notice:
        notify(rows.notice)


def json_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the object of each line of a JSONL file with the line's number. Raises `DatasetError` with it."""
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise DatasetError(f"{file}:{number}: expected a JSON object")
                yield number, row
    except OSError as error:
        raise DatasetError(f"{file} cannot be read: {error.strerror}; give the path of a file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DatasetError(f"{file} is not JSONL: {error}; write one JSON object per line") from None


def examples_of(row: dict[str, Any], number: int) -> Iterator[Example]:
    """Yield the examples of the object of a line, counted from 1; raises `ValueError` if it has another form."""
    row = dict(row)
    name, task = str(row.pop("id", f"line-{number}")), str(row.pop("task", ""))
    if "preferred" in row:
        preferred = row.pop("preferred")
        if preferred not in ("a", "b"):
            raise ValueError(f"preferred is {preferred!r}; write a or b")
        pair = Pair.model_validate({"id": name} | row)
        a, b = (str(as_response(text).text) for text in (pair.a, pair.b))
        yield LabelledPair(name, row["prompt"], a, b, preferred, task, pair.grounding, pair.reference_answer)
    elif "steps" in row:
        steps, first = row.get("steps"), row.get("first_wrong_step")
        if not isinstance(steps, list) or not steps or not all(isinstance(step, str) for step in steps):
            raise ValueError("steps: expected a list of texts")
        if not isinstance(row.get("prompt"), str):
            raise ValueError("prompt: expected a text")
        first = int(first) if isinstance(first, str) and first.isdecimal() else first
        if first is not None and (type(first) is not int or not 1 <= first <= len(steps)):
            raise ValueError(f"first_wrong_step is {first!r}; write a number from 1 to {len(steps)}, or null")
        yield labelled_steps(name, row["prompt"], steps, up_to_first_wrong(len(steps), first), task)
    else:
        yield from _labelled_group(row, name, task)


def _labelled_group(row: dict[str, Any], name: str, task: str) -> Iterator[Example]:
    labels = row.pop("labels", None)
    if isinstance(row.get("rubric"), str | list):  # a table may hold it as JSON text
        row["rubric"] = parse_rubric(row["rubric"])
    group = Group.model_validate({"id": name} | row)
    labels = [labels] if isinstance(labels, dict) and len(group.responses) == 1 else labels
    if not isinstance(labels, list) or len(labels) != len(group.responses):
        raise ValueError(f"labels: expected a list of {len(group.responses)} objects, one for each response")
    if not isinstance(group.rubric, RubricContent):
        raise ValueError("rubric: write the rubric itself, as an object with criteria")
    known = {one.id for one in group.rubric.criteria}
    material = (group.grounding, group.reference_answer, group.ground_truth)
    for place, (given, response) in enumerate(zip(labels, group.responses, strict=True)):
        numbers = read_labels(given, known, f"labels[{place}]")
        text = as_response(response).text
        if not isinstance(text, str):
            raise ValueError(f"responses[{place}]: expected a text")
        if numbers:
            yield LabelledResponse(name, row["prompt"], text, group.rubric.criteria, numbers, task, *material)


def read_labels(given: Any, known: set[str], where: str) -> dict[str, float]:
    """Return the labels of a response by criterion; raises `ValueError` with `where` if they have another form."""
    if not isinstance(given, dict):
        raise ValueError(f'{where}: expected an object such as {{"criterion-id": true}}')
    for name, label in given.items():
        if name not in known:
            raise ValueError(f"{where}: the rubric has no criterion {name!r}; it has {', '.join(sorted(known))}")
        if not isinstance(label, bool | int | float) or not 0 <= label <= 1:
            raise ValueError(f"{where}.{name} is {label!r}; write true, false or a number from 0 to 1")
    return {name: float(label) for name, label in given.items()}


def sample(examples: Sequence[Example], size: int | None, longest: int | None = None) -> list[Example]:
    """Choose at most `size` examples, tasks in turn, in an order fixed by a hash; those of a row stay adjacent.

    Examples whose texts have more than `longest` characters are left out.
    """
    short = [example for example in examples if longest is None or example.text_length <= longest]
    if size is None or size >= len(short):
        return short
    by_task: dict[str, list[Example]] = {}
    for example in sorted(short, key=_order):
        by_task.setdefault(example.task, []).append(example)
    chosen = set(map(id, in_turn(by_task.values())[:size]))
    return [example for example in short if id(example) in chosen]


def in_turn(groups: Iterable[Iterable[T]]) -> list[T]:
    """Return the first of each group, then the second of each, and so on."""
    return [one for turn in zip_longest(*groups) for one in turn if one is not None]


def _order(example: Example) -> str:
    text = example.response if isinstance(example, LabelledResponse) else f"{example.a}\0{example.b}"
    asked = [one.description for one in example.criteria] if isinstance(example, LabelledResponse) else []
    return hashlib.sha256(json.dumps([example.row, text, asked]).encode()).hexdigest()


def without_unlabelled(example: LabelledResponse) -> LabelledResponse:
    """Return the example with only its labelled criteria, so that no call is spent on others."""
    return replace(example, criteria=tuple([one for one in example.criteria if one.id in example.labels]))


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader, what its labels are, and whether anything may be fitted on them."""

    read: Callable[[Path], Iterator[Example]]
    labelled_by: str
    measured_only: bool = False


def processbench(file: Path) -> Iterator[Example]:
    """Yield solutions with people's index of the first wrong step (ProcessBench: `steps`, `label`, -1 for none)."""
    for row in rows(file):
        steps, first = row["steps"], None if row["label"] < 0 else row["label"] + 1
        labels = up_to_first_wrong(len(steps), first)
        yield labelled_steps(row["id"], row["problem"], steps, labels, row.get("split", ""))


def prm800k(file: Path) -> Iterator[Example]:
    """Yield solutions with people's rating of each step (PRM800K: 1 and 0 count as right, -1 as wrong).

    Of the completions offered for a step, the one that the labeller continued with is taken, or the first one where
    they stopped. A step that the labeller wrote is right.
    """
    for number, row in enumerate(rows(file), 1):
        texts, labels = [], {}
        for place, step in enumerate(row["label"]["steps"], 1):
            chosen = step["chosen_completion"]
            if chosen is None and step["human_completion"]:
                texts.append(step["human_completion"]["text"])
                labels[place] = 1.0
                continue
            if not step["completions"]:
                break
            completion = step["completions"][chosen or 0]
            texts.append(completion["text"])
            if completion["rating"] is not None:
                labels[place] = float(completion["rating"] >= 0)
        if labels:
            yield labelled_steps(f"prm800k-{number}", row["question"]["problem"], texts, labels)


def prmbench(file: Path) -> Iterator[Example]:
    """Yield solutions into which mistakes were written, with the steps that are wrong (PRMBench).

    The same problem comes once for each kind of mistake, with the kind before its `idx` in the published file, and is
    one row here. Solutions whose wrong steps lie beyond their last step, a few of them, are left out.
    """
    for row in rows(file):
        steps, wrong, kind = row["modified_process"], set(row["error_steps"]), str(row.get("classification", ""))
        if wrong and max(wrong) > len(steps):
            continue
        labels = {number: float(number not in wrong) for number in range(1, len(steps) + 1)}
        question = row.get("modified_question") or row.get("question") or row["original_question"]
        yield labelled_steps(str(row["idx"]).removeprefix(f"{kind}_"), question, steps, labels, kind)


def llmbar(file: Path) -> Iterator[Example]:
    """Yield pairs of outputs with the one that people agree is better (LLMBar: `output_1`, `output_2`, `label`)."""
    for row in rows(file):
        preferred: Any = "a" if str(row["label"]) == "1" else "b"
        yield LabelledPair(
            row["input"], row["input"], row["output_1"], row["output_2"], preferred, str(row.get("subset", ""))
        )


def judgebench(file: Path) -> Iterator[Example]:
    """Yield pairs of answers of which one is right (JudgeBench: `response_A`, `response_B`, `label`)."""
    preferred: Mapping[str, Any] = {"A>B": "a", "B>A": "b"}
    for row in rows(file):
        if row["label"] in preferred:
            yield LabelledPair(
                str(row["pair_id"]),
                row["question"],
                row["response_A"],
                row["response_B"],
                preferred[row["label"]],
                str(row.get("source", "")),
            )


def rewardbench(file: Path) -> Iterator[Example]:
    """Yield pairs with the response that its subset holds for the better one (RewardBench: `chosen`, `rejected`)."""
    for row in rows(file):
        yield LabelledPair(
            row["prompt"], row["prompt"], row["chosen"], row["rejected"], "a", str(row.get("subset", ""))
        )


LLM_RUBRIC = {
    "Q1": "The assistant's turns read naturally.",
    "Q2": "What the assistant says is backed by sources that it cites.",
    "Q3": "Each source that the assistant cites supports what it is cited for.",
    "Q4": "The sources that the assistant cites are good ones.",
    "Q5": "The assistant does not repeat itself.",
    "Q6": "The assistant stays on the topic that the user asks about.",
    "Q7": "The assistant tells the user all that they want to know.",
    "Q8": "The assistant says things in few words.",
    "Q0": "The user would be satisfied with the conversation.",
}
"""LLM-Rubric's questions about a conversation, as statements in our words."""


def llm_rubric(file: Path) -> Iterator[Example]:
    """Yield conversations with a person's answers from 1 to 4 to nine questions (LLM-Rubric), as labels in [0, 1]."""
    for row in rows(file):
        turns = "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in row["conversation"]["messages"])
        answers = {name: str(row["human"].get(name)) for name in LLM_RUBRIC}
        asked = [
            (name, text, (int(answers[name]) - 1) / 3 if answers[name] in ("1", "2", "3", "4") else None)
            for name, text in LLM_RUBRIC.items()
        ]
        yield labelled_response(row["human"]["text_id"], "Hold a conversation with the user.", turns, asked)


def contractnli(file: Path) -> Iterator[Example]:
    """Yield contracts with hypotheses as criteria, which are met if the contract entails them (ContractNLI).

    Reads the published JSON (`documents` and `labels`), and JSONL with a contract and its `criteria` per line.
    """
    for row in sorted(_contracts(file), key=lambda row: len(row["text"])):
        asked = [(one["id"], one["hypothesis"], one["choice"] == "Entailment") for one in row["criteria"]]
        yield labelled_response(row["id"], "Draw up a non-disclosure agreement.", row["text"], asked)


def _contracts(file: Path) -> Iterator[dict[str, Any]]:
    if file.suffix != ".json":
        yield from rows(file)
        return
    published = json.loads(file.read_text(encoding="utf-8"))
    for document in published["documents"]:
        annotations = document["annotation_sets"][0]["annotations"]
        yield {
            "id": document["id"],
            "text": document["text"],
            "criteria": [
                {"id": name, "hypothesis": published["labels"][name]["hypothesis"], "choice": found["choice"]}
                for name, found in annotations.items()
            ],
        }


def infobench(file: Path) -> Iterator[Example]:
    """Yield responses with experts' yes-no questions about them, and the verdict on each (InfoBench: `eval`)."""
    for row in rows(file):
        answered = zip(row["decomposed_questions"], row["eval"], strict=True)
        asked = [(f"q{n}", question, met) for n, (question, met) in enumerate(answered, 1)]
        prompt = f"{row['instruction']}\n\n{row['input']}".strip()
        yield labelled_response(row["id"], prompt, row["output"], asked, row.get("subset", ""))


def healthbench(file: Path) -> Iterator[Example]:
    """Yield conversations with criteria and verdicts: of physicians, or of another judge.

    Reads HealthBench's meta-evaluation (`completion`, `rubric`, `binary_labels`; met if most physicians say so, and
    left out if they are split), and rows of responses with another judge's verdicts (`rubrics`, `responses`).
    """
    for row in rows(file):
        prompt = "\n\n".join(f"{message['role']}: {message['content']}" for message in row["prompt"])
        if "binary_labels" in row:
            votes = row["binary_labels"]
            if 2 * sum(votes) != len(votes):
                asked = [("c1", row["rubric"], 2 * sum(votes) > len(votes))]
                yield labelled_response(row["prompt_id"], prompt, row["completion"], asked, row.get("category", ""))
            continue
        judged = zip(row["rubrics"], ast.literal_eval(row["responses"]), strict=True)
        asked = [
            (f"c{n}", rubric["criterion"], bool(verdict["response_dict"]["criteria_met"]))
            for n, (rubric, verdict) in enumerate(judged, 1)
        ]
        yield labelled_response(row["prompt_id"], prompt, row["prompt_response"][-1]["content"], asked)


def biggen(file: Path) -> Iterator[Example]:
    """Yield responses with a person's score from 1 to 5 by an instance's own rubric (BiGGen: `human_score`)."""
    for row in rows(file):
        if row.get("human_score") is None:
            raise DatasetError(
                f"{file}: row {row.get('id')} has no human_score; use the split human_eval of the benchmark's results"
            )
        rubric = row["score_rubric"]
        guide = "\n".join(f"{n}: {rubric[f'score{n}_description']}" for n in range(1, 6))
        asked = criterion("c1", rubric["criteria"]).model_copy(update={"scoring_guide": guide})
        yield LabelledResponse(
            str(row["id"]),
            f"{row.get('system_prompt') or ''}\n\n{row['input']}".strip(),
            row["response"],
            (asked,),
            {"c1": (float(row["human_score"]) - 1) / 4},
            str(row.get("capability", "")),
            reference_answer=row.get("reference_answer"),
        )


SUMMEVAL = {
    "coherence": "The sentences of the summary fit together into a well-organized whole.",
    "consistency": "The source supports every fact in the summary.",
    "fluency": "Every sentence of the summary is well formed and reads easily.",
    "relevance": "The summary selects what is important in the source, and nothing else.",
}


def summeval(file: Path) -> Iterator[Example]:
    """Yield summaries with experts' mean scores from 1 to 5 on four qualities (SummEval), as labels in [0, 1].

    Reads rows with all summaries of an article (`text`, `machine_summaries` and a list per quality), and rows with one
    summary (`text`, `decoded`, `expert_annotations`).
    """
    for row in rows(file):
        if "text" not in row:
            raise DatasetError(f"{file}: row {row.get('id')} has no text; pair the annotations with their articles")
        if "machine_summaries" in row:
            scored = [
                (summary, {name: row[name][place] for name in SUMMEVAL})
                for place, summary in enumerate(row["machine_summaries"])
            ]
        else:
            experts = row["expert_annotations"]
            scored = [(row["decoded"], {name: sum(one[name] for one in experts) / len(experts) for name in SUMMEVAL})]
        for summary, scores in scored:
            asked = [(name, text, (float(scores[name]) - 1) / 4) for name, text in SUMMEVAL.items()]
            yield labelled_response(row["id"], "Summarize the article.", summary, asked, grounding=row["text"])


SUPPORTED = "What the response states is supported by the source."
ANSWER_SUPPORTED = "The answer is what the findings of the source support."


def wice(file: Path) -> Iterator[Example]:
    """Yield sentences of Wikipedia and whether the page that they cite supports them (WiCE: `claim`, `evidence`).

    Met if people say that all of it is supported; partly is not met.
    """
    for row in rows(file):
        name, source = row.get("id") or row["meta"]["id"], "\n".join(row["evidence"])
        asked = [("supported", SUPPORTED, row["label"] == "supported")]
        yield labelled_response(name, "Write one sentence for an encyclopedia.", row["claim"], asked, grounding=source)


def pubmedqa(file: Path) -> Iterator[Example]:
    """Yield research questions answered with yes, and whether the abstract says so (PubMedQA, labelled by experts).

    Reads the published JSON (by number, in capitals) and rows with `question`, `contexts` and `final_decision`. Those
    decided as maybe are left out.
    """
    for row in rows(file):
        for one in [row] if "question" in row else _published(row):
            if one["final_decision"] == "maybe":
                continue
            asked = [("supported", ANSWER_SUPPORTED, one["final_decision"] == "yes")]
            source = "\n".join(one["contexts"] if "contexts" in one else one["context"]["contexts"])
            name = one["id"] if "id" in one else one["pubid"]
            yield labelled_response(name, one["question"], "Yes.", asked, grounding=source)


def _published(abstracts: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, abstract in abstracts.items():
        yield {"id": number} | {name.lower(): value for name, value in abstract.items()}


def rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSONL file, or of a JSON file with a list of them."""
    if file.suffix == ".json":
        try:
            listed = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DatasetError(f"{file} cannot be read: {error}") from None
        yield from listed if isinstance(listed, list) else [listed]
        return
    for _, row in json_lines(file):
        yield row


READERS: Mapping[str, Reader] = {
    "jsonl": Reader(read_rows, "the file's author"),
    "processbench": Reader(processbench, "people"),
    "prm800k": Reader(prm800k, "people"),
    "prmbench": Reader(prmbench, "construction"),
    "llmbar": Reader(llmbar, "people"),
    "judgebench": Reader(judgebench, "programs"),
    "rewardbench": Reader(rewardbench, "people or construction"),
    "llm-rubric": Reader(llm_rubric, "people"),
    "contractnli": Reader(contractnli, "people"),
    "infobench": Reader(infobench, "GPT-4 or people"),
    "healthbench": Reader(healthbench, "physicians or a judge", measured_only=True),
    "biggen": Reader(biggen, "people"),
    "summeval": Reader(summeval, "people"),
    "wice": Reader(wice, "people"),
    "pubmedqa": Reader(pubmedqa, "experts"),
}
"""The readers by name. A data set is named `READER:PATH`; without a reader it is `jsonl`."""


def read_dataset(
    dataset: str, columns: Mapping[str, str] | None = None, notify: Callable[[str], None] = lambda _: None
) -> tuple[Reader, list[Example]]:
    """Read `READER:PATH`, or the path or URL of a file of your own rows; return the reader and the examples in order.

    Args:
        dataset: the data set.
        columns, notify: as for `read_rows`.

    Raises:
        DatasetError: the file cannot be read, has another form, or has no example.
    """
    name, colon, path = dataset.partition(":")
    known = bool(colon) and name in READERS
    own = not known or name == "jsonl"
    reader, file = (READERS[name], path) if known else (READERS["jsonl"], dataset)
    if columns and not own:
        raise DatasetError(f"the reader {name!r} knows its columns; leave out --column")
    if colon and not known and "://" not in dataset and not Path(dataset).exists():
        raise DatasetError(f"there is no reader {name!r}; use one of {', '.join(READERS)}")
    try:
        examples = list(read_rows(file, columns, notify) if own else reader.read(Path(file)))
    except DatasetError:
        raise
    except (KeyError, TypeError, IndexError, ValueError, SyntaxError) as error:
        if own:
            raise DatasetError(str(error)) from None
        what = f"a field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise DatasetError(f"{file} does not have the form that the reader {name!r} expects: {what}") from None
    if not examples:
        raise DatasetError(f"{file} has no labelled example")
    return reader, examples
