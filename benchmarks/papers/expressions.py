"""Expressions over a paper's tables, as written in the data files: `mean(t1["RaR"][:6])`.

They support arithmetic, comparisons, rows and columns by name, and the functions in `FUNCTIONS`, but nothing else of
Python. Numbers are read as printed in a paper: 3.50 is rounded at its second decimal, and 350 is a count. Text that is
not a key is also a number: "12K", "92%".
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from benchmarks.papers.numbers import RoundedNumber, exact, mean, printed, root, total


@dataclass(frozen=True)
class Table:
    """A table as printed in a paper: rows of numbers by name. A missing cell is None."""

    where: str
    columns: tuple[str, ...]
    rows: Mapping[str, list[Any]]

    def column(self, name: str) -> list[Any]:
        """Return the numbers of a column, in the order of the rows."""
        return [row[self.columns.index(name)] for row in self.rows.values()]


def _leads(row: Sequence[RoundedNumber], *others: Sequence[RoundedNumber]) -> RoundedNumber:
    """Count the columns in which a row is above all others."""
    return exact(sum(all(own.value > other.value for other in rest) for own, *rest in zip(row, *others, strict=True)))


def _count(values: Sequence[bool]) -> RoundedNumber:
    return exact(sum(values))


def _attainable(values: Sequence[RoundedNumber], size: RoundedNumber) -> RoundedNumber:
    """Count the percentages that are possible for a whole number out of `size`."""
    counts = ((math.ceil(x.low / 100 * size.value), x.high / 100 * size.value) for x in values)
    return exact(sum(first <= last for first, last in counts))


def _p_value(correlation: RoundedNumber, size: RoundedNumber) -> RoundedNumber:
    """Compute the two-sided p-value of a correlation of `size` pairs by Student's t, for even degrees of freedom n.

    With t = tan(a) sqrt(n), P(|T| < t) = sin(a) (1 + 1/2 cos²a + (1·3)/(2·4) cos⁴a + …), with n/2 terms.
    """
    freedom = int(size.value) - 2
    if freedom < 2 or freedom % 2:
        raise ValueError(f"there are {freedom} degrees of freedom; this series needs a positive even number")

    def against_chance(strength: float) -> float:
        cosine2, term, series = 1 - strength * strength, 1.0, 1.0
        for k in range(1, freedom // 2):
            term *= (2 * k - 1) / (2 * k) * cosine2
            series += term
        return strength * series

    return exact(1) - abs(correlation).through(against_chance)


def _weighted(values: Sequence[RoundedNumber], counts: Sequence[RoundedNumber]) -> RoundedNumber:
    """Compute the mean of values with counts."""
    return total([value * count for value, count in zip(values, counts, strict=True)]) / total(counts)


def _deviation(values: Sequence[RoundedNumber], counts: Sequence[RoundedNumber]) -> RoundedNumber:
    """Compute the population standard deviation of values with counts."""
    centre = _weighted(values, counts)
    return root(_weighted([(value - centre) * (value - centre) for value in values], counts))


def _median(values: Sequence[RoundedNumber], counts: Sequence[RoundedNumber]) -> RoundedNumber:
    """Compute the median of values with counts: the middle value, or the mean of the two middle ones."""
    every = sorted(value.value for value, n in zip(values, counts, strict=True) for _ in range(int(n.value)))
    return exact((every[(len(every) - 1) // 2] + every[len(every) // 2]) / 2)


def _modulo(value: RoundedNumber, divisor: RoundedNumber) -> RoundedNumber:
    return exact(value.value % divisor.value)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "mean": mean,
    "sum": total,
    "count": _count,
    "len": lambda values: exact(len(values)),
    "max": lambda values: max(values, key=lambda x: x.value),
    "min": lambda values: min(values, key=lambda x: x.value),
    "weighted": _weighted,
    "deviation": _deviation,
    "median": _median,
    "leads": _leads,
    "attainable": _attainable,
    "p_value": _p_value,
    "modulo": _modulo,
    "binomial": lambda n, k: exact(math.comb(int(n.value), int(k.value))),
    "column": lambda table, name: table.column(name),
}

_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Fraction, Fraction], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
}


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """Compute an expression.

    Args:
        text: the expression.
        names: the tables and rows that it may refer to, by name.

    Raises:
        ValueError: it uses unsupported syntax or an unknown function.
        KeyError: a table, row or column does not exist.
    """
    bracketed = f"({text})"  # allows line breaks
    return _Evaluator(bracketed, names).visit(ast.parse(bracketed, mode="eval").body)


class _Evaluator(ast.NodeVisitor):
    def __init__(self, text: str, names: Mapping[str, Any]) -> None:
        self._text, self._names = text, names

    def visit_Constant(self, node: ast.Constant) -> RoundedNumber:
        return printed(node.value if isinstance(node.value, str) else ast.get_source_segment(self._text, node) or "")

    def visit_Name(self, node: ast.Name) -> Any:
        return self._names[node.id]

    def visit_List(self, node: ast.List) -> list[Any]:
        return [self.visit(element) for element in node.elts]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.visit(node.operand)
        return -value if isinstance(node.op, ast.USub) else value

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        return _spread(_ARITHMETIC[type(node.op)], self.visit(node.left), self.visit(node.right))

    def visit_Compare(self, node: ast.Compare) -> Any:
        compare = _COMPARISONS[type(node.ops[0])]
        return _spread(lambda a, b: compare(a.value, b.value), self.visit(node.left), self.visit(node.comparators[0]))

    def visit_Call(self, node: ast.Call) -> Any:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            raise ValueError(f"{self._text!r} calls an unknown function; use one of {', '.join(FUNCTIONS)}")
        keys = [
            arg.value if isinstance(arg, ast.Constant) and node.func.id == "column" else self.visit(arg)
            for arg in node.args
        ]
        return FUNCTIONS[node.func.id](*keys)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        value = self.visit(node.value)
        if isinstance(node.slice, ast.Slice):
            return value[slice(*(part and ast.literal_eval(part) for part in (node.slice.lower, node.slice.upper)))]
        key = ast.literal_eval(node.slice)
        return value.rows[key] if isinstance(value, Table) else value[key]

    def generic_visit(self, node: ast.AST) -> Any:
        raise ValueError(f"{self._text!r} contains a {type(node).__name__}, which expressions do not support")


def _spread(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Apply an operation to two numbers or elementwise to lists; a single number is paired with each element."""
    if not isinstance(left, list) and not isinstance(right, list):
        return operation(left, right)
    size = len(left) if isinstance(left, list) else len(right)
    lefts = left if isinstance(left, list) else [left] * size
    rights = right if isinstance(right, list) else [right] * size
    return [operation(a, b) for a, b in zip(lefts, rights, strict=True)]
