"""Turn the rows of a reward call into the groups of a request.

Rows that share a prompt and all judging columns form a group, under an id that is equal on all ranks. Prompts and
completions become text, or messages of text, as the wire takes them. The user's mistakes raise errors, but a
completion is never rejected for what the policy wrote.
"""

import hashlib
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import ValidationError

from trainer_client.client.tables import (
    RubricOrReference,
    as_text,
    is_empty_rubric,
    lookalike,
    parse_rubric,
    to_plain_data,
)
from trainer_client.errors import InvalidRequest
from trainer_client.wire import Group, Response, RubricContent
from trainer_client.wire.problems import field_errors

_CALLS_PER_MESSAGE = 128


class WireText(NamedTuple):
    """A text, or the fields of messages.

    Attributes:
        value: what is sent.
        media: the digest of each part that is shown only by its type, such as an image.
    """

    value: str | list[dict[str, Any]]
    media: tuple[str, ...] = ()

    @property
    def non_text_parts(self) -> int:
        """The number of parts that are shown only by their type."""
        return len(self.media)

    @property
    def key(self) -> str:
        """A key that is equal for equal values, on every rank."""
        text = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return json.dumps([text, *self.media]) if self.media else text


def media_digest(given: object) -> str:
    """Hash an image, or another value that is no text; equal content has equal digests, on every rank."""
    hasher = hashlib.sha256()
    for piece in _media_pieces(given):
        hasher.update(len(piece).to_bytes(8, "big") + piece)
    return hasher.hexdigest()


def _media_pieces(given: Any) -> Iterator[bytes]:
    """Yield the content of a value: its nesting, and of images, arrays and tensors their form and elements."""
    if isinstance(given, bytes | bytearray | memoryview):
        yield bytes(given)
    elif isinstance(given, Mapping):
        present = sorted((str(key), value) for key, value in given.items() if value is not None)
        yield b"mapping %d" % len(present)
        for key, value in present:
            yield key.encode("utf-8", "surrogatepass")
            yield from _media_pieces(value)
    elif isinstance(given, list | tuple):
        yield b"sequence %d" % len(given)
        for item in given:
            yield from _media_pieces(item)
    elif given is None or isinstance(given, str | int | float):
        yield repr(given).encode("utf-8", "surrogatepass")
    elif hasattr(given, "detach"):  # a tensor
        yield from _media_pieces(given.detach().cpu().tolist())
    elif hasattr(given, "tobytes"):  # an image or an array
        form = [getattr(given, name, None) for name in ("mode", "size", "dtype", "shape")]
        yield repr(form).encode()
        yield given.tobytes()
    else:
        yield pickle.dumps(given)


MEDIA_COLUMNS = ("image", "images", "video", "videos", "audio", "audios")
"""The columns in which data sets hold what belongs to a prompt and is no text. The judge does not see them."""

COLUMNS = ("rubric", "grounding", "reference_answer", "ground_truth")
"""The columns that are read from a dataset. Columns and single values may be missing."""

MESSAGES_COLUMN = "response_messages"
"""The column with the messages of each response, for rollout functions whose completions are one text."""


def check_column_names(columns: Mapping[str, str | None]) -> None:
    """Check a map from the judge's columns to a dataset's.

    Raises:
        ValueError: it names a column that the judge does not have.
    """
    for name in columns:
        if name not in COLUMNS:
            raise ValueError(
                f"columns has the key {name!r}; its keys are what the judge sees, {', '.join(COLUMNS)}, and its values "
                'the columns of your dataset, as in {"ground_truth": "answer"}'
            )


