"""The lists of weighted criteria that papers publish: RaR, RGR-GRPO and Rubric-Grounded."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError

from rubric_store.formats.documents import (
    Changes,
    InvalidValueError,
    RubricDocument,
    find_list,
    read_items,
    validation_problems,
)
from rubric_store.formats.native import dump_json, plain_number
from trainer_client.wire import Criterion
from trainer_client.wire.base import RequestModel
from trainer_client.wire.criteria import GUIDANCE_FIELDS

_RAR_PATHS = (("rubric",), ("rubrics",))
CATEGORY_WEIGHTS: Final = {"essential": 1.0, "important": 0.7, "optional": 0.3, "pitfall": 0.9}
RAR_PREFIX = re.compile(r"\s*(essential|important|optional|pitfall)\s+criteria\s*:", re.IGNORECASE)
_EXPECTED_RAR = 'a list [{"title": "…", "description": "Essential Criteria: …", "weight": 5}], alone or under "rubric"'
_Category = Literal["Essential", "Important", "Optional", "Pitfall"]


class _RarItem(RequestModel):
    title: str = ""
    description: str
    weight: Annotated[Annotated[float, Field(strict=True)] | _Category, Field(union_mode="left_to_right")]


def read_rar(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON, a whole row or just its list; raises `InvalidValueError`.

    The format of Rubrics as Rewards: `[{"title": "…", "description": "Essential Criteria: …", "weight": 5}]`.

    A description may begin with its category: Essential, Important, Optional or Pitfall. A weight is a number or a
    category, which then weighs 1, 0.7, 0.3 or 0.9. A row may hold the list under `rubric`.

    The title becomes the criterion's name, and the category a tag. A pitfall with a negative weight describes a mistake
    and gets kind `pitfall`; one with a positive weight says that the mistake was avoided and gets kind `point`.
    """
    path, items = find_list(value, _RAR_PATHS, _EXPECTED_RAR)
    return read_items(items, path, _RarItem, _rar_fields, {"name": "title"}, changes)


def write_rar(document: RubricDocument) -> str:
    """Write the list as JSON; a criterion's category is the first of its tags that names one."""
    return dump_json([_rar_item(criterion) for criterion in document.content.criteria])


def _rar_fields(index: int, item: _RarItem) -> dict[str, Any]:
    prefix = RAR_PREFIX.match(item.description)
    category = prefix[1].lower() if prefix else ""
    weight = item.weight
    if isinstance(weight, str):
        if category and weight.lower() != category:
            message = f"{weight}, but its description begins with {category.title()} Criteria; make them agree"
            raise InvalidValueError.at(("weight",), message)
        category, weight = weight.lower(), CATEGORY_WEIGHTS[weight.lower()]
    mistake = category == "pitfall" and weight < 0
    return {
        "id": f"c{index + 1}",
        "name": item.title.strip() or None,
        "description": item.description[prefix.end() :] if prefix else item.description,
        "kind": "pitfall" if mistake else "point",
        "weight": weight,
        "tags": (category,) if category and not mistake else (),
    }


def _rar_item(criterion: Criterion) -> dict[str, Any]:
    mistake = criterion.kind == "pitfall"
    category = "pitfall" if mistake else next((tag for tag in criterion.tags if tag in CATEGORY_WEIGHTS), "")
    title = {"title": criterion.name} if criterion.name else {}
    return {
        **title,
        "description": f"{category.title()} Criteria: {criterion.description}" if category else criterion.description,
        "weight": plain_number(-abs(criterion.weight) if mistake else criterion.weight),
    }


_RGR_PATHS = (("rubric",), ("rubrics",), ("criteria",))
RGR_PREFIX = re.compile(r"\s*(factual|process)\s+criteria\s*:", re.IGNORECASE)
MIN_RGR_WEIGHT, MAX_RGR_WEIGHT = 1, 5
_EXPECTED_RGR = 'a list [{"description": "Factual Criteria: …", "weight": 3}], alone or under "rubric"'


def _whole(weight: object) -> object:
    """A weight such as 3.0, as tables have it, as a whole number."""
    return int(weight) if isinstance(weight, float) and weight.is_integer() else weight


class _RgrItem(RequestModel):
    description: str
    weight: Annotated[int, BeforeValidator(_whole), Field(strict=True, ge=MIN_RGR_WEIGHT, le=MAX_RGR_WEIGHT)]


