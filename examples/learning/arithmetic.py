r"""The task: chains of small operations, and solutions to them with the mistakes people make.

A solution says what each step computes and puts the last result in a box; a mistake carries on into later steps.
How solutions are judged is not known here.

    (3+4)*2-5=?
    ### Step 1: 3+4=7
    ### Step 2: 7*2=14
    ### Step 3: 14-5=9
    \boxed{9}
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple, get_args

import numpy as np

SIGNS = ("+", "-", "*")
OPERANDS = range(2, 10)
HIGHEST = 49
CARRY = 4

Mistake = Literal["carry", "slip", "operator", "operand", "skip", "copy", "box"]
"""`carry`: a carry is forgotten, so the result is off by ten. `slip`: it is off by one. `operator`, `operand`: another
one than asked for is used. `skip`: the next operation is done in its place. `copy`: the number before is copied
wrongly, and the result is right all the same, so that no final answer tells. `box`: another number than the last result
is put in the box."""

MISTAKES: tuple[Mistake, ...] = get_args(Mistake)


class Operation(NamedTuple):
    """What a step does to the number before it."""

    sign: str
    operand: int

    def of(self, value: int) -> int:
        """Compute the result."""
        return {"+": value + self.operand, "-": value - self.operand, "*": value * self.operand}[self.sign]

    def line(self, value: int, result: int | None = None) -> str:
        """Write the step down, with the right result unless another is given."""
        return f"{value}{self.sign}{self.operand}={self.of(value) if result is None else result}"


class Line(NamedTuple):
    """What a step says, the number it goes on with, and how many of the problem's operations are done by it."""

    text: str
    value: int
    done: int = 1


@dataclass(frozen=True)
class Problem:
    """A number, and the operations to do on it, one a step."""

    start: int
    operations: tuple[Operation, ...]

    @cached_property
    def values(self) -> list[int]:
        """The number to start with, and the right result of every step."""
        return _results(self.start, self.operations)

    @cached_property
    def lines(self) -> list[str]:
        """What the right steps say."""
        return [operation.line(value) for value, operation in zip(self.values, self.operations, strict=False)]

    @property
    def answer(self) -> str:
        """The right final answer."""
        return str(self.values[-1])

    @cached_property
    def prompt(self) -> str:
        """The question as the policy reads it."""
        text, sign_before = str(self.start), "*"
        for sign, operand in self.operations:
            text = f"({text})" if sign == "*" and sign_before != "*" else text
            text, sign_before = f"{text}{sign}{operand}", sign
        return f"{text}=?\n"


def problems(seed: int, count: int, *, steps: int = 3) -> list[Problem]:
    """Draw problems whose results stay in 0..99, and in which no operand comes twice in a row."""
    rng = np.random.default_rng(seed)
    drawn: list[Problem] = []
    while len(drawn) < count:
        numbers = rng.choice(OPERANDS, (count, steps + 1)).tolist()
        signs = rng.choice(SIGNS, (count, steps)).tolist()
        for (start, *operands), row in zip(numbers, signs, strict=True):
            problem = Problem(start, tuple([Operation(*pair) for pair in zip(row, operands, strict=True)]))
            if _in_range(problem.values) and all(one != other for one, other in pairwise(operands)):
                drawn.append(problem)
    return drawn[:count]


def solution(
    problem: Problem,
    rng: np.random.Generator,
    mistake_rate: float = 0.0,
    *,
    mistakes: Mapping[int, Mistake] | None = None,
) -> str:
    """Write a solution in which each step, and then the box, goes wrong with the probability `mistake_rate`.

    `mistakes` says instead which are made where: by the number of the step, n + 1 for the box.

    Raises:
        ValueError: a mistake cannot be made there.
    """
    before = value = problem.start
    done, steps = 0, []
    while done < len(problem.operations):
        operation, *rest = problem.operations[done:]
        ways = _wrong_lines(before, value, operation, rest)
        line = _chosen(len(steps) + 1, ways, rng, mistake_rate, mistakes) or Line(
            operation.line(value), operation.of(value)
        )
        before, value, done = value, line.value, done + line.done
        steps.append(f"### Step {len(steps) + 1}: {line.text}\n")
    ways = {"box": [Line(str(wrong), wrong) for wrong in miscopies(before, value)]}
    box = _chosen(len(problem.operations) + 1, ways, rng, mistake_rate, mistakes) or Line(str(value), value)
    return f"{''.join(steps)}\\boxed{{{box.text}}}"


