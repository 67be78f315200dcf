"""What a file says of one rubric, and how its criteria are read one by one so that every problem is found at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rubric_store.formats.errors import InvalidValueError, Path, validation_problems
from trainer_client.wire import Criterion, Lineage, NewRubricName, RubricContent, RubricTag
from trainer_client.wire.json_object import JsonObject
from trainer_client.wire.rubrics import MAX_TAGS

MAX_CRITERIA: Final = 512
ItemT = TypeVar("ItemT", bound=BaseModel)


class RubricHeader(BaseModel):
    """What a file may say beside the criteria: the rubric's name, its tags, its metadata and where it came from."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: NewRubricName | None = None
    tags: tuple[RubricTag, ...] = Field(default=(), max_length=MAX_TAGS)
    metadata: JsonObject | None = None
    lineage: Lineage | None = None


class RubricDocument(RubricHeader):
    """One rubric as a file holds it."""

    content: RubricContent


def as_document(content: RubricContent | RubricDocument) -> RubricDocument:
    """A document of the criteria, where there is none yet."""
    return content if isinstance(content, RubricDocument) else RubricDocument(content=content)


def read_items(
    value: object,
    root: Path,
    item: type[ItemT],
    convert: Callable[[int, ItemT], dict[str, Any] | Criterion],
    field_names: Mapping[str, str] | None = None,
) -> RubricContent:
    """Read a list of criteria.

    Args:
        value: what stands where the list should.
        root: the path to it, for problems.
        item: the format's model of one criterion.
        convert: makes a criterion's fields from the place in the list and the item; may raise `InvalidValueError` with paths
            that begin within the item.
        called: the format's names of a criterion's fields, where they differ.

    Raises:
        BadValue: with everything that is wrong.
    """
    if not isinstance(value, list):
        raise InvalidValueError([(root, "expected a list of criteria")])
    if not 1 <= len(value) <= MAX_CRITERIA:
        raise InvalidValueError(
            [(root, f"it has {len(value)} criteria; a rubric has at least 1 item and at most {MAX_CRITERIA}")]
        )
    criteria: list[Criterion] = []
    found = _duplicate_ids(value, root)
    for index, raw in enumerate(value):
        try:
            criterion = _criterion(convert(index, item.model_validate(raw)), field_names or {})
        except ValidationError as error:
            found += [((*root, index, *path), message) for path, message in validation_problems(error)]
        except InvalidValueError as error:
            found += [((*root, index, *path), message) for path, message in error.found]
        else:
            criteria.append(criterion)
    only_pitfalls = all(criterion.kind == "pitfall" and criterion.weight < 0 for criterion in criteria)
    if len(criteria) == len(value) and not only_pitfalls and not any(criterion.weight > 0 for criterion in criteria):
        message = (
            "no criterion has a positive weight, so there is nothing to divide by; give one a weight above 0, or write "
            "a list of mistakes in a format that knows them (native, yaml, rar, requirement)"
        )
        found.append((root, message))
    if found:
        raise InvalidValueError(found)
    return RubricContent(criteria=tuple(criteria))


def _duplicate_ids(items: Sequence[object], root: Path) -> list[tuple[Path, str]]:
    first: dict[str, int] = {}
    found: list[tuple[Path, str]] = []
    for index, item in enumerate(items):
        id_ = item.get("id") if isinstance(item, dict) else None
        if isinstance(id_, str) and first.setdefault(id_, index) != index:
            message = f"{id_[:130]!r} is repeated, it is criterion {first[id_] + 1}'s id too; ids must differ"
            found.append(((*root, index, "id"), message))
    return found


def _criterion(fields: dict[str, Any] | Criterion, field_names: Mapping[str, str]) -> Criterion:
    if isinstance(fields, Criterion):
        return fields
    try:
        return Criterion.model_validate(fields)
    except ValidationError as error:
        renamed = [
            ((*(field_names.get(str(step), step) for step in path[:1]), *path[1:]), message)
            for path, message in validation_problems(error)
        ]
        raise InvalidValueError(renamed) from None


def find_list(value: object, paths: Sequence[tuple[str, ...]], expected: str) -> tuple[Path, object]:
    """Where in a row the criteria stand: the value itself if it is a list, or at the first of these paths.

    Raises:
        BadValue: there is nothing at any of the paths.
    """
    if isinstance(value, list):
        return (), value
    for path in paths:
        inner, depth = value, 0
        while depth < len(path) and isinstance(inner, dict) and path[depth] in inner:
            inner, depth = inner[path[depth]], depth + 1
        if depth == len(path):
            return path, inner
    raise InvalidValueError([((), f"expected {expected}")])
