"""The format of the libraries `rubric` and `autorubric`, `[{"requirement": "…", "weight": 1.0}]`, and open-instruct's.

The list is read alone, under `rubric`, `criteria` or `sections`, and with sections that each have `criteria`, in JSON
or YAML. open-instruct's rubric verifier format is read too: `{"query": "…", "rubrics": [{"description": "…", "weight":
1.0}]}`, alone or as the text of a row's `ground_truth`. Weights default to 1 there, and in lists without any weight.

A negative weight makes a `pitfall`, as in the library's own judge, and a rubric may consist of pitfalls only. A
section's name becomes a tag, and the `name` of a criterion its id. autorubric's `options` become grades, in a rubric
where all other criteria are graded 0 or 1, and its `guidelines` the verification method of every criterion. The plain
list is written.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from rubric_store.formats.documents import (
    Changes,
    InvalidValueError,
    Path,
    RubricDocument,
    criterion_id,
    read_items,
)
from rubric_store.formats.native import dump_json, plain_number
from rubric_store.formats.published.graded import graded_fields
from rubric_store.formats.rows import normalise
from trainer_client.wire import Criterion
from trainer_client.wire.base import RequestModel

_TEXT_KEYS = ("requirement", "description", "rubric_item", "ingredient")
"""Field names of a criterion's text, in the library and in open-instruct's data."""
_EXPECTED = 'a list [{"requirement": "…", "weight": 1.0}], alone, in sections, or under "rubric"'


class _Option(RequestModel):
    label: str
    value: Annotated[float, Field(strict=True)]
    na: bool = False


class _Item(RequestModel):
    requirement: str
    weight: Annotated[float, Field(strict=True)]
    name: str | None = None
    title: str | None = None
    type: str | None = None
    section: str | None = None
    scale_type: str | None = None
    options: tuple[_Option, ...] = ()


def matches(value: object) -> bool:
    """Whether a value is clearly in this format."""
    if isinstance(value, dict):
        inner = value.get("rubric")
        if "sections" in value or _is_open_instruct(value) or (isinstance(inner, dict) and "sections" in inner):
            return True
        holders = [one for one in (value, inner) if isinstance(one, dict)]
        if any(_has_requirements(one.get("criteria")) for one in holders):
            return True
        return _is_item_list(inner) or _ground_truth(value) is not None
    return _is_item_list(value)


def _is_item_list(value: object) -> bool:
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return _has_requirements(items) or any(_has_requirements(item.get("criteria")) for item in items)


def _has_requirements(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) and "requirement" in item for item in value)


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML; raises `InvalidValueError`."""
    root, listed, weight_optional, guidelines = _find_items(value)
    given: list[tuple[object, str | None]] = []
    places: list[Path] = []
    for index, one in enumerate(listed):
        section = one.get("criteria") if isinstance(one, dict) else None
        if not isinstance(one, dict) or "criteria" not in one:
            given.append((one, None))
            places.append((*root, index))
        elif not isinstance(section, list):
            raise InvalidValueError.at((*root, index, "criteria"), "expected a list of criteria")
        else:
            name = next((one[key] for key in ("name", "title") if isinstance(one.get(key), str)), None)
            given += [(item, name) for item in section]
            places += [(*root, index, "criteria", place) for place in range(len(section))]
    weight_optional = weight_optional or not any(isinstance(one, dict) and "weight" in one for one, _ in given)
    items = [_normalise_item(one, weight_optional, name) for one, name in given]
    graded = any(isinstance(item, dict) and item.get("options") for item in items)
    taken: set[str] = set()

    def fields(index: int, item: _Item) -> dict[str, Any]:
        taken.add(id_ := criterion_id(item.name, index, taken))
        made = _fields(id_, item)
        if guidelines:
            made["verification_method"] = guidelines
        if item.options:
            grades, notes = _grades(item)
            changes.extend((places[index], note) for note in notes)
            return {**made, **grades}
        return {**made, "scale": 1} if graded else made

    names = {"description": "requirement", "name": "title", "tags": "section"}
    return read_items(items, root, _Item, fields, names, changes, places)


