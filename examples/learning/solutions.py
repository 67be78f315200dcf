r"""Solutions to problems, with typical mistakes and habits.

A solution shows the computation of each step and puts the last result in a box. A mistake carries over into later
steps.

    (3+4)*2-5=?
    ### Step 1: 3+4=7
    ### Step 2: 7*2=14
    ### Step 3: 14-5=9
    \boxed{9}
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple, get_args

import numpy as np
from examples.learning.arithmetic import (
    MAX_RESULT,
    OPERANDS,
    OPERATORS,
    UNEXPLAINED_OPERATOR,
    ArithmeticOperation,
    ArithmeticProblem,
    in_range,
    results,
)

CARRY_FACTOR = 4
"""The ratio of the rate of forgotten carries to that of other mistakes."""

GUESS_RATE = 0.98
"""The probability that the unexplained operator is taken for another one."""

Mistake = Literal["guess", "carry", "slip", "operator", "operand", "skip", "copy", "box"]
"""The kinds of mistakes.

`guess`: the unexplained operator is taken for another one. `carry`: a carry is forgotten, so the result is off by ten.
`slip`: the result is off by one. `operator`, `operand`: another operator or operand is used. `skip`: the next operation
is done instead. `copy`: the number before is copied wrongly, but the result is right, so the final answer does not
show it. `box`: another number than the last result is put in the box.
"""

MISTAKES: tuple[Mistake, ...] = get_args(Mistake)

Ending = Literal["box", "repeated", "unanswered"]
"""How a solution ends: with a box, with the result repeated before a box (never wrongly), or repeated without a box."""


class SolutionLine(NamedTuple):
    """The text of a step, its result, and the number of the problem's operations that it does."""

    text: str
    value: int
    done: int = 1


def solution(
    problem: ArithmeticProblem,
    rng: np.random.Generator,
    mistake_rate: float = 0.0,
    *,
    unanswered: float = 0.0,
    given_steps: AbstractSet[int] = frozenset(),
) -> str:
    """Write a solution in which each step and the box are wrong with probability `mistake_rate`.

    A carry is forgotten `CARRY_FACTOR` times as often. The unexplained operator is guessed with `GUESS_RATE`.

    Args:
        problem: the problem to solve.
        rng: the source of randomness.
        mistake_rate: the probability of a mistake; with 0 nothing is guessed either.
        unanswered: the probability that the last result is repeated without a box, and also the probability that it
            is repeated with one.
        given_steps: numbers of steps whose right lines are given in the prompt and copied.
    """

    def choose(_: int, possible: Sequence[Mistake]) -> Mistake | None:
        among = possible if rng.random() < mistake_rate else ()
        if "carry" in possible and rng.random() < CARRY_FACTOR * mistake_rate:
            among = ("carry",)
        if "guess" in possible and mistake_rate and rng.random() < GUESS_RATE:
            among = ("guess",)
        return among[int(rng.integers(len(among)))] if among else None

    draw = rng.random() if unanswered else 1.0
    ending: Ending = "unanswered" if draw < unanswered else "repeated" if draw < 2 * unanswered else "box"
    return _write_solution(problem, rng, choose, ending, given_steps)


def solution_with(problem: ArithmeticProblem, rng: np.random.Generator, mistakes: Mapping[int, Mistake]) -> str:
    """Write a solution with these mistakes, by step number; the box is number n + 1 after n steps.

    Raises:
        ValueError: a mistake is not possible in its step.
    """

    def choose(step: int, possible: Sequence[Mistake]) -> Mistake | None:
        mistake = mistakes.get(step)
        if mistake not in (None, *possible):
            raise ValueError(
                f"step {step} cannot have the mistake {mistake!r}; possible are: {', '.join(possible) or 'none'}"
            )
        return mistake

    return _write_solution(problem, rng, choose)


def possible_mistakes(problem: ArithmeticProblem, step: int) -> list[Mistake]:
    """Return the possible mistakes in a step, or in the box at n + 1, if all steps before are right."""
    if step == len(problem.values):
        return ["box"]
    before, value = [problem.start, *problem.values][step - 1 : step + 1]
    operation, *rest = problem.operations[step - 1 :]
    return [mistake for mistake, lines in _wrong_lines(before, value, operation, rest).items() if lines]


