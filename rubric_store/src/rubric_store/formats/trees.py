"""Trees of weighted nodes, whose leaves become criteria.

A node's weight is its share among its siblings, so a leaf counts with the product of the shares on its path. The
weighted mean of the leaves is then the score of the tree.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rubric_store.formats.documents import Changes, InvalidValueError, Path

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
