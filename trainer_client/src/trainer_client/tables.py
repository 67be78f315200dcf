"""Groups from the rows of a table, and rewards as columns of it.

A row is a group if it has `responses`, a list, and a single response if it has `response`. Everything here is plain
data, as `pyarrow.Table.to_pylist` gives it, so that the same code serves Ray, Parquet files and CSV.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainer_client._inputs import as_text, to_plain_data
from trainer_client.wire import Group, GroupRewards, ResponseReward

RESULT_COLUMNS = ("reward", "status", "failure", "verdicts")
"""What a row with one response gains; a row with several has `rewards` and `statuses`, each a list."""


def group_fields(
    row: Mapping[str, Any], columns: Mapping[str, str] | None = None, *, keep_empty: bool = False
) -> dict[str, Any]:
    """The fields of a group in a row of a table.

    Args:
        row: the row's values by column. Nulls are left out, also within values: Arrow pads every object of a column
            with the keys of all others.
        columns: fields by the column that holds them, as `{"ground_truth": "answer"}`; others have their own names.
        keep_empty: keep nulls, for asking which columns are read.

    Returns:
        `prompt`, `responses`, … of `Group`; other columns are not in it. A row without `id` has none. A number as `id`
        or `ground_truth` becomes text.

    Raises:
        ValueError: `id` or `ground_truth` is neither text nor a number.
    """
    columns = columns or {}
    found: dict[str, Any] = {}
    for field in Group.model_fields:
        value = row.get(columns.get(field, field))
        if value is not None or (keep_empty and columns.get(field, field) in row):
            found[field] = value if keep_empty else _field(field, value)
    single = row.get(columns.get("response", "response"))
    if "responses" not in found and single is not None:
        found["responses"] = [to_plain_data(single)]
    return found


def _field(name: str, value: Any) -> Any:
    return as_text(name, value) if name in ("id", "ground_truth") else to_plain_data(value)


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


def _failure(response: ResponseReward) -> str | None:
    for verdict in response.verdicts:
        if verdict.failure is not None:
            return f"{verdict.criterion}: {verdict.failure.kind}: {verdict.failure.detail}"
    return None if response.reward is not None else f"no reward ({response.status})"
