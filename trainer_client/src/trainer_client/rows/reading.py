"""Turn the rows of a data set, with a response to each, into the groups of a request.

Prompts and completions become text, or messages of text, as the wire takes them. Rows that share a prompt and all
judged columns form a group, under an id that is equal on all ranks. The user's mistakes raise errors, but a response is
never rejected for what the policy wrote.
"""

import hashlib
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import ValidationError

from trainer_client.errors import InvalidRequest
from trainer_client.rows.tables import (
    RubricOrReference,
    as_text,
    is_empty_rubric,
    lookalike,
    parse_rubric,
    to_plain_data,
)
from trainer_client.wire import Group, Response, RubricContent
from trainer_client.wire.problems import field_errors

_CALLS_PER_MESSAGE = 128


class WireText(NamedTuple):
    """A text, or the fields of messages, and the digest of each part that is shown by its type only, as an image is."""

    value: str | list[dict[str, Any]]
    media: tuple[str, ...] = ()

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


def prompt_digest(prompt: Any) -> str:
    """Hash a prompt, text or messages; equal content has equal digests, on every rank and in a resumed run."""
    return hashlib.sha256(json.dumps(prompt, sort_keys=True, default=media_digest).encode()).hexdigest()


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

    def name_of(self, judged: str) -> str | None:
        """Return the data set's name of a judged column; None if the judge must not see it."""
        return self._names.get(judged, judged)

    @property
    def in_dataset(self) -> frozenset[str]:
        """The names of the judged columns in a data set that has them."""
        return frozenset(name for column in COLUMNS if (name := self.name_of(column)) is not None)

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