def forgotten_carry(value: int, operation: Operation) -> list[int]:
    """What comes out of a step that takes a carry when that is forgotten; nothing where it takes none."""
    right, units = operation.of(value), Operation(operation.sign, operation.operand).of(value % 10)
    off = {"+": -10, "-": 10, "*": -10 * (units // 10)}[operation.sign]
    carries = value >= 10 and not 0 <= units <= 9 if operation.sign != "+" else units > 9
    return [right + off] if carries else []


def slips(result: int) -> list[int]:
    """What may come out instead of a result that is off by one."""
    return [wrong for wrong in (result - 1, result + 1) if _in_range([wrong])]


def miscopies(before: int, value: int) -> list[int]:
    """What a number may be copied as: its digits turned round, the number before it, or ten more."""
    candidates = (int(str(value)[::-1]), before, (value + 10) % (HIGHEST + 1))
    return [wrong for wrong in dict.fromkeys(candidates) if wrong != value]


def _results(start: int, operations: Iterable[Operation]) -> list[int]:
    return list(accumulate(operations, lambda value, operation: operation.of(value), initial=start))


def _in_range(values: Iterable[int]) -> bool:
    return all(0 <= value <= HIGHEST for value in values)


def _wrong_lines(before: int, value: int, operation: Operation, rest: Sequence[Operation]) -> dict[Mistake, list[Line]]:
    """Every way to get a step wrong, by the mistake; none from which right steps would leave 0..99."""
    right = operation.of(value)
    others = [Operation(operation.sign, operand) for operand in OPERANDS if operand != operation.operand]
    signs = [Operation(sign, operation.operand) for sign in SIGNS if sign != operation.sign]
    ways: dict[Mistake, list[Line]] = {
        "carry": [Line(operation.line(value, wrong), wrong) for wrong in forgotten_carry(value, operation)],
        "slip": [Line(operation.line(value, wrong), wrong) for wrong in slips(right)],
        "operator": [Line(other.line(value), other.of(value)) for other in signs],
        "operand": [Line(other.line(value), other.of(value)) for other in others],
        "skip": [Line(following.line(value), following.of(value), done=2) for following in rest[:1]],
        "copy": [Line(operation.line(wrong, right), right) for wrong in miscopies(before, value)],
    }
    return {
        mistake: [line for line in lines if _in_range(_results(line.value, rest[line.done - 1 :]))]
        for mistake, lines in ways.items()
    }


def _chosen(
    step: int,
    ways: Mapping[Mistake, Sequence[Line]],
    rng: np.random.Generator,
    mistake_rate: float,
    mistakes: Mapping[int, Mistake] | None,
) -> Line | None:
    """One of the ways to go wrong at a step, or None to do it right."""
    if mistakes is None:
        possible = [mistake for mistake, lines in ways.items() if lines] if rng.random() < mistake_rate else []
        if ways.get("carry") and rng.random() < CARRY * mistake_rate:
            possible = ["carry"]
        chosen = possible[int(rng.integers(len(possible)))] if possible else None
    else:
        chosen = mistakes.get(step)
    if chosen is None:
        return None
    lines = ways.get(chosen, ())
    if not lines:
        raise ValueError(f"no {chosen} can be made at {step} here; choose another mistake or place")
    return lines[int(rng.integers(len(lines)))]
