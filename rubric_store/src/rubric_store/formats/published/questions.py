"""Trees of yes/no questions: nodes of `type: group` with `children`, and of `type: question` with a `pass_answer`.

A question whose passing answer is no becomes the statement that its answer is no, so that every criterion is met by a
response that passes. Where groups have weights, a question counts with the product of the shares on its path, else
with its own weight. The names of the groups above a question become its tags. A hard gate, which fails the whole tree,
becomes a criterion with the tag `hard_gate`: no mode lets one criterion decide alone.
"""

from typing import Any, Final

from rubric_store.formats.documents import (
    Changes,
    InvalidValueError,
    Path,
    RubricDocument,
    criterion_id,
    read_items,
)
from rubric_store.formats.trees import Leaf, Node, read_leaves
from trainer_client.wire.base import RequestModel

_CHILDREN: Final = ("children", "questions", "items")
_TEXTS: Final = ("question", "text", "prompt", "content", "description", "title", "name", "label")
_ANSWERS: Final = {"yes": True, "true": True, "y": True, "no": False, "false": False, "n": False}
_KNOWN: Final = frozenset({*_CHILDREN, *_TEXTS, "type", "pass_answer", "question_type", "weight", "id", "key"})
_GATE: Final = "hard_gate"


class _Item(RequestModel):
    question: str
    passes: bool
    weight: float


def matches(value: object) -> bool:
    """Whether a value is clearly in this format."""
    nodes = value if isinstance(value, list) else [value]
    return any(_is_node(node) for node in nodes) or any(
        isinstance(node, dict) and isinstance(node.get(field), list) and any(map(_is_node, node[field]))
        for node in nodes
        for field in _CHILDREN
    )


def _is_node(node: object) -> bool:
    if not isinstance(node, dict):
        return False
    kind = str(node.get("type", "")).lower()
    return "pass_answer" in node or kind == "question" or (kind == "group" and _children(node) is not None)


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML; raises `InvalidValueError`."""
    roots: list[tuple[Path, object]] = (
        [((index,), node) for index, node in enumerate(value)] if isinstance(value, list) else [((), value)]
    )
    leaves = read_leaves(roots, _children, changes)
    groups = {id(node): node for leaf in leaves for node in leaf.above}
    by_share = any("weight" in node for node in groups.values())
    for leaf in leaves:
        changes += [((*leaf.path, key), "the field is not kept") for key in leaf.node if key not in _KNOWN]
    for node in groups.values():
        lost = sorted(str(key) for key in node if key not in _KNOWN)
        changes += [((), f"the field {key!r} of the group {_name(node)!r} is not kept") for key in lost]
    items: list[object] = [
        {
            "question": _text(leaf.node),
            "passes": _passes(leaf),
            "weight": leaf.share if by_share else leaf.node.get("weight", 1),
        }
        for leaf in leaves
    ]
    gates = [leaf for leaf in leaves if any(map(_is_gate, (leaf.node, *leaf.above)))]
    changes += [
        (leaf.path, "a hard gate fails the whole tree, and no mode has that: it counts with its weight, and is tagged")
        for leaf in gates
    ]
    taken: set[str] = set()

    def fields(index: int, item: _Item) -> dict[str, Any]:
        leaf = leaves[index]
        taken.add(id_ := criterion_id(_name(leaf.node), index, taken))
        text = item.question
        tags = (*(_name(node) for node in leaf.above), _GATE if leaf in gates else _kind(leaf.node))
        return {
            "id": id_,
            "description": text if item.passes else f"The right answer to this question is no: {text}",
            "weight": item.weight,
            "tags": tuple(tag[:256] for tag in tags if tag),
        }

    return read_items(items, (), _Item, fields, places=[leaf.path for leaf in leaves])


def _children(node: Node) -> str | None:
    return next((field for field in _CHILDREN if isinstance(node.get(field), list)), None)


def _text(node: Node) -> object:
    return next((node[field] for field in _TEXTS if node.get(field)), None)


def _name(node: Node) -> str:
    """The node's id, or its name where that is not its text."""
    text = _text(node) if _children(node) is None else None
    named = (node.get(field) for field in ("id", "key", "name", "title", "label", *_TEXTS))
    return " ".join(str(next((one for one in named if one and one != text), "")).split())


def _kind(node: Node) -> str:
    return str(node.get("question_type", "")).strip().lower()


def _is_gate(node: Node) -> bool:
    return "gate" in _kind(node) or any(node.get(field) is True for field in ("hard_gate", "gate", "is_gate"))


def _passes(leaf: Leaf) -> bool:
    given = leaf.node.get("pass_answer", True)
    passes = given if isinstance(given, bool) else _ANSWERS.get(str(given).strip().lower())
    if passes is None:
        raise InvalidValueError.at((*leaf.path, "pass_answer"), f"{str(given)[:40]!r} is neither yes nor no")
    return passes
