"""Trees of weighted nodes, whose leaves become criteria.

A node's weight is its share among its siblings, so a leaf counts with the product of the shares on its path. The
weighted mean of the leaves is then the score of the tree.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rubric_store.formats.documents import Changes, InvalidValueError, Path, RubricDocument, criterion_id, read_items
from trainer_client.wire.base import RequestModel

_SMALLEST_WEIGHT = 1e-9
_MAX_DEPTH = 64
Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf: its path in the file, the node, the nodes above it from the root, and its share of the tree's score."""

    path: Path
    node: Node
    above: tuple[Node, ...]
    share: float


def read_leaves(
    roots: Sequence[tuple[Path, object]], children: Callable[[Node], str | None], changes: Changes
) -> list[Leaf]:
    """The leaves below siblings, in order; their shares add up to 1.

    Args:
        roots: the uppermost nodes with their paths.
        children: the field that holds a node's children, None for a leaf.
        changes: receives groups that the tree itself gives no points.

    Raises:
        InvalidValueError: a node is not an object, or a weight is not a number of at least 0.
    """
    problems: Changes = []
    leaves = list(_leaves(roots, children, (), 1.0, changes, problems))
    if problems:
        raise InvalidValueError(problems)
    positive = [leaf.share for leaf in leaves if leaf.share > 0]
    factor = max(1.0, _SMALLEST_WEIGHT / min(positive, default=1.0))
    return [Leaf(leaf.path, leaf.node, leaf.above, leaf.share * factor) for leaf in leaves]


def _leaves(
    siblings: Sequence[tuple[Path, object]],
    children: Callable[[Node], str | None],
    above: tuple[Node, ...],
    share: float,
    changes: Changes,
    problems: Changes,
) -> Iterator[Leaf]:
    weights = [_weight(node, path, problems) for path, node in siblings]
    total = math.fsum(weights)
    if total == 0:
        where = siblings[0][0][:-1] if siblings else ()
        changes.append((where, "all its parts weigh 0, so the tree gives it no points; its share is not kept"))
    for (path, node), weight in zip(siblings, weights, strict=True):
        if not isinstance(node, dict) or len(above) > _MAX_DEPTH:
            problems.append((path, "expected an object" if len(above) <= _MAX_DEPTH else "it is nested too deeply"))
            continue
        own = share * weight / total if total else 0.0
        field = children(node)
        if field is None:
            yield Leaf(path, node, above, own)
        elif not isinstance(node[field], list):
            problems.append(((*path, field), "expected a list"))
        else:
            below = [((*path, field, index), child) for index, child in enumerate(node[field])]
            yield from _leaves(below, children, (*above, node), own, changes, problems)


def _weight(node: object, path: Path, problems: Changes) -> float:
    weight = node.get("weight", 1) if isinstance(node, dict) else 0
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1e9:
        problems.append(((*path, "weight"), "expected a number from 0 to 1e9: the share among its siblings"))
        return 0.0
    return float(weight)


_MAX_TAG = 256


class _PaperbenchItem(RequestModel):
    requirements: str


def is_paperbench(value: object) -> bool:
    """Whether a value is clearly in this format."""
    return isinstance(value, dict) and ("sub_tasks" in value or value.keys() >= {"requirements", "task_category"})


def read_paperbench(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML; raises `InvalidValueError`.

    PaperBench's format: a tree `{"id", "requirements", "weight", "sub_tasks": [...], "task_category"}`.

    Only leaves are judged. A leaf's weight is the product of the shares on its path, so the weighted mean of the
    criteria is the tree's score. The requirements above a leaf become its tags, from the top, and then its category.
    """
    leaves = read_leaves([((), value)], _sub_tasks, changes)
    taken: set[str] = set()

    def fields(index: int, item: _PaperbenchItem) -> dict[str, Any]:
        leaf = leaves[index]
        taken.add(id_ := criterion_id(leaf.node.get("id"), index, taken))
        return {"id": id_, "description": item.requirements, "weight": leaf.share, "tags": _tags_of_leaf(leaf)}

    items: list[object] = [{"requirements": leaf.node.get("requirements")} for leaf in leaves]
    return read_items(items, (), _PaperbenchItem, fields, places=[leaf.path for leaf in leaves])


def _sub_tasks(node: Node) -> str | None:
    return "sub_tasks" if node.get("sub_tasks") else None


def _tags_of_leaf(leaf: Leaf) -> tuple[str, ...]:
    texts = [node.get("requirements") or node.get("id") for node in leaf.above]
    categories = [leaf.node.get("task_category"), leaf.node.get("finegrained_task_category")]
    tags = [" ".join(str(text).split()) for text in (*texts, *categories) if text]
    return tuple(tag if len(tag) <= _MAX_TAG else f"{tag[: _MAX_TAG - 1]}…" for tag in tags if tag)


_CHILDREN: Final = ("children", "questions", "items")
_TEXTS: Final = ("question", "text", "prompt", "content", "description", "title", "name", "label")
_ANSWERS: Final = {"yes": True, "true": True, "y": True, "no": False, "false": False, "n": False}
_KNOWN: Final = frozenset({*_CHILDREN, *_TEXTS, "type", "pass_answer", "question_type", "weight", "id", "key"})
_GATE: Final = "hard_gate"


class _QuestionsItem(RequestModel):
    question: str
    passes: bool
    weight: float


def is_questions(value: object) -> bool:
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
    return "pass_answer" in node or kind == "question" or (kind == "group" and _children_of(node) is not None)


def read_questions(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML; raises `InvalidValueError`.

    Trees of yes/no questions: nodes of `type: group` with `children`, and of `type: question` with a `pass_answer`.

    A question whose passing answer is no becomes the statement that its answer is no, so that every criterion is met by
    a response that passes. Where groups have weights, a question counts with the product of the shares on its path,
    else with its own weight. The names of the groups above a question become its tags. A hard gate, which fails the
    whole tree, becomes a criterion with the tag `hard_gate`: no mode lets one criterion decide alone.
    """
    roots: list[tuple[Path, object]] = (
        [((index,), node) for index, node in enumerate(value)] if isinstance(value, list) else [((), value)]
    )
    leaves = read_leaves(roots, _children_of, changes)
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

    def fields(index: int, item: _QuestionsItem) -> dict[str, Any]:
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

    return read_items(items, (), _QuestionsItem, fields, places=[leaf.path for leaf in leaves])


def _children_of(node: Node) -> str | None:
    return next((field for field in _CHILDREN if isinstance(node.get(field), list)), None)


def _text(node: Node) -> object:
    return next((node[field] for field in _TEXTS if node.get(field)), None)


def _name(node: Node) -> str:
    """The node's id, or its name where that is not its text."""
    text = _text(node) if _children_of(node) is None else None
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
