"""From the rows of a reward call to the groups of a request: what belongs together, under an id that all ranks share.

Knows the columns by their names. Sends nothing, and pins no reference.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from pydantic import ValidationError

from trainer_client._columns import Rubric, as_text, is_empty_rubric, read_rubric
from trainer_client.errors import InvalidRequest
from trainer_client.trl._texts import WireText, wire_text
from trainer_client.wire import Group, Response, RubricContent
from trainer_client.wire.problems import field_errors

COLUMNS = ("rubric", "grounding", "reference_answer", "ground_truth")
"""The columns of a dataset that are read; each may be missing, and so may any value."""

_OUTCOME = {
    "id": "answer",
    "kind": "answer",
    "description": "The final answer equals the ground truth.",
    "verification": {"method": "math"},
}
OUTCOME = RubricContent.model_validate({"criteria": [_OUTCOME]})
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
    rubric: Rubric | None
    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Rows:
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
    unseen: int
    without_rubric: frozenset[int] = frozenset()
    accepted: Mapping[int, str] = field(default_factory=dict)


def read_rows(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Sequence[int]] | None,
    columns: Mapping[str, Any],
    *,
    rubric: Rubric | None,
    needs_rubric: bool,
    without_rubric: WithoutRubric = "refuse",
    step: int | None,
    ends: AbstractSet[int] | None,
) -> Rows:
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
    read_prompt, read_own, read_empty = _Repeated(wire_text), _Repeated(_read_own), _Repeated(is_empty_rubric)
    default = _key(rubric)
    groups: dict[tuple[object, ...], RowGroup] = {}
    responses: list[Response] = []
    bare: set[int] = set()
    accepted: dict[int, str] = {}
    unseen = 0
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        beside = {name: given[name][row] for name in COLUMNS if name in given}
        try:
            asked = read_prompt(prompt)
            named = beside.pop("rubric", None)
            emptied = named is not None and read_empty(named)
            own, own_key = (None, None) if emptied else read_own(named)
            texts = {name: as_text(name, value) for name, value in beside.items()}
            if needs_rubric and own is None and (emptied or rubric is None):
                bare.add(row)
                own, own_key = _instead(without_rubric, "its rubric is empty" if emptied else "it has no rubric", texts)
            said = wire_text(completion)
            responses.append(_response(said, None if completion_ids is None else completion_ids[row], ends))
            key = (type(asked.value), asked.key, own_key or default, *texts.items())
            if key not in groups:
                groups[key] = _group(key, step, asked, texts, own)
        except ValidationError as error:
            wrong = field_errors(error.errors(include_url=False, include_input=False))[0]
            raise InvalidRequest(f"row {row}: {wrong.field}: {wrong.message}") from error
        except ValueError as error:
            raise InvalidRequest(f"row {row}: {error}") from error
        if row in bare and without_rubric == "accept":
            accepted[row] = groups[key].id
        else:
            groups[key].rows.append(row)
        unseen += asked.unseen + said.unseen
    judged = [group for group in groups.values() if group.rows]
    return Rows(judged, responses, unseen, frozenset(bare), accepted)


def _instead(
    without_rubric: WithoutRubric, lacks: str, texts: Mapping[str, str | None]
) -> tuple[Rubric | None, str | None]:
    """Give what judges a row without a rubric, and its key."""
    if without_rubric == "refuse":
        raise ValueError(
            f"{lacks}; put one into the dataset's column 'rubric' (to train on the final answer alone, one criterion "
            "of kind 'answer'), give RubricReward one for such rows, or leave the row out"
        )
    if without_rubric == "accept":
        return None, "none"
    if not (texts.get("ground_truth") or "").strip():
        raise ValueError("it has neither a rubric nor a ground_truth; give it one of them")
    return OUTCOME, OUTCOME.digest


class _Repeated(Generic[ReadT]):
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
    key: tuple[object, ...], step: int | None, prompt: WireText, texts: Mapping[str, str | None], own: Rubric | None
) -> RowGroup:
    shared = json.dumps([step, key[0] is str, *key[1:]])
    id_ = hashlib.sha256(shared.encode()).hexdigest()[:32]
    fields = {"id": id_, "prompt": prompt.value, **{name: text for name, text in texts.items() if text is not None}}
    checked = Group.model_validate({**fields, "responses": [""]})
    return RowGroup(id_, {name: getattr(checked, name) for name in fields}, own)


def _response(said: WireText, ids: Sequence[int] | None, ends: AbstractSet[int] | None) -> Response:
    fields: dict[str, Any] = {"text": said.value}
    if ids is not None:
        fields["tokens"] = len(ids)
        if ends is not None:
            fields["stopped"] = len(ids) > 0 and int(ids[-1]) in ends
    return Response.model_validate(fields)


def _read_own(given: Any) -> tuple[Rubric | None, str | None]:
    own = read_rubric(given, padded=True)
    return own, _key(own)


def _key(rubric: Rubric | None) -> str | None:
    return rubric if isinstance(rubric, str) or rubric is None else rubric.digest