def _grades(item: _Item) -> tuple[dict[str, Any], list[str]]:
    """A scale and a guide of a criterion's options; an option's value is the score."""
    levels = [(option.value, option.label) for option in item.options if not option.na]
    values = [value for value, _ in levels]
    low, high = min(0.0, *values), max(1.0, *values) if values else 1.0
    not_applicable = next((option.label for option in item.options if option.na), None)
    try:
        return graded_fields(levels, low, high, not_applicable=not_applicable, avoided=item.weight < 0)
    except ValueError as error:
        raise InvalidValueError.at(("options",), str(error)) from None


def write(document: RubricDocument) -> str:
    """Write the list as JSON."""
    return dump_json([_serialize(criterion) for criterion in document.content.criteria])


def _find_items(value: object) -> tuple[Path, list[object], bool, str | None]:
    """The path of the list, the list, whether weights are optional (1 by default), and the guidelines."""
    root: Path = ()
    weight_optional = False
    guidelines: object = None
    if isinstance(value, dict) and (label := _ground_truth(value)) is not None:
        root, value = ("ground_truth",), label
    if isinstance(value, dict) and _is_open_instruct(value):
        root, value, weight_optional = (*root, "rubrics"), value["rubrics"], True
    for keys in (("rubric",), ("sections", "criteria")):
        key = next((key for key in keys if isinstance(value, dict) and key in value), None)
        if key == "criteria" and isinstance(value, dict) and not _is_item_list(value[key]):
            break
        if key is not None and isinstance(value, dict):
            guidelines = value.get("guidelines", guidelines)
            root, value = (*root, key), value[key]
    if not isinstance(value, list):
        raise InvalidValueError.at(root, f"expected {_EXPECTED}")
    return root, value, weight_optional, guidelines if isinstance(guidelines, str) and guidelines.strip() else None


def _is_open_instruct(value: Mapping[Any, Any]) -> bool:
    rubrics = value.get("rubrics")
    keys = _TEXT_KEYS if "query" in value else _TEXT_KEYS[2:] if "question" in value else ()
    return isinstance(rubrics, list) and any(
        isinstance(item, dict) and any(key in item for key in keys) for item in rubrics
    )


def _ground_truth(row: Mapping[Any, Any]) -> object | None:
    """The parsed text of a row's `ground_truth` if it is in open-instruct's format, else None."""
    label = row.get("ground_truth")
    if isinstance(label, list) and len(label) == 1:
        label = label[0]
    if isinstance(label, str) and label.lstrip().startswith("{"):
        try:
            label = normalise(json.loads(label))
        except (ValueError, RecursionError):
            return None
    return label if isinstance(label, dict) and _is_open_instruct(label) else None


def _normalise_item(item: object, weight_optional: bool, section: str | None = None) -> object:
    if not isinstance(item, dict):
        return item
    text_key = next((key for key in _TEXT_KEYS if key in item), "requirement")
    fields = {"requirement" if key == text_key else key: value for key, value in item.items()}
    if weight_optional:
        fields.setdefault("weight", 1.0)
    return fields if section is None else {**fields, "section": section}


def _fields(id_: str, item: _Item) -> dict[str, Any]:
    name = (item.title or item.name or "").strip()
    return {
        "id": id_,
        "name": name if name and name != id_ else None,
        "description": item.requirement,
        "kind": "pitfall" if item.weight < 0 else "point",
        "weight": item.weight,
        "tags": (item.section,) if (item.section or "").strip() else (),
    }


def _serialize(criterion: Criterion) -> dict[str, Any]:
    weight = -abs(criterion.weight) if criterion.kind == "pitfall" else criterion.weight
    title = {"title": criterion.name} if criterion.name else {}
    return {"requirement": criterion.description, "weight": plain_number(weight), **title}