def read_rgr(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON, a whole row or just its list; raises `InvalidValueError`.

    RGR-GRPO's format: `[{"description": "Factual Criteria: …", "weight": 3}]`.

    Descriptions begin with Factual or Process; weights are 1 to 5. Factual criteria get the ids `f1`, `f2`…, process
    criteria `p1`, `p2`…. A row may hold the list under `rubric` or `rubrics`.
    """
    path, items = find_list(value, _RGR_PATHS, _EXPECTED_RGR)
    seen: Counter[str] = Counter()

    def fields(index: int, item: _RgrItem) -> dict[str, Any]:
        prefix = RGR_PREFIX.match(item.description)
        if prefix is None:
            message = 'its category is missing; begin it with "Factual Criteria:" or "Process Criteria:"'
            raise InvalidValueError.at(("description",), message)
        kind = prefix[1].lower()
        seen[kind] += 1
        rest = item.description[prefix.end() :]
        return {"id": f"{kind[0]}{seen[kind]}", "kind": kind, "description": rest, "weight": item.weight}

    return read_items(items, path, _RgrItem, fields, changes=changes)


def write_rgr(document: RubricDocument) -> str:
    """Write the list as JSON."""
    return dump_json(
        [
            {"description": f"{one.kind.title()} Criteria: {one.description}", "weight": int(one.weight)}
            for one in document.content.criteria
        ]
    )


def not_in_rgr(criterion: Criterion) -> Iterator[str]:
    """Why the format cannot hold a criterion: another kind, or a weight other than 1, 2, 3, 4 or 5."""
    if criterion.kind not in ("factual", "process"):
        yield f"RGR has only factual and process criteria, and this one has kind {criterion.kind!r}"
    if not (MIN_RGR_WEIGHT <= criterion.weight <= MAX_RGR_WEIGHT and criterion.weight.is_integer()):
        yield f"RGR's weights are whole numbers from 1 to 5, and this one is {criterion.weight:g}"


_GROUNDED_PATHS = (("criteria",),)
METADATA_FIELDS = ("question", "question_rationale", "document_analysis", "doc_hash")
"""Fields of a record that are kept as metadata."""

_EXPECTED_GROUNDED = (
    'a list of criteria {"id", "name", "description", "weight", "required_elements", …}, alone or under "criteria"'
)


class _GroundedItem(RequestModel):
    id: str
    description: str
    weight: Annotated[float, Field(strict=True, ge=0)]
    name: str | None = None
    required_elements: tuple[str, ...] = ()
    scoring_guide: str | None = None
    expected_keywords: tuple[str, ...] = ()
    expected_concepts: tuple[str, ...] = ()
    verification_method: str | None = None


def read_grounded(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON, a whole record or just its criteria; raises `InvalidValueError`.

    Rubric-Grounded's format: criteria with nine fields, alone or in the paper's record.

    The nine are id, name, description, weight (at least 0), required_elements, scoring_guide, expected_keywords,
    expected_concepts and verification_method. Of a record, question, question_rationale, document_analysis and doc_hash
    are kept as metadata; the passage is not read, since judges get it as grounding.
    """
    path, items = find_list(value, _GROUNDED_PATHS, _EXPECTED_GROUNDED)

    def fields(_: int, item: _GroundedItem) -> dict[str, Any]:
        return {name: given for name, given in item.model_dump().items() if given != ""}

    content = read_items(items, path, _GroundedItem, fields, changes=changes).content
    record = value if isinstance(value, dict) else {}
    metadata = {key: record[key] for key in METADATA_FIELDS if key in record}
    try:
        return RubricDocument(content=content, metadata=metadata or None)
    except ValidationError as error:
        raise InvalidValueError([(path[1:] or path, message) for path, message in validation_problems(error)]) from None


def write_grounded(document: RubricDocument) -> str:
    """Write the record as JSON, with all nine fields of every criterion."""
    metadata = {key: value for key, value in (document.metadata or {}).items() if key in METADATA_FIELDS}
    return dump_json({**metadata, "criteria": [_grounded_item(criterion) for criterion in document.content.criteria]})


def not_in_grounded(criterion: Criterion) -> Iterator[str]:
    """Why the format cannot hold a criterion: it has no penalties."""
    if criterion.weight < 0:
        yield f"Rubric-Grounded has no negative weights, and this one is {criterion.weight:g}"
    if criterion.kind == "pitfall":
        yield "Rubric-Grounded has no pitfalls; reword it as what a good response does"


def _grounded_item(criterion: Criterion) -> dict[str, Any]:
    guidance = {field: getattr(criterion, field) for field in GUIDANCE_FIELDS}
    shown = {field: list(value) if isinstance(value, tuple) else value or "" for field, value in guidance.items()}
    return {
        "id": criterion.id,
        "weight": plain_number(criterion.weight),
        "name": shown.pop("name"),
        "description": criterion.description,
        **shown,
    }