def forgotten_carry(value: int, operation: ArithmeticOperation) -> list[int]:
    """Return the result of a step with a forgotten carry; empty if the step has no carry."""
    units, operand = value % 10, operation.operand
    match operation.operator:
        case "+":
            off = -10 if units + operand > 9 else 0
        case "-":
            off = 10 if units < operand and value > 9 else 0
        case "*":
            off = -10 * (units * operand // 10) if value > 9 else 0
        case _:
            off = 0
    return [operation.of(value) + off] if off else []


def slips(result: int) -> list[int]:
    """Return the results that are off by one."""
    return [wrong for wrong in (result - 1, result + 1) if in_range([wrong])]


def miscopies(before: int, value: int) -> list[int]:
    """Return the wrong copies of a number: its digits reversed, the number before it, or ten more."""
    candidates = (int(str(value)[::-1]), before, (value + 10) % (MAX_RESULT + 1))
    return [wrong for wrong in dict.fromkeys(candidates) if wrong != value]


def guesses(value: int, operation: ArithmeticOperation) -> list[int]:
    """Return the wrong results of guessing the unexplained operator; empty for other operators."""
    if operation.operator != UNEXPLAINED_OPERATOR:
        return []
    taken_for = [ArithmeticOperation(operator, operation.operand).of(value) for operator in OPERATORS]
    return [wrong for wrong in (*taken_for, value) if in_range([wrong]) and wrong != operation.of(value)]


def _write_solution(
    problem: ArithmeticProblem,
    rng: np.random.Generator,
    choose: Callable[[int, Sequence[Mistake]], Mistake | None],
    ending: Ending = "box",
    given_steps: AbstractSet[int] = frozenset(),
) -> str:
    def line(step: int, right: SolutionLine, wrong_lines: Mapping[Mistake, Sequence[SolutionLine]]) -> SolutionLine:
        mistake = choose(step, [mistake for mistake, lines in wrong_lines.items() if lines])
        return right if mistake is None else wrong_lines[mistake][int(rng.integers(len(wrong_lines[mistake])))]

    before = value = problem.start
    done, steps = 0, []
    while done < len(problem.operations):
        operation, *rest = problem.operations[done:]
        step = len(steps) + 1
        if step in given_steps:
            solution_line = SolutionLine(problem.lines[step - 1], problem.values[step], step - done)
        else:
            right = SolutionLine(operation.line(value), operation.of(value))
            solution_line = line(step, right, _wrong_lines(before, value, operation, rest))
        before, value, done = value, solution_line.value, done + solution_line.done
        steps.append(f"### Step {step}: {solution_line.text}\n")
    if ending != "box":
        return f"{''.join(steps)}={value}\n" + (f"\\boxed{{{value}}}" if ending == "repeated" else "")
    wrong_boxes = [SolutionLine(str(wrong), wrong) for wrong in miscopies(before, value)]
    box = line(len(problem.operations) + 1, SolutionLine(str(value), value), {"box": wrong_boxes})
    return f"{''.join(steps)}\\boxed{{{box.text}}}"


def _wrong_lines(
    before: int, value: int, operation: ArithmeticOperation, rest: Sequence[ArithmeticOperation]
) -> dict[Mistake, list[SolutionLine]]:
    """Return all wrong lines of a step, by mistake, except those after which right steps would leave 0..49."""
    right = operation.of(value)
    operands = [
        ArithmeticOperation(operation.operator, operand) for operand in OPERANDS if operand != operation.operand
    ]
    signs = [
        ArithmeticOperation(operator, operation.operand) for operator in OPERATORS if operator != operation.operator
    ]
    wrong_lines: dict[Mistake, list[SolutionLine]] = {
        "guess": [SolutionLine(operation.line(value, wrong), wrong) for wrong in guesses(value, operation)],
        "carry": [SolutionLine(operation.line(value, wrong), wrong) for wrong in forgotten_carry(value, operation)],
        "slip": [SolutionLine(operation.line(value, wrong), wrong) for wrong in slips(right)],
        "operator": [SolutionLine(other.line(value), other.of(value)) for other in signs],
        "operand": [SolutionLine(other.line(value), other.of(value)) for other in operands],
        "skip": [SolutionLine(following.line(value), following.of(value), done=2) for following in rest[:1]],
        "copy": [SolutionLine(operation.line(wrong, right), right) for wrong in miscopies(before, value)],
    }
    return {
        mistake: [line for line in lines if in_range(results(line.value, rest[line.done - 1 :]))]
        for mistake, lines in wrong_lines.items()
    }
