"""The task: chains of small operations on a number, one of them with an unexplained operator.

`solutions` has the solutions and their mistakes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

OPERATORS = ("+", "-", "*")
UNEXPLAINED_OPERATOR = "@"
"""Adds the operand twice: `7@5=17`."""
OPERANDS = range(2, 10)
MAX_RESULT = 49
"""The largest result, right or wrong."""


class ArithmeticOperation(NamedTuple):
    """The operation of one step."""

    operator: str
    operand: int

    def of(self, value: int) -> int:
        """Compute the result for a value."""
        match self.operator:
            case "+":
                return value + self.operand
            case "-":
                return value - self.operand
            case "*":
                return value * self.operand
            case _:
                return value + 2 * self.operand

    def line(self, value: int, result: int | None = None) -> str:
        """Format the step, with the right result unless another is given."""
        return f"{value}{self.operator}{self.operand}={self.of(value) if result is None else result}"


@dataclass(frozen=True)
class ArithmeticProblem:
    """A start number and the operations to apply to it, one per step."""

    start: int
    operations: tuple[ArithmeticOperation, ...]

    @cached_property
    def values(self) -> list[int]:
        """The start number, and the right result of every step."""
        return results(self.start, self.operations)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the right steps."""
        return [operation.line(value) for value, operation in zip(self.values, self.operations, strict=False)]

    @property
    def answer(self) -> str:
        """The right final answer."""
        return str(self.values[-1])

    @cached_property
    def prompt(self) -> str:
        """The question as the policy reads it."""
        text, operator_before = str(self.start), "*"
        for operator, operand in self.operations:
            text = f"({text})" if operator == "*" and operator_before != "*" else text
            text, operator_before = f"{text}{operator}{operand}", operator
        return f"{text}=?\n"


def problems(seed: int, count: int, *, steps: int = 3, unexplained: int = 0) -> list[ArithmeticProblem]:
    """Draw problems whose results stay in 0..49 and whose consecutive operands differ.

    Args:
        seed: equal seeds draw equal problems.
        count: the number of problems.
        steps: the number of operations of a problem.
        unexplained: the number of operations of a problem with the unexplained operator.
    """
    rng = np.random.default_rng(seed)
    drawn: list[ArithmeticProblem] = []
    while len(drawn) < count:
        numbers = rng.choice(OPERANDS, (count, steps + 1)).tolist()
        signs = rng.choice(OPERATORS, (count, steps))
        if unexplained:
            places = rng.permuted(np.tile(np.arange(steps), (count, 1)), axis=1)
            signs = np.where(places < unexplained, UNEXPLAINED_OPERATOR, signs)
        for (start, *operands), row in zip(numbers, signs.tolist(), strict=True):
            problem = ArithmeticProblem(
                start, tuple([ArithmeticOperation(*pair) for pair in zip(row, operands, strict=True)])
            )
            if in_range(problem.values) and all(one != other for one, other in pairwise(operands)):
                drawn.append(problem)
    return drawn[:count]


def results(start: int, operations: Iterable[ArithmeticOperation]) -> list[int]:
    """Return the start number and the result of each operation."""
    return list(accumulate(operations, lambda value, operation: operation.of(value), initial=start))


def in_range(values: Iterable[int]) -> bool:
    """Whether all values are in 0..49."""
    return all(0 <= value <= MAX_RESULT for value in values)
