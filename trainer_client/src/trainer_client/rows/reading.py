"""Turn the rows of a data set, with a response to each, into the groups of a request.

Rows that share a prompt and all judged columns form a group, under an id that is equal on all ranks. The user's
mistakes raise errors, but a response is never rejected for what the policy wrote.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import ValidationError

from trainer_client._inputs import RubricOrReference, as_text, is_empty_rubric, parse_rubric
from trainer_client.errors import InvalidRequest
from trainer_client.rows.messages import WireText, media_digest, wire_text
from trainer_client.rows.tables import lookalike
from trainer_client.wire import Group, Response, RubricContent
from trainer_client.wire.problems import field_errors

MEDIA_COLUMNS = ("image", "images", "video", "videos", "audio", "audios")
"""The columns in which data sets hold what belongs to a prompt and is no text. The judge does not see them."""

COLUMNS = ("rubric", "grounding", "reference_answer", "ground_truth")
"""The columns that the judge sees. Columns and single values may be missing."""

MESSAGES_COLUMN = "response_messages"
"""The column with the messages of each response, for rollout functions whose completions are one text."""


class JudgedColumns:
    """Where a data set has the columns that the judge sees.

    `names` has the data set's column for each judged column that has another name there, None if the judge must not see
    it. Raises ValueError if it names a column that the judge does not have.
    """

    def __init__(self, names: Mapping[str, str | None] | None = None) -> None:
        self._names = dict(names or {})
        for name in self._names:
            if name not in COLUMNS:
                raise ValueError(
                    f"columns has the key {name!r}; its keys are what the judge sees, {', '.join(COLUMNS)}, and its "
                    'values the columns of your dataset, as in {"ground_truth": "answer"}'
                )

    @property
    def in_dataset(self) -> frozenset[str]:
        """The names of the judged columns in a data set that has them."""
        return frozenset(name for column in COLUMNS if (name := self._names.get(column, column)) is not None)

    def rename(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a data set's columns, with the judged ones under the judge's names.

        Raises InvalidRequest if the data set lacks one.
        """
        renamed = {name: values for name, values in given.items() if name not in self._names}
        for name, source in self._names.items():
            if source is not None:
                if source not in given:
                    raise InvalidRequest(
                        f"columns takes {name} from the column {source!r}, which the dataset does not have; it has "
                        f"{', '.join(map(repr, sorted(given))) or 'no columns but the prompt'}"
                    )
                renamed[name] = given[source]
        return renamed

    def ignored_lookalikes(self, given: Iterable[str]) -> list[tuple[str, str]]:
        """Return the columns that the judge does not see although they look like one that it sees, with that one."""
        names = sorted(set(given))
        missing = [name for name in COLUMNS if name not in self._names and name not in names]
        used = set(self._names.values())
        return [(name, judged) for judged in missing for name in names if name not in used and lookalike(name, judged)]


_OUTCOME_CRITERION = {
    "id": "answer",
    "kind": "answer",
    "description": "The final answer equals the ground truth.",
    "verification": {"method": "math"},
}
OUTCOME_RUBRIC = RubricContent.model_validate({"criteria": [_OUTCOME_CRITERION]})
"""The rubric of rows without one, if the method trains them on their outcome alone."""

WithoutRubric = Literal["refuse", "outcome", "accept"]
"""How to treat a row without a rubric, or with an empty one: refuse it, judge its outcome (the final answer against the
ground truth), or accept it without judging."""

ReadT = TypeVar("ReadT")


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that share a prompt and everything else that the judge sees.

    Attributes:
        id: equal on all ranks, and different in each step.
        fields: the group's wire fields, except the responses and the rubric.
        rubric: the group's own rubric, or None; a reference is not pinned yet.
        rows: the indices of its rows in the call.
    """

    id: str
    fields: Mapping[str, Any]
    rubric: RubricOrReference | None
    rows: list[int] = field(default_factory=list)


@dataclass(slots=True)
class RowBatch:
    """All rows of a call.

    Attributes:
        groups: the groups to judge.
        responses: the responses of all rows.
        non_text_parts: the number of parts that are not text, which the judge cannot see.
        without_rubric: the rows without a rubric of their own or a default one.
        accepted: the group id of each row that is accepted without judging.
    """

    groups: list[RowGroup] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)
    non_text_parts: int = 0
    without_rubric: set[int] = field(default_factory=set)
    accepted: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Reads rows.

    Attributes:
        rubric: the rubric of rows without one.
        without_rubric: how to treat rows without any; None if the mode needs none.
        step: the training step.
        stop_token_ids: the tokens that end a response that was not cut off, or None if unknown.
    """

    rubric: RubricOrReference | None = None
    without_rubric: WithoutRubric | None = "refuse"
    step: int | None = None
    stop_token_ids: AbstractSet[int] | None = None

    def read(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None,
        columns: Mapping[str, Any],
    ) -> RowBatch:
        """Read N rows.

        Args:
            prompts, completions: N texts or lists of messages each.
            completion_ids: N lists of tokens, or None if unknown.
            columns: N values of each column of the data set; the ones in `COLUMNS` are read. Messages in
                `MESSAGES_COLUMN` are judged in place of the completion.

        Raises:
            InvalidRequest: a row is invalid; names the row and the problem.
            ValueError: the arguments differ in length.
        """
        given = {"completions": completions, "completion_ids": completion_ids}
        given |= {name: columns.get(name) for name in (*COLUMNS, MESSAGES_COLUMN)}
        present = {name: values for name, values in given.items() if values is not None}
        for name, values in present.items():
            if len(values) != len(prompts):
                raise ValueError(f"{len(values)} {name} for {len(prompts)} prompts; give one for each prompt")
        media = [columns[name] for name in MEDIA_COLUMNS if columns.get(name) is not None]
        grouping = _Grouping(self)
        for row, prompt in enumerate(prompts):
            try:
                grouping.add(
                    row, prompt, {name: values[row] for name, values in present.items()}, [one[row] for one in media]
                )
            except ValidationError as error:
                wrong = field_errors(error.errors(include_url=False, include_input=False))[0]
                raise InvalidRequest(f"row {row}: {wrong.field}: {wrong.message}") from error
            except ValueError as error:
                raise InvalidRequest(f"row {row}: {error}") from error
        return grouping.batch()


