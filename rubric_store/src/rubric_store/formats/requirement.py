"""The library `rubric`'s format, and open-instruct's: `[{"requirement": "…", "weight": 1.0}]`, in JSON or YAML.

Four shapes are read: the list; a list of sections, each with its `criteria`; either under `rubric`; sections under
`sections`. So is what open-instruct's rubric verifier reads: `{"query": "…", "rubrics": [{"description": "…", "weight":
1.0}]}`, alone or as the text of a row's `ground_truth`; there a weight may be missing, which is 1.

A negative weight is a mistake that costs: it becomes a `pitfall`, as the library's judge is told too. A list of such
alone is a rubric. The name of a section becomes a tag. Written, it is the plain list.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from rubric_store.formats.documents import RubricDocument, read_items
from rubric_store.formats.errors import BadValue, Path
from rubric_store.formats.native import json_of, number
from trainer_client.wire import Criterion
from trainer_client.wire.base import Request

_CALLED = ("requirement", "description", "rubric_item", "Ingredient")
"""What a criterion's text is called, in the library and in open-instruct's data."""
_QUESTION = ("query", "Question")
_EXPECTED = 'a list [{"requirement": "…", "weight": 1.0}], alone, in sections, or under "rubric"'


class _Item(Request):
    requirement: str
    weight: Annotated[float, Field(strict=True)]
    title: str | None = None
    type: str | None = None
    section: str | None = None


def fits(value: object) -> bool:
    """Whether a value is plainly in this format."""
    if isinstance(value, dict):
        inner = value.get("rubric")
        if "sections" in value or _of_open_instruct(value) or (isinstance(inner, dict) and "sections" in inner):
            return True
        return _listed(inner) or _ground_truth(value) is not None
    return _listed(value)


def _listed(value: object) -> bool:
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return any("requirement" in item or isinstance(item.get("criteria"), list) for item in items)


def from_value(value: object) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML; raises `BadValue`."""
    root, listed, weighs = _list(value)
    items: list[object] = []
    places: list[Path] = []
    for index, one in enumerate(listed):
        section = one.get("criteria") if isinstance(one, dict) else None
        if not isinstance(one, dict) or "criteria" not in one:
            items.append(_renamed(one, weighs))
            places.append((*root, index))
        elif not isinstance(section, list):
            raise BadValue([((*root, index, "criteria"), "expected a list of criteria")])
        else:
            name = next((one[key] for key in ("name", "title") if isinstance(one.get(key), str)), None)
            items += [_renamed(item, weighs, name) for item in section]
            places += [(*root, index, "criteria", place) for place in range(len(section))]
    try:
        content = read_items(
            items, (), _Item, _fields, {"description": "requirement", "name": "title", "tags": "section"}
        )
    except BadValue as error:
        raise BadValue([(_placed(path, root, places), message) for path, message in error.found]) from None
    return RubricDocument(content=content)


def write(document: RubricDocument) -> str:
    """The list as JSON text."""
    return json_of([_written(criterion) for criterion in document.content.criteria])


def _list(value: object) -> tuple[Path, list[object], bool]:
    """Where the list stands, the list, and whether a criterion without a weight weighs 1."""
    root: Path = ()
    weighs = False
    if isinstance(value, dict) and (label := _ground_truth(value)) is not None:
        root, value = ("ground_truth",), label
    if isinstance(value, dict) and _of_open_instruct(value):
        root, value, weighs = (*root, "rubrics"), value["rubrics"], True
    for key in ("rubric", "sections"):
        if isinstance(value, dict) and key in value:
            root, value = (*root, key), value[key]
    if not isinstance(value, list):
        raise BadValue([(root, f"expected {_EXPECTED}")])
    return root, value, weighs


def _of_open_instruct(value: Mapping[Any, Any]) -> bool:
    rubrics = value.get("rubrics")
    if not isinstance(rubrics, list) or not any(key in value for key in _QUESTION):
        return False
    return any(isinstance(item, dict) and any(key in item for key in _CALLED) for item in rubrics)


def _ground_truth(row: Mapping[Any, Any]) -> object | None:
    """What the text of a row's `ground_truth` holds, if that is open-instruct's; None if it is anything else."""
    label = row.get("ground_truth")
    if isinstance(label, list) and len(label) == 1:
        label = label[0]
    if not isinstance(label, str) or not label.lstrip().startswith("{"):
        return None
    try:
        held: object = json.loads(label)
    except (ValueError, RecursionError):
        return None
    return held if isinstance(held, dict) and _of_open_instruct(held) else None


def _renamed(item: object, weighs: bool, section: str | None = None) -> object:
    if not isinstance(item, dict):
        return item
    called = next((key for key in _CALLED if key in item), "requirement")
    fields = {"requirement" if key == called else key: value for key, value in item.items()}
    if weighs:
        fields.setdefault("weight", 1.0)
    return fields if section is None else {**fields, "section": section}


def _placed(path: Path, root: Path, places: list[Path]) -> Path:
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


def _written(criterion: Criterion) -> dict[str, Any]:
    weight = -abs(criterion.weight) if criterion.kind == "pitfall" else criterion.weight
    title = {"title": criterion.name} if criterion.name else {}
    return {"requirement": criterion.description, "weight": number(weight), **title}
