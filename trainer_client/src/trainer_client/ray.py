"""Rewards for a Ray Dataset: `dataset.map_batches(RubricScorer, batch_format="pyarrow", …)`.

```python
import ray
from trainer_client.ray import RubricScorer

scored = ray.data.read_parquet("s3://bucket/responses/").map_batches(
    RubricScorer,
    fn_constructor_kwargs={"url": "http://judge:8000", "rubric": "team/math@3", "run": "nightly"},
    batch_format="pyarrow",
    batch_size=256,
    concurrency=4,
)
scored.write_parquet("s3://bucket/scored/")
```

Every actor has a client of its own, with its connections. What the service cannot score is in the row that it concerns;
only a service that cannot be used at all (no connection, a wrong key) ends the job. Ray repeats the batches of an actor
that died, and a whole job can be run again: each request carries an idempotency key made of its content, so that the
service records it once, and it answers from its verdict cache what it has judged before.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trainer_client._inputs import parse_rubric
from trainer_client.client.sync import Client
from trainer_client.errors import InvalidRequest, JudgingFailed, RubricRefused, RubricRetired, UnknownRubric
from trainer_client.rows.tables import result_fields, row_fields
from trainer_client.wire import Group, GroupRewards, RewardMode
from trainer_client.wire.problems import field_errors

if TYPE_CHECKING:
    import pyarrow

_log = logging.getLogger(__name__)

_OF_THE_ROW = (InvalidRequest, JudgingFailed, RubricRefused, RubricRetired, UnknownRubric)
"""Refusals that another row can escape."""


class RubricScorer:
    """Adds rewards to the rows of a table.

    A row is a group: `prompt` and `responses`, a list, or `response`, a single one, where a response is text or chat
    messages. It may have `rubric`, `ground_truth`, `reference_answer`, `grounding` and `id`; all other columns are
    passed on. A row with `response` gains `reward`, `status`, `failure` and `verdicts`, one with `responses` gains
    `rewards`, `statuses`, `failure` and `verdicts`: see `trainer_client.rows.tables.result_fields`.

    Args:
        rubric: the rubric of rows without one: a reference, a list of criteria, or JSON text.
        mode: how verdicts become a reward.
        url: the address of the service.
        run: the run under which the service records the requests.
        columns: columns by the field that they hold, where they differ: `{"ground_truth": "answer"}`.
        prefix: a prefix of the new columns' names.
        groups_per_request: rows that are sent in one request.
        requests: requests that an actor has in flight.
        client: options of `Client`, such as `api_key`, `retries` and `timeout_s`.
        options: options of `Client.rewards`, such as `protocol` or `deadline_s`. `priority` is `bulk` unless given.

    Raises:
        ValueError: an argument is out of range, or the rubric cannot be read.
    """

    def __init__(
        self,
        rubric: object = None,
        mode: RewardMode = "weighted_mean",
        *,
        url: str,
        run: str = "",
        columns: Mapping[str, str] | None = None,
        prefix: str = "",
        groups_per_request: int = 32,
        requests: int = 4,
        client: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if groups_per_request < 1 or requests < 1:
            raise ValueError("groups_per_request and requests must be at least 1")
        self._options = {"rubric": parse_rubric(rubric), "mode": mode, "priority": "bulk", **options}
        self._columns = dict(columns or {})
        self._prefix = prefix
        self._size = groups_per_request
        self._warned = False
        self._client = Client(url, run or None, **(client or {}))
        self._requests = requests

    def __call__(self, table: "pyarrow.Table") -> "pyarrow.Table":
        """Score a batch.

        Raises:
            TypeError: the batch is no Arrow table; pass `batch_format="pyarrow"` to `map_batches`.
            ValueError: a column that would be added exists, or the table has neither `response` nor `responses`.
            AdjudgeError: the service cannot be reached, or refuses the key.
        """
        import pyarrow

        if not isinstance(table, pyarrow.Table):
            raise TypeError(f'a batch is of type {type(table).__name__}; pass batch_format="pyarrow" to map_batches')
        single = self._has_single_responses(table.column_names)
        rows = table.to_pylist()
        parts = [rows[start : start + self._size] for start in range(0, len(rows), self._size)]
        with ThreadPoolExecutor(self._requests, thread_name_prefix="adjudge") as threads:
            answers = [answer for part in threads.map(self._score, parts) for answer in part]
        self._warn(answers)
        results = [result_fields(answer, single=single) for answer in answers]
        for name, type_ in _types(single).items():
            if self._prefix + name in table.column_names:
                raise ValueError(f"the column {self._prefix + name} exists already; choose another prefix")
            values = pyarrow.array([result[name] for result in results], type_)
            table = table.append_column(self._prefix + name, values)
        return table

    def _has_single_responses(self, names: Sequence[str]) -> bool:
        if self._columns.get("responses", "responses") in names:
            return False
        if (name := self._columns.get("response", "response")) in names:
            return True
        raise ValueError(f"there is neither a column responses nor {name}; name yours with columns={{...}}")

    def _warn(self, answers: Sequence[GroupRewards | str]) -> None:
        """Say the first time that rows are refused: the job goes on, and a wrong column may concern all of them."""
        refused = [answer for answer in answers if isinstance(answer, str)]
        if refused and not self._warned:
            self._warned = True
            _log.warning("%d of %d rows were refused; the first: %s", len(refused), len(answers), refused[0])

    def _score(self, rows: Sequence[Mapping[str, Any]]) -> list[GroupRewards | str]:
        """The rewards of each row, or why it has none; a bad row costs only itself."""
        answers: list[GroupRewards | str | None] = [None] * len(rows)
        groups: dict[int, Group] = {}
        for place, row in enumerate(rows):
            try:
                groups[place] = self._group(place, row)
            except ValidationError as error:
                first = field_errors(error.errors(include_url=False, include_input=False))[0]
                answers[place] = f"{first.field}: {first.message}"
            except ValueError as error:
                answers[place] = str(error)
        for place, answer in zip(groups, self._send(list(groups.values())), strict=True):
            answers[place] = answer
        return [answer for answer in answers if answer is not None]

    def _group(self, place: int, row: Mapping[str, Any]) -> Group:
        fields = row_fields(row, self._columns)
        if "rubric" in fields:
            fields["rubric"] = parse_rubric(fields["rubric"])
        return Group.model_validate({"id": f"row-{place}"} | fields)

    def _send(self, groups: Sequence[Group]) -> list[GroupRewards | str]:
        """Score groups in one request; if it is refused, in halves, so that only the bad ones remain without."""
        if not groups:
            return []
        try:
            answer = self._client.rewards(groups, idempotency_key=self._key(groups), **self._options)
        except _OF_THE_ROW as error:
            if len(groups) == 1:
                return [str(error)]
            half = len(groups) // 2
            return self._send(groups[:half]) + self._send(groups[half:])
        return list(answer.groups)

    def _key(self, groups: Sequence[Group]) -> str:
        options = {name: _plain(value) for name, value in self._options.items()}
        content = [self._client.run, options, [_plain(group) for group in groups]]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _types(single: bool) -> dict[str, Any]:
    import pyarrow

    number, text = pyarrow.float64(), pyarrow.string()
    if single:
        return {"reward": number, "status": text, "failure": text, "verdicts": text}
    return {"rewards": pyarrow.list_(number), "statuses": pyarrow.list_(text), "failure": text, "verdicts": text}
