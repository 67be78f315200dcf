r"""The task: chains of small operations, and solutions to them with the mistakes people make.

A solution says what each step computes and puts the last result in a box; a mistake carries on into later steps.
How solutions are judged is not known here.

    (3+4)*2-5=?
    ### Step 1: 3+4=7
    ### Step 2: 7*2=14
    ### Step 3: 14-5=9
    \boxed{9}
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple, get_args

import numpy as np

SIGNS = ("+", "-", "*")
OPERANDS = range(2, 10)
HIGHEST = 49
"""No right result is larger, and no mistake leads beyond it."""

CARRY = 4
"""How much more often a carry is forgotten than anything else goes wrong."""

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
    """Draw problems whose results stay in 0..49, and in which no operand comes twice in a row."""
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


def solution(problem: Problem, rng: np.random.Generator, mistake_rate: float = 0.0) -> str:
    """Write a solution in which each step, and then the box, goes wrong with the probability `mistake_rate`.

    Where a carry is to be taken, it is forgotten `CARRY` times as often as that.
    """

    def choose(_: int, possible: Sequence[Mistake]) -> Mistake | None:
        among = possible if rng.random() < mistake_rate else ()
        if "carry" in possible and rng.random() < CARRY * mistake_rate:
            among = ("carry",)
        return among[int(rng.integers(len(among)))] if among else None

    return _write(problem, rng, choose)


def solution_with(problem: Problem, rng: np.random.Generator, mistakes: Mapping[int, Mistake]) -> str:
    """Write a solution with these mistakes, each at the number of its step; the box comes after step n, at n + 1.

    Raises:
        ValueError: a mistake cannot be made there.
    """

    def choose(step: int, possible: Sequence[Mistake]) -> Mistake | None:
        mistake = mistakes.get(step)
        if mistake not in (None, *possible):
            raise ValueError(f"no {mistake} at {step}; {', '.join(possible) or 'nothing'} can be made there")
        return mistake

    return _write(problem, rng, choose)


def possible_mistakes(problem: Problem, step: int) -> list[Mistake]:
    """What can go wrong at a step, or in the box at n + 1, if all before is right."""
    if step == len(problem.values):
        return ["box"]
    before, value = [problem.start, *problem.values][step - 1 : step + 1]
    operation, *rest = problem.operations[step - 1 :]
    return [mistake for mistake, lines in _wrong_lines(before, value, operation, rest).items() if lines]


def forgotten_carry(value: int, operation: Operation) -> list[int]:
    """What comes out of a step when its carry is forgotten; nothing where it takes none."""
    units, operand = value % 10, operation.operand
    match operation.sign:
        case "+":
            off = -10 if units + operand > 9 else 0
        case "-":
            off = 10 if units < operand and value > 9 else 0
        case _:
            off = -10 * (units * operand // 10) if value > 9 else 0
    return [operation.of(value) + off] if off else []


def slips(result: int) -> list[int]:
    """What may come out instead of a result that is off by one."""
    return [wrong for wrong in (result - 1, result + 1) if _in_range([wrong])]


def miscopies(before: int, value: int) -> list[int]:
    """What a number may be copied as: its digits turned round, the number before it, or ten more."""
    candidates = (int(str(value)[::-1]), before, (value + 10) % (HIGHEST + 1))
    return [wrong for wrong in dict.fromkeys(candidates) if wrong != value]


def _write(
    problem: Problem, rng: np.random.Generator, choose: Callable[[int, Sequence[Mistake]], Mistake | None]
) -> str:
    def line(step: int, right: Line, ways: Mapping[Mistake, Sequence[Line]]) -> Line:
        mistake = choose(step, [mistake for mistake, lines in ways.items() if lines])
        return right if mistake is None else ways[mistake][int(rng.integers(len(ways[mistake])))]

    before = value = problem.start
    done, steps = 0, []
    while done < len(problem.operations):
        operation, *rest = problem.operations[done:]
        right = Line(operation.line(value), operation.of(value))
        said = line(len(steps) + 1, right, _wrong_lines(before, value, operation, rest))
        before, value, done = value, said.value, done + said.done
        steps.append(f"### Step {len(steps) + 1}: {said.text}\n")
    wrong_boxes = [Line(str(wrong), wrong) for wrong in miscopies(before, value)]
    box = line(len(problem.operations) + 1, Line(str(value), value), {"box": wrong_boxes})
    return f"{''.join(steps)}\\boxed{{{box.text}}}"


def _wrong_lines(before: int, value: int, operation: Operation, rest: Sequence[Operation]) -> dict[Mistake, list[Line]]:
    """Every way to get a step wrong, by the mistake; none from which right steps would leave 0..49."""
    right = operation.of(value)
    operands = [Operation(operation.sign, operand) for operand in OPERANDS if operand != operation.operand]
    signs = [Operation(sign, operation.operand) for sign in SIGNS if sign != operation.sign]
    ways: dict[Mistake, list[Line]] = {
        "carry": [Line(operation.line(value, wrong), wrong) for wrong in forgotten_carry(value, operation)],
        "slip": [Line(operation.line(value, wrong), wrong) for wrong in slips(right)],
        "operator": [Line(other.line(value), other.of(value)) for other in signs],
        "operand": [Line(other.line(value), other.of(value)) for other in operands],
        "skip": [Line(following.line(value), following.of(value), done=2) for following in rest[:1]],
        "copy": [Line(operation.line(wrong, right), right) for wrong in miscopies(before, value)],
    }
    return {
        mistake: [line for line in lines if _in_range(_results(line.value, rest[line.done - 1 :]))]
        for mistake, lines in ways.items()
    }


def _results(start: int, operations: Iterable[Operation]) -> list[int]:
    return list(accumulate(operations, lambda value, operation: operation.of(value), initial=start))


def _in_range(values: Iterable[int]) -> bool:
    return all(0 <= value <= HIGHEST for value in values)
