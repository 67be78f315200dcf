"""Labelled examples that a judge is measured on, and the rows in which users write them, as JSONL, CSV or Parquet.

A row is one of three objects:

- a labelled group, as `POST /v1/operations` takes it for `evaluate_judge`: `prompt`, `responses`, `rubric`, and
  `labels` with one object per response, by criterion id, whether it is met. A label may also be a number in [0, 1],
  which counts as met from 0.5 on;
- a pair: `prompt`, `a`, `b` and `preferred` (`a` or `b`);
- a solution in steps: `prompt`, `steps` and `first_wrong_step` (counted from 1; null if all are right).

Each row may have an `id`, a `task` to group figures by, and the material that only the judge sees.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import ValidationError

from judge_server.evaluation.row_files import RowFile
from trainer_client.rows.tables import GROUP_FIELDS, parse_rubric
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

    `asked` has the id and the description of each criterion, and its label if it has one.
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
