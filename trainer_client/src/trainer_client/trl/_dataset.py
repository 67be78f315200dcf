"""Turn the rows of a reward call into the groups of a request.

From the rows of a reward call to the groups of a request: what belongs together, under an id that all ranks share.

Knows the columns by their names. Sends nothing, and pins no reference.

A trainer's prompts and completions as the wire takes them: text, or messages of text.

What a policy wrote is never refused, whatever it is: only the user's mistakes are. Knows nothing of rubrics.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import ValidationError

from trainer_client._columns import RubricOrReference, as_text, is_empty_rubric, parse_rubric
from trainer_client.errors import InvalidRequest
from trainer_client.wire import Group, Response, RubricContent
from trainer_client.wire.problems import field_errors

_CALLS_PER_MESSAGE = 128


class WireText(NamedTuple):
    """A text, or the fields of messages; and how many parts stand in it by name only, for they are no text."""

    value: str | list[dict[str, Any]]
    non_text_parts: int = 0

    @property
    def key(self) -> str:
        """The same for equal values, on every rank."""
        return self.value if isinstance(self.value, str) else json.dumps(self.value)


def wire_text(given: object) -> WireText:
    """Read a prompt or a completion: text, or TRL's messages.

    Fields that the wire does not know are dropped, and so is None, with which Arrow fills messages up. A part that
    is no text is shown as its type in brackets, such as `[image]`.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(given, str):
        return WireText(given)
    if not isinstance(given, Sequence) or not all(isinstance(message, Mapping) for message in given):
        raise ValueError(f"what is of type {type(given).__name__} is neither text nor a list of messages")
    messages: list[dict[str, Any]] = []
    non_text_parts = 0
    for message in given:
        content, left_out = _content(message.get("content"))
        non_text_parts += left_out
        messages += _messages(message, content)
    return WireText(messages, non_text_parts)


def _messages(given: Mapping[str, Any], content: str | None) -> Iterator[dict[str, Any]]:
    """Give a message, followed by others with the tool calls that exceed what one may have."""
    message: dict[str, Any] = {"role": given.get("role")}
    thinking = given.get("reasoning_content") or given.get("thinking")
    called = given.get("tool_calls")
    calls = [_call(call) for call in called if isinstance(call, Mapping)] if isinstance(called, list | tuple) else []
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


def _content(given: object) -> tuple[str | None, int]:
    if given is None or isinstance(given, str):
        return given, 0
    if not isinstance(given, Sequence):
        return _json(given), 0
    texts: list[str] = []
    non_text_parts = 0
    for part in given:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str) and part.get("type", "text") == "text":
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, Mapping) else None
            texts.append(f"[{kind or type(part).__name__}]")
            non_text_parts += 1
    return "\n".join(texts), non_text_parts


def _call(given: Mapping[str, Any]) -> dict[str, Any]:
    """Give a tool call with its arguments as text, for what a policy wrote there may be no JSON."""
    function = given.get("function")
    named = function if isinstance(function, Mapping) else given
    arguments = named.get("arguments")
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


COLUMNS = ("rubric", "grounding", "reference_answer", "ground_truth")
"""The columns of a dataset that are read; each may be missing, and so may any value."""

_OUTCOME_CRITERION = {
    "id": "answer",
    "kind": "answer",
    "description": "The final answer equals the ground truth.",
    "verification": {"method": "math"},
}
OUTCOME_RUBRIC = RubricContent.model_validate({"criteria": [_OUTCOME_CRITERION]})
"""What judges a row without a rubric where its outcome alone is to be trained on."""

WithoutRubric = Literal["refuse", "outcome", "accept"]

ReadT = TypeVar("ReadT")


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The rows that share a prompt and all that the judge sees beside it.

    Attributes:
        id: equal on all ranks and differing from step to step.
        fields: the group's fields on the wire, but its responses and its rubric.
        rubric: its own, where it has one; a reference is not pinned yet.
        rows: the places of its rows in the call.
    """

    id: str
    fields: Mapping[str, Any]
    rubric: RubricOrReference | None
    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RowBatch:
    """All rows of a call.

    Attributes:
        groups: those that are judged.
        responses: of all rows.
        unseen: how many parts of them a judge of texts cannot see.
        without_rubric: the rows that name no rubric and are given none.
        accepted: the id of the group of each row that is accepted without being judged.
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
        completion_ids: N lists of tokens, where they are known.
        columns: N values of each column of the dataset; those in `COLUMNS` are read.
        rubric: what judges rows that name none.
        needs_rubric: whether every row must have a rubric.
        without_rubric: what becomes of rows that have none, or an empty one, where every row must have one: `refuse`,
            `outcome` (judged by their final answer against the ground truth), `accept` (not judged).
        step: the training step.
        ends: the tokens of which one ends every response that was not cut off, where they are known.

    Raises:
        InvalidRequest: a row cannot be sent; names the row and what is wrong with it.
        ValueError: there are not N of something.
    """
    given = {"completions": completions} | {name: columns[name] for name in COLUMNS if columns.get(name) is not None}
    if completion_ids is not None:
        given["completion_ids"] = completion_ids
    for name, values in given.items():
        if len(values) != len(prompts):
            raise ValueError(f"{len(values)} {name} for {len(prompts)} prompts; there must be one for each")
    read_prompt, read_row_rubric, read_empty = (
        _LastValueCache(wire_text),
        _LastValueCache(_read_row_rubric),
        _LastValueCache(is_empty_rubric),
    )
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
            named = row_columns.pop("rubric", None)
            has_empty_rubric = named is not None and read_empty(named)
            own, own_key = (None, None) if has_empty_rubric else read_row_rubric(named)
            texts = {name: as_text(name, value) for name, value in row_columns.items()}
            if needs_rubric and own is None and (has_empty_rubric or rubric is None):
                rows_without_rubric.add(row)
                own, own_key = _fallback_rubric(
                    without_rubric, "its rubric is empty" if has_empty_rubric else "it has no rubric", texts
                )
            wire_response = wire_text(completion)
            responses.append(
                _response(wire_response, None if completion_ids is None else completion_ids[row], stop_token_ids)
            )
            key = (type(wire_prompt.value), wire_prompt.key, own_key or default, *texts.items())
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
    """Give what judges a row without a rubric, and its key."""
    if without_rubric == "refuse":
        raise ValueError(
            f"{problem}; put one into the dataset's column 'rubric' (to train on the final answer alone, one criterion "
            "of kind 'answer'), give RubricReward one for such rows, or leave the row out"
        )
    if without_rubric == "accept":
        return None, "none"
    if not (texts.get("ground_truth") or "").strip():
        raise ValueError("it has neither a rubric nor a ground_truth; give it one of them")
    return OUTCOME_RUBRIC, OUTCOME_RUBRIC.digest


class _LastValueCache(Generic[ReadT]):
    """Reads values of which neighbours are often equal, each run of them once."""

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
    except ValueError:  # arrays, such as images in a prompt, compare element by element
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
