"""Which format a parsed JSON value is in, judged by its fields' names and the words its descriptions begin with."""

from typing import Literal

from rubric_store.formats import grounded, rar, requirement, rgr
from trainer_client.wire.criteria import GUIDANCE_FIELDS

RubricFormat = Literal["native", "yaml", "healthbench", "rar", "srar", "rgr", "grounded", "dro", "requirement"]
EXPECTED = (
    'expected {"criteria": […]} as JSON or YAML (native, yaml), [{"criterion": …, "points": …}] (healthbench), '
    '[{"title": …, "description": …, "weight": …}] (rar), [{"description": "Factual Criteria: …", "weight": …}] (rgr), '
    '[{"requirement": …, "weight": …}] (requirement), '
    'a record with "question" and "criteria" (grounded), questions (dro), or lines such as '
    "<SUGGEST> what to check (srar)"
)


def detect_formats(value: object) -> list[RubricFormat]:
    """The formats a value can be in: one if it is plain to see, several if it is not, none if it is in no known one."""
    if requirement.matches(value):
        return ["requirement"]
    if isinstance(value, list):
        return _detect_by_items(value)
    if not isinstance(value, dict):
        return []
    if "criteria" in value:
        return ["grounded"] if value.keys() & {*grounded.METADATA_FIELDS, "passage"} else ["native"]
    if value.keys() & {"questions", "decomposed_questions"}:
        return ["dro"]
    if isinstance(value.get("rubric"), str):
        return ["srar"]
    for key in ("rubrics", "rubric"):
        if isinstance(value.get(key), list):
            return _detect_by_items(value[key])
    return ["healthbench"] if value.keys() & {"rubrics", "reward_model"} else []


def _detect_by_items(items: list[object]) -> list[RubricFormat]:
    if items and all(isinstance(item, str) for item in items):
        return ["dro"]
    objects = [item for item in items if isinstance(item, dict)]
    fields = {field for item in objects for field in item}
    if fields & {"criterion", "points"}:
        return ["healthbench"]
    if fields & {*GUIDANCE_FIELDS} and "id" in fields:
        return ["grounded"]
    if "title" in fields:
        return ["rar"]
    if "id" in fields or "description" not in fields:
        return []
    begins = [str(item.get("description")) for item in objects]
    factual = any(rgr.PREFIX.match(text) for text in begins)
    essential = any(rar.PREFIX.match(text) for text in begins) or any(
        isinstance(item.get("weight"), str) for item in objects
    )
    if factual != essential:
        return ["rgr"] if factual else ["rar"]
    return ["rar", "rgr"]
