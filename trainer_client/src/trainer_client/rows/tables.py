"""Groups from the rows of a table, and rewards as columns of it.

A row is a group if it has `responses`, a list, and a single response if it has `response`. Everything here is plain
data, as `pyarrow.Table.to_pylist` gives it, so that the same code serves Ray, Parquet files and CSV.
"""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainer_client._inputs import as_text, to_plain_data
from trainer_client.wire import Group, GroupRewards, ResponseReward

GROUP_FIELDS = tuple(Group.model_fields)
"""The fields of a group."""

LOOKALIKES = {
    "prompt": ("question", "problem", "instruction", "input", "query", "messages", "conversation"),
    "responses": (
        "answers",
        "completion",
        "completions",
        "output",
        "outputs",
        "generation",
        "generations",
        "candidates",
    ),
    "rubric": ("rubrics", "criteria", "rubric_items", "rubric_list", "checklist"),
    "grounding": ("context", "contexts", "document", "documents", "passage", "evidence", "source_text"),
    "reference_answer": ("reference", "references", "reference_solution", "reference_response", "ideal_answer"),
    "ground_truth": ("answer", "answers", "solution", "label", "gold", "gold_answer", "gt", "target", "final_answer"),
}
"""Names under which data sets often hold a field."""


def lookalike(column: str, field: str) -> bool:
    """Whether a column has a name under which data sets often hold a field, or the field's own name misspelt."""
    own, wanted = _letters(column), _letters(field)
    return (
        own == wanted
        or column.lower() in LOOKALIKES.get(field, ())
        or bool(difflib.get_close_matches(own, [wanted], n=1, cutoff=0.8))
    )


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum()).removesuffix("s")


def row_fields(
    row: Mapping[str, Any],
    columns: Mapping[str, str] | None = None,
    fields: Iterable[str] = GROUP_FIELDS,
    *,
    padded: bool = True,
) -> dict[str, Any]:
    """The fields that a row of a table holds.

    Args:
        row: the row's values by column. Nulls are left out.
        columns: the column that holds a field, as `{"ground_truth": "answer"}`; other fields have their own names.
        fields: the fields to read; a column `response` becomes the only one of `responses`.
        padded: leave out nulls within values too: Arrow pads every object of a column with the keys of all others.

    Returns:
        The fields that the row has; other columns are not in it. A number as `id` or `ground_truth` becomes text.

    Raises:
        ValueError: `id` or `ground_truth` is neither text nor a number.
    """
    columns = columns or {}
    found: dict[str, Any] = {}
    for field in (*fields, "response"):
        value = row.get(columns.get(field, field))
        if value is not None:
            value = to_plain_data(value) if padded else value
            found[field] = as_text(field, value) if field in ("id", "ground_truth") else value
    single = found.pop("response", None)
    if single is not None and "responses" not in found:
        found["responses"] = [single]
    return found


def result_fields(answer: GroupRewards | str, *, single: bool) -> dict[str, Any]:
    """What a row gains.

    Args:
        answer: the group's rewards, or why there are none.
        single: whether the row has one response, in `response`.

    Returns:
        `reward` or `rewards` (null where judging failed), `status` or `statuses` (`refused` if the request was
        refused), `failure` (the first failure in words, or null) and `verdicts` (JSON: the verdicts of the response, or
        a list of them for each response).
    """
    if isinstance(answer, str):
        responses: Sequence[ResponseReward] = ()
        failure: str | None = answer
    else:
        responses = answer.responses
        failure = next(filter(None, map(_failure, responses)), None)
    verdicts = [[v.model_dump(mode="json", exclude_none=True) for v in response.verdicts] for response in responses]
    if not single:
        return {
            "rewards": [response.reward for response in responses],
            "statuses": [response.status for response in responses] or ["refused"],
            "failure": failure,
            "verdicts": json.dumps(verdicts, ensure_ascii=False),
        }
    return {
        "reward": responses[0].reward if responses else None,
        "status": responses[0].status if responses else "refused",
        "failure": failure,
        "verdicts": json.dumps(verdicts[0] if verdicts else [], ensure_ascii=False),
    }


def failure_kinds(response: ResponseReward) -> tuple[str, ...]:
    """Return the kinds of failures of a response, without duplicates; `uncertain` if that alone cost its reward."""
    failed = [verdict.failure for verdict in response.verdicts if verdict.status == "failed"]
    kinds = dict.fromkeys(failure.kind if failure else "engine" for failure in failed)
    if response.reward is None and not kinds and any(verdict.status == "uncertain" for verdict in response.verdicts):
        return ("uncertain",)
    return tuple(kinds)


def _failure(response: ResponseReward) -> str | None:
    for verdict in response.verdicts:
        if verdict.failure is not None:
            return f"{verdict.criterion}: {verdict.failure.kind}: {verdict.failure.detail}"
    return None if response.reward is not None else f"no reward ({response.status})"