def rename_columns(given: Mapping[str, Any], columns: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the columns under the names that the judge's columns have.

    Args:
        given: the columns of the dataset.
        columns: the dataset's column for each judge's column; None if the judge does not see it.

    Raises:
        InvalidRequest: the dataset lacks a column.
    """
    renamed = {name: values for name, values in given.items() if name not in columns}
    for name, source in columns.items():
        if source is not None:
            if source not in given:
                raise InvalidRequest(
                    f"columns takes {name} from the column {source!r}, which the dataset does not have; it has "
                    f"{', '.join(map(repr, sorted(given))) or 'no columns but the prompt'}"
                )
            renamed[name] = given[source]
    return renamed


def ignored_lookalikes(given: Iterable[str], columns: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """Return the columns that the judge does not see although they look like one of its own, with that one.

    Args:
        given: the names of the dataset's columns.
        columns: as for `rename_columns`.
    """
    names = sorted(set(given))
    missing = [name for name in COLUMNS if name not in columns and name not in names]
    used = set(columns.values())
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


@dataclass(frozen=True, slots=True)
class RowBatch:
    """All rows of a call.

    Attributes:
        groups: the groups to judge.
        responses: the responses of all rows.
        non_text_parts: the number of parts that are not text, which the judge cannot see.
        without_rubric: the rows without a rubric of their own or a default one.
        accepted: the group id of each row that is accepted without judging.
    """

    groups: list[RowGroup]
    responses: list[Response]
    non_text_parts: int
    without_rubric: frozenset[int] = frozenset()
    accepted: Mapping[int, str] = field(default_factory=dict)


def read_rows(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Sequence[int]] | None,
    columns: Mapping[str, Any],
    *,
    rubric: RubricOrReference | None,
    needs_rubric: bool,
    without_rubric: WithoutRubric = "refuse",
    step: int | None,
    stop_token_ids: AbstractSet[int] | None,
) -> RowBatch:
    """Read N rows.

    Args:
        prompts, completions: N texts or lists of messages each.
        completion_ids: N lists of tokens, or None if unknown.
        columns: N values of each column of the dataset; the ones in `COLUMNS` are read. Messages in
            `MESSAGES_COLUMN` are judged in place of the completion.
        rubric: the rubric of rows without one.
        needs_rubric: whether every row must have a rubric.
        without_rubric: how to treat rows without a rubric, or with an empty one, if every row must have one: `refuse`
            them, judge their `outcome` (the final answer against the ground truth), or `accept` them without judging.
        step: the training step.
        stop_token_ids: the tokens that end a response that was not cut off, or None if unknown.

    Raises:
        InvalidRequest: a row is invalid; names the row and the problem.
        ValueError: the arguments differ in length.
    """
    given = {"completions": completions} | {name: columns[name] for name in COLUMNS if columns.get(name) is not None}
    if completion_ids is not None:
        given["completion_ids"] = completion_ids
    if columns.get(MESSAGES_COLUMN) is not None:
        given[MESSAGES_COLUMN] = columns[MESSAGES_COLUMN]
    for name, values in given.items():
        if len(values) != len(prompts):
            raise ValueError(f"{len(values)} {name} for {len(prompts)} prompts; give one for each prompt")
    read_prompt, read_row_rubric, read_empty, read_media = (
        _LastValueCache(partial(wire_text, padded=True)),
        _LastValueCache(_read_row_rubric),
        _LastValueCache(is_empty_rubric),
        _LastValueCache(media_digest),
    )
    media = [columns[name] for name in MEDIA_COLUMNS if columns.get(name) is not None]
    default = _rubric_key(rubric)
    groups: dict[tuple[object, ...], RowGroup] = {}
    responses: list[Response] = []
    rows_without_rubric: set[int] = set()
    accepted: dict[int, str] = {}
    non_text_parts = 0
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        row_columns = {name: given[name][row] for name in COLUMNS if name in given}
        try:
            wire_prompt = read_prompt(prompt)
            row_rubric = row_columns.pop("rubric", None)
            has_empty_rubric = row_rubric is not None and read_empty(row_rubric)
            own, own_key = (None, None) if has_empty_rubric else read_row_rubric(row_rubric)
            texts = {name: as_text(name, value) for name, value in row_columns.items()}
            if needs_rubric and own is None and (has_empty_rubric or rubric is None):
                rows_without_rubric.add(row)
                own, own_key = _fallback_rubric(
                    without_rubric, "its rubric is empty" if has_empty_rubric else "it has no rubric", texts
                )
            own_messages = given[MESSAGES_COLUMN][row] if MESSAGES_COLUMN in given else None
            wire_response = wire_text(completion if own_messages is None else own_messages)
            responses.append(
                _response(wire_response, None if completion_ids is None else completion_ids[row], stop_token_ids)
            )
            shown = [read_media([values[row] for values in media])] if media else []
            key = (type(wire_prompt.value), wire_prompt.key, own_key or default, *texts.items(), *shown)
            if key not in groups:
                groups[key] = _group(key, step, wire_prompt, texts, own)
        except ValidationError as error:
            wrong = field_errors(error.errors(include_url=False, include_input=False))[0]
            raise InvalidRequest(f"row {row}: {wrong.field}: {wrong.message}") from error
        except ValueError as error:
            raise InvalidRequest(f"row {row}: {error}") from error
        if row in rows_without_rubric and without_rubric == "accept":
            accepted[row] = groups[key].id
        else:
            groups[key].rows.append(row)
        non_text_parts += wire_prompt.non_text_parts + wire_response.non_text_parts
    judged = [group for group in groups.values() if group.rows]
    return RowBatch(judged, responses, non_text_parts, frozenset(rows_without_rubric), accepted)


def _fallback_rubric(
    without_rubric: WithoutRubric, problem: str, texts: Mapping[str, str | None]
) -> tuple[RubricOrReference | None, str | None]:
    """Return the rubric that replaces a missing one, and its key."""
    if without_rubric == "refuse":
        raise ValueError(
            f"{problem}; put one into the dataset's column 'rubric' (to train on the final answer alone, one criterion "
            "of kind 'answer'), give RubricReward a default rubric, or leave the row out"
        )
    if without_rubric == "accept":
        return None, "none"
    if not (texts.get("ground_truth") or "").strip():
        raise ValueError("it has neither a rubric nor a ground_truth; add one of them")
    return OUTCOME_RUBRIC, OUTCOME_RUBRIC.digest


class _LastValueCache(Generic[ReadT]):
    """Caches the latest value read, since neighboring rows often have equal values."""

    def __init__(self, read: Callable[[Any], ReadT]) -> None:
        self._read = read
        self._last: tuple[Any, ReadT] | None = None

    def __call__(self, given: Any) -> ReadT:
        if self._last is None or not _equal(self._last[0], given):
            self._last = given, self._read(given)
        return self._last[1]


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


def _read_row_rubric(given: Any) -> tuple[RubricOrReference | None, str | None]:
    own = parse_rubric(given, drop_nulls=True)
    return own, _rubric_key(own)


def _rubric_key(rubric: RubricOrReference | None) -> str | None:
    return rubric if isinstance(rubric, str) or rubric is None else rubric.digest


def wire_text(given: object, *, padded: bool = False) -> WireText:
    """Read a prompt or a completion: text, or TRL's messages.

    Fields that the wire does not have are dropped, and so are None values, which Arrow adds to messages. A part that
    is not text becomes its type in brackets, such as `[image]`.

    Args:
        given: the prompt or the completion.
        padded: whether it comes from a dataset, where Arrow gives the arguments of each tool call those of all others,
            with the value None. A policy's own None stays.

    Raises:
        ValueError: the value is neither text nor messages.
    """
    if isinstance(given, str):
        return WireText(given)
    if not isinstance(given, Sequence) or not all(isinstance(message, Mapping) for message in given):
        raise ValueError(f"a value of type {type(given).__name__} is neither text nor a list of messages")
    messages: list[dict[str, Any]] = []
    media: list[str] = []
    for message in given:
        messages += _messages(message, _content(message.get("content"), media), padded=padded)
    return WireText(messages, tuple(media))


def _messages(given: Mapping[str, Any], content: str | None, *, padded: bool) -> Iterator[dict[str, Any]]:
    """Yield a message, followed by messages with the tool calls beyond the limit of one message."""
    message: dict[str, Any] = {"role": given.get("role")}
    thinking = given.get("reasoning_content") or given.get("thinking")
    given_calls = given.get("tool_calls")
    calls = (
        [_call(call, padded=padded) for call in given_calls if isinstance(call, Mapping)]
        if isinstance(given_calls, list | tuple)
        else []
    )
    if thinking:
        message["reasoning_content"] = str(thinking)
    if content is not None or not (thinking or calls):
        message["content"] = content or ""
    for key in ("tool_call_id", "name"):
        if given.get(key) is not None:
            message[key] = str(given[key])
    if calls:
        message["tool_calls"] = calls[:_CALLS_PER_MESSAGE]
    yield message
    for start in range(_CALLS_PER_MESSAGE, len(calls), _CALLS_PER_MESSAGE):
        yield {"role": given.get("role"), "tool_calls": calls[start : start + _CALLS_PER_MESSAGE]}


def _content(given: object, media: list[str]) -> str | None:
    """Return the text of a message's content, and add the digests of its other parts to `media`."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, Sequence):
        return _json(given)
    texts: list[str] = []
    for part in given:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str) and part.get("type", "text") == "text":
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, Mapping) else None
            texts.append(f"[{kind or type(part).__name__}]")
            media.append(media_digest(part))
    return "\n".join(texts)


def _call(given: Mapping[str, Any], *, padded: bool) -> dict[str, Any]:
    """Convert a tool call, with its arguments as text, since a policy's arguments may be invalid JSON."""
    function = given.get("function")
    named = function if isinstance(function, Mapping) else given
    arguments = named.get("arguments")
    if padded and not isinstance(arguments, str):
        arguments = to_plain_data(arguments)
    call: dict[str, Any] = {
        "function": {
            "name": str(named.get("name") or ""),
            "arguments": arguments if isinstance(arguments, str) else "" if arguments is None else _json(arguments),
        }
    }
    if given.get("id") is not None:
        call["id"] = str(given["id"])
    return call


def _json(given: object) -> str:
    try:
        return json.dumps(given, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(given)
