"""The format of the library `rubric`, `[{"requirement": "…", "weight": 1.0}]`, and open-instruct's, in JSON or YAML.

Four shapes are read: the list; a list of sections, each with its `criteria`; either of these under `rubric`; sections
under `sections`. open-instruct's rubric verifier format is read too: `{"query": "…", "rubrics": [{"description": "…",
"weight": 1.0}]}`, alone or as the text of a row's `ground_truth`; its weights default to 1.

A negative weight makes a `pitfall`, as in the library's own judge, and a rubric may consist of pitfalls only. A
section's name becomes a tag. The plain list is written.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from rubric_store.formats.documents import InvalidValueError, Path, RubricDocument, read_items
from rubric_store.formats.native import dump_json, plain_number
from trainer_client.wire import Criterion
from trainer_client.wire.base import RequestModel

_TEXT_KEYS = ("requirement", "description", "rubric_item", "Ingredient")
"""Field names of a criterion's text, in the library and in open-instruct's data."""
_QUESTION_KEYS = ("query", "Question")
_EXPECTED = 'a list [{"requirement": "…", "weight": 1.0}], alone, in sections, or under "rubric"'


class _Item(RequestModel):
    requirement: str
    weight: Annotated[float, Field(strict=True)]
    title: str | None = None
    type: str | None = None
    section: str | None = None


def matches(value: object) -> bool:
    """Whether a value is clearly in this format."""
    if isinstance(value, dict):
        inner = value.get("rubric")
        if "sections" in value or _is_open_instruct(value) or (isinstance(inner, dict) and "sections" in inner):
            return True
        return _is_item_list(inner) or _ground_truth(value) is not None
    return _is_item_list(value)


def _is_item_list(value: object) -> bool:
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return any("requirement" in item or isinstance(item.get("criteria"), list) for item in items)


def from_value(value: object) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML; raises `InvalidValueError`."""
    root, listed, weight_optional = _find_items(value)
    items: list[object] = []
    places: list[Path] = []
    for index, one in enumerate(listed):
        section = one.get("criteria") if isinstance(one, dict) else None
        if not isinstance(one, dict) or "criteria" not in one:
            items.append(_normalise_item(one, weight_optional))
            places.append((*root, index))
        elif not isinstance(section, list):
            raise InvalidValueError([((*root, index, "criteria"), "expected a list of criteria")])
        else:
            name = next((one[key] for key in ("name", "title") if isinstance(one.get(key), str)), None)
            items += [_normalise_item(item, weight_optional, name) for item in section]
            places += [(*root, index, "criteria", place) for place in range(len(section))]
    try:
        content = read_items(
            items, (), _Item, _fields, {"description": "requirement", "name": "title", "tags": "section"}
        )
    except InvalidValueError as error:
        raise InvalidValueError(
            [(_original_path(path, root, places), message) for path, message in error.found]
        ) from None
    return RubricDocument(content=content)


def write(document: RubricDocument) -> str:
    """Write the list as JSON."""
    return dump_json([_serialize(criterion) for criterion in document.content.criteria])


def _find_items(value: object) -> tuple[Path, list[object], bool]:
    """The path of the list, the list, and whether weights are optional (1 by default)."""
    root: Path = ()
    weight_optional = False
    if isinstance(value, dict) and (label := _ground_truth(value)) is not None:
        root, value = ("ground_truth",), label
    if isinstance(value, dict) and _is_open_instruct(value):
        root, value, weight_optional = (*root, "rubrics"), value["rubrics"], True
    for key in ("rubric", "sections"):
        if isinstance(value, dict) and key in value:
            root, value = (*root, key), value[key]
    if not isinstance(value, list):
        raise InvalidValueError([(root, f"expected {_EXPECTED}")])
    return root, value, weight_optional


def _is_open_instruct(value: Mapping[Any, Any]) -> bool:
    rubrics = value.get("rubrics")
    if not isinstance(rubrics, list) or not any(key in value for key in _QUESTION_KEYS):
        return False
    return any(isinstance(item, dict) and any(key in item for key in _TEXT_KEYS) for item in rubrics)


def _ground_truth(row: Mapping[Any, Any]) -> object | None:
    """The parsed text of a row's `ground_truth` if it is in open-instruct's format, else None."""
    label = row.get("ground_truth")
    if isinstance(label, list) and len(label) == 1:
        label = label[0]
    if not isinstance(label, str) or not label.lstrip().startswith("{"):
        return None
    try:
        parsed: object = json.loads(label)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) and _is_open_instruct(parsed) else None


def _normalise_item(item: object, weight_optional: bool, section: str | None = None) -> object:
    if not isinstance(item, dict):
        return item
    text_key = next((key for key in _TEXT_KEYS if key in item), "requirement")
    fields = {"requirement" if key == text_key else key: value for key, value in item.items()}
    if weight_optional:
        fields.setdefault("weight", 1.0)
    return fields if section is None else {**fields, "section": section}


def _original_path(path: Path, root: Path, places: list[Path]) -> Path:
    if path and isinstance(path[0], int) and path[0] < len(places):
        return (*places[path[0]], *path[1:])
    return (*root, *path)


def _fields(index: int, item: _Item) -> dict[str, Any]:
    return {
        "id": f"c{index + 1}",
        "name": (item.title or "").strip() or None,
        "description": item.requirement,
        "kind": "pitfall" if item.weight < 0 else "point",
        "weight": item.weight,
        "tags": (item.section,) if (item.section or "").strip() else (),
    }


def _serialize(criterion: Criterion) -> dict[str, Any]:
    weight = -abs(criterion.weight) if criterion.kind == "pitfall" else criterion.weight
    title = {"title": criterion.name} if criterion.name else {}
    return {"requirement": criterion.description, "weight": plain_number(weight), **title}
