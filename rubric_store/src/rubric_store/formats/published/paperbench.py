"""PaperBench's format: a tree `{"id", "requirements", "weight", "sub_tasks": [...], "task_category"}`.

Only leaves are judged. A leaf's weight is the product of the shares on its path, so the weighted mean of the criteria
is the tree's score. The requirements above a leaf become its tags, from the top, and then its category.
"""

from typing import Any

from rubric_store.formats.documents import Changes, RubricDocument, criterion_id, read_items
from rubric_store.formats.trees import Leaf, Node, read_leaves
from trainer_client.wire.base import RequestModel

_MAX_TAG = 256


class _Item(RequestModel):
    requirements: str


def matches(value: object) -> bool:
    """Whether a value is clearly in this format."""
    return isinstance(value, dict) and ("sub_tasks" in value or value.keys() >= {"requirements", "task_category"})


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML; raises `InvalidValueError`."""
    leaves = read_leaves([((), value)], _children, changes)
    taken: set[str] = set()

    def fields(index: int, item: _Item) -> dict[str, Any]:
        leaf = leaves[index]
        taken.add(id_ := criterion_id(leaf.node.get("id"), index, taken))
        return {"id": id_, "description": item.requirements, "weight": leaf.share, "tags": _tags(leaf)}

    items: list[object] = [{"requirements": leaf.node.get("requirements")} for leaf in leaves]
    return read_items(items, (), _Item, fields, places=[leaf.path for leaf in leaves])


def _children(node: Node) -> str | None:
    return "sub_tasks" if node.get("sub_tasks") else None


def _tags(leaf: Leaf) -> tuple[str, ...]:
    texts = [node.get("requirements") or node.get("id") for node in leaf.above]
    categories = [leaf.node.get("task_category"), leaf.node.get("finegrained_task_category")]
    tags = [" ".join(str(text).split()) for text in (*texts, *categories) if text]
    return tuple(tag if len(tag) <= _MAX_TAG else f"{tag[: _MAX_TAG - 1]}…" for tag in tags if tag)
