"""DeepEval's GEval: `{"name", "criteria": "…", "evaluation_steps": […], "threshold"}`, one metric or a list of them.

Each metric becomes a criterion that its steps guide. A `rubric` of score ranges becomes its scoring guide, on a scale
of 10. Criteria are not compared with a threshold here, and the parameters that a metric sees are those of the request.
"""

from typing import Any

from rubric_store.formats.documents import (
    Changes,
    InvalidValueError,
    Path,
    RubricDocument,
    criterion_id,
    read_items,
)
from trainer_client.wire.base import RequestModel

_MARKS = frozenset({"evaluation_steps", "evaluation_params", "threshold", "strict_mode"})
_SCALE = 10


class _Range(RequestModel):
    score_range: tuple[int, int]
    expected_outcome: str


class _Item(RequestModel):
    name: str | None = None
    criteria: str | None = None
    evaluation_steps: tuple[str, ...] = ()
    rubric: tuple[_Range, ...] = ()
    weight: float = 1.0


def matches(value: object) -> bool:
    """Whether a value is clearly in this format."""
    metrics = _metrics(value)[1]
    return bool(metrics) and all(
        isinstance(one, dict)
        and (isinstance(one.get("criteria"), str) or isinstance(one.get("evaluation_steps"), list))
        and bool(one.keys() & _MARKS or one.keys() <= {"name", "criteria", "weight"})
        for one in metrics
    )


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML; raises `InvalidValueError`."""
    places, metrics = _metrics(value)
    taken: set[str] = set()

    def fields(index: int, item: _Item) -> dict[str, Any]:
        taken.add(id_ := criterion_id(item.name, index, taken))
        steps = "\n".join(f"{number}. {step}" for number, step in enumerate(item.evaluation_steps, start=1))
        if not item.criteria and not steps:
            raise InvalidValueError.at(("criteria",), "give criteria or evaluation_steps")
        guide = [
            f"{low} to {high}: {text}"
            for (low, high), text in ((r.score_range, r.expected_outcome) for r in item.rubric)
        ]
        if guide:
            changes.append(
                (places[index], f"judge it with the protocol graded: its scores are the grades 0 to {_SCALE}")
            )
        return {
            "id": id_,
            "name": item.name,
            "description": item.criteria or f"The response passes this check:\n{steps}",
            "verification_method": steps if item.criteria and steps else None,
            "weight": item.weight,
            **({"scale": _SCALE, "scoring_guide": "\n".join(guide)} if guide else {}),
        }

    names = {"description": "criteria", "verification_method": "evaluation_steps"}
    return read_items(metrics, (), _Item, fields, names, changes, places)


def _metrics(value: object) -> tuple[list[Path], list[object]]:
    root: Path = ()
    if isinstance(value, dict) and isinstance(value.get("metrics"), list):
        root, value = ("metrics",), value["metrics"]
    if isinstance(value, list):
        return [(*root, index) for index in range(len(value))], value
    return [root], [value]
