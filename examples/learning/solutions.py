r"""Solutions to problems, with the mistakes and the habits that people have.

A solution says what each step computes and puts the last result in a box; a mistake carries on into later steps.
How solutions are judged is not known here.

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
"""How much more often a carry is forgotten than anything else goes wrong."""

GUESS_RATE = 0.98
"""How often the sign that nobody has explained is taken for another one."""

Mistake = Literal["guess", "carry", "slip", "operator", "operand", "skip", "copy", "box"]
"""`guess`: the sign that nobody has explained is taken for another. `carry`: a carry is forgotten, so the result is off
by ten. `slip`: it is off by one. `operator`, `operand`: another one than asked for is used. `skip`: the next operation
is done in its place. `copy`: the number before is copied wrongly, and the result is right all the same, so that no
final answer tells. `box`: another number than the last result is put in the box."""

MISTAKES: tuple[Mistake, ...] = get_args(Mistake)

Ending = Literal["box", "repeated", "unanswered"]
"""How a solution ends: the result in a box, said again before that (never wrongly), or said again and no box."""


class SolutionLine(NamedTuple):
    """What a step says, the number it goes on with, and how many of the problem's operations are done by it."""

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
    """Write a solution in which each step, and then the box, goes wrong with the probability `mistake_rate`.

    Where a carry is to be taken, it is forgotten `CARRY_FACTOR` times as often as that. The unexplained sign is
    guessed.

    Args:
        problem: what is solved.
        rng: decides what goes wrong.
        mistake_rate: see above; 0 also for guesses.
        unanswered: how often the last result is said again, and no box follows; as often one does.
        told: steps whose lines the writer was given, and copies.
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
    """Write a solution with these mistakes, each at the number of its step; the box comes after step n, at n + 1.

    Raises:
        ValueError: a mistake cannot be made there.
    """

    def choose(step: int, possible: Sequence[Mistake]) -> Mistake | None:
        mistake = mistakes.get(step)
        if mistake not in (None, *possible):
            raise ValueError(f"no {mistake} at {step}; {', '.join(possible) or 'nothing'} can be made there")
        return mistake

    return _write_solution(problem, rng, choose)


def possible_mistakes(problem: ArithmeticProblem, step: int) -> list[Mistake]:
    """What can go wrong at a step, or in the box at n + 1, if all before is right."""
    if step == len(problem.values):
        return ["box"]
    before, value = [problem.start, *problem.values][step - 1 : step + 1]
    operation, *rest = problem.operations[step - 1 :]
    return [mistake for mistake, lines in _wrong_lines(before, value, operation, rest).items() if lines]


def forgotten_carry(value: int, operation: ArithmeticOperation) -> list[int]:
    """What comes out of a step when its carry is forgotten; nothing where it takes none."""
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
    """What may come out instead of a result that is off by one."""
    return [wrong for wrong in (result - 1, result + 1) if in_range([wrong])]


def miscopies(before: int, value: int) -> list[int]:
    """What a number may be copied as: its digits turned round, the number before it, or ten more."""
    candidates = (int(str(value)[::-1]), before, (value + 10) % (MAX_RESULT + 1))
    return [wrong for wrong in dict.fromkeys(candidates) if wrong != value]


def guesses(value: int, operation: ArithmeticOperation) -> list[int]:
    """What the unexplained sign is taken to do: what another one does, or nothing; nothing for another sign."""
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
    """Every way to get a step wrong, by the mistake; none from which right steps would leave 0..49."""
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