class _RowRubric(NamedTuple):
    """A row's own rubric with its key, or None for both, because it has none or because it is empty."""

    rubric: RubricOrReference | None
    key: str | None
    is_empty: bool = False


class _Grouping:
    """Puts one row after the other into its group."""

    def __init__(self, reader: RowReader) -> None:
        self._reader = reader
        self._groups: dict[tuple[object, ...], RowGroup] = {}
        self._batch = RowBatch()
        self._default_key = _rubric_key(reader.rubric)
        # neighbouring rows often have equal values
        self._read_prompt = _remembering_last(partial(wire_text, padded=True))
        self._read_rubric = _remembering_last(_read_rubric)
        self._read_media = _remembering_last(media_digest)

    def add(self, row: int, prompt: Any, values: Mapping[str, Any], media: Sequence[Any]) -> None:
        """Read a row. Raises ValueError, or ValidationError, which is one."""
        batch = self._batch
        wire_prompt = self._read_prompt(prompt)
        own = self._read_rubric(values.get("rubric"))
        texts = {name: as_text(name, values[name]) for name in COLUMNS[1:] if name in values}
        if own.rubric is None and self._reader.without_rubric and (own.is_empty or self._reader.rubric is None):
            batch.without_rubric.add(row)
            own = _fallback_rubric(self._reader.without_rubric, own, texts)
        messages = values.get(MESSAGES_COLUMN)
        response = wire_text(values["completions"] if messages is None else messages)
        batch.responses.append(_response(response, values.get("completion_ids"), self._reader.stop_token_ids))
        shown = [self._read_media(media)] if media else []
        key = (type(wire_prompt.value), wire_prompt.key, own.key or self._default_key, *texts.items(), *shown)
        if key not in self._groups:
            self._groups[key] = _group(key, self._reader.step, wire_prompt, texts, own.rubric)
        if row in batch.without_rubric and self._reader.without_rubric == "accept":
            batch.accepted[row] = self._groups[key].id
        else:
            self._groups[key].rows.append(row)
        batch.non_text_parts += len(wire_prompt.media) + len(response.media)

    def batch(self) -> RowBatch:
        """All rows read."""
        self._batch.groups = [group for group in self._groups.values() if group.rows]
        return self._batch


def _read_rubric(given: Any) -> _RowRubric:
    if given is not None and is_empty_rubric(given):
        return _RowRubric(None, None, is_empty=True)
    own = parse_rubric(given, drop_nulls=True)
    return _RowRubric(own, _rubric_key(own))


def _rubric_key(rubric: RubricOrReference | None) -> str | None:
    return rubric if isinstance(rubric, str) or rubric is None else rubric.digest


def _fallback_rubric(without_rubric: WithoutRubric, missing: _RowRubric, texts: Mapping[str, str | None]) -> _RowRubric:
    """Return the rubric that replaces a missing one."""
    if without_rubric == "refuse":
        raise ValueError(
            f"{'its rubric is empty' if missing.is_empty else 'it has no rubric'}; put one into the dataset's column "
            "'rubric' (to train on the final answer alone, one criterion of kind 'answer'), give RubricReward a "
            "default rubric, or leave the row out"
        )
    if without_rubric == "accept":
        return _RowRubric(None, "none")
    if not (texts.get("ground_truth") or "").strip():
        raise ValueError("it has neither a rubric nor a ground_truth; add one of them")
    return _RowRubric(OUTCOME_RUBRIC, OUTCOME_RUBRIC.digest)


def _remembering_last(read: Callable[[Any], ReadT]) -> Callable[[Any], ReadT]:
    """Have a function remember its last result, for an equal value."""
    last: tuple[Any, ReadT] | None = None

    def remembering(given: Any) -> ReadT:
        nonlocal last
        if last is None or not _equal(last[0], given):
            last = given, read(given)
        return last[1]

    return remembering


def _equal(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except (ValueError, TypeError, RuntimeError):  # arrays and tensors in a prompt compare element by element
        return False


def _group(
    key: tuple[object, ...],
    step: int | None,
    prompt: WireText,
    texts: Mapping[str, str | None],
    own: RubricOrReference | None,
) -> RowGroup:
    shared = json.dumps([step, key[0] is str, *key[1:]])
    id_ = hashlib.sha256(shared.encode()).hexdigest()[:32]
    fields = {"id": id_, "prompt": prompt.value, **{name: text for name, text in texts.items() if text is not None}}
    checked = Group.model_validate({**fields, "responses": [""]})
    return RowGroup(id_, {name: getattr(checked, name) for name in fields}, own)


def _response(wire_response: WireText, ids: Sequence[int] | None, stop_token_ids: AbstractSet[int] | None) -> Response:
    fields: dict[str, Any] = {"text": wire_response.value}
    if ids is not None:
        fields["tokens"] = len(ids)
        if stop_token_ids is not None:
            fields["stopped"] = len(ids) > 0 and int(ids[-1]) in stop_token_ids
    return Response.model_validate(fields)
