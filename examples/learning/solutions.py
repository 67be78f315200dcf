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
from examples.learning.arithmetic import HIGHEST, OPERANDS, SIGNS, UNEXPLAINED, Operation, Problem, in_range, results

CARRY = 4
"""How much more often a carry is forgotten than anything else goes wrong."""

GUESSED = 0.98
"""How often the sign that nobody has explained is taken for another one."""

Mistake = Literal["guess", "carry", "slip", "operator", "operand", "skip", "copy", "box"]
"""`guess`: the sign that nobody has explained is taken for another. `carry`: a carry is forgotten, so the result is off
by ten. `slip`: it is off by one. `operator`, `operand`: another one than asked for is used. `skip`: the next operation
is done in its place. `copy`: the number before is copied wrongly, and the result is right all the same, so that no
final answer tells. `box`: another number than the last result is put in the box."""

MISTAKES: tuple[Mistake, ...] = get_args(Mistake)

Ending = Literal["box", "repeated", "unanswered"]
"""How a solution ends: the result in a box, said again before that (never wrongly), or said again and no box."""


class Line(NamedTuple):
    """What a step says, the number it goes on with, and how many of the problem's operations are done by it."""

    text: str
    value: int
    done: int = 1


def solution(
    problem: Problem,
    rng: np.random.Generator,
    mistake_rate: float = 0.0,
    *,
    unanswered: float = 0.0,
    told: AbstractSet[int] = frozenset(),
) -> str:
    """Write a solution in which each step, and then the box, goes wrong with the probability `mistake_rate`.

    Where a carry is to be taken, it is forgotten `CARRY` times as often as that. The unexplained sign is guessed.

    Args:
        problem: what is solved.
        rng: decides what goes wrong.
        mistake_rate: see above; 0 also for guesses.
        unanswered: how often the last result is said again, and no box follows; as often one does.
        told: steps whose lines the writer was given, and copies.
    """

    def choose(_: int, possible: Sequence[Mistake]) -> Mistake | None:
        among = possible if rng.random() < mistake_rate else ()
        if "carry" in possible and rng.random() < CARRY * mistake_rate:
            among = ("carry",)
        if "guess" in possible and mistake_rate and rng.random() < GUESSED:
            among = ("guess",)
        return among[int(rng.integers(len(among)))] if among else None

    draw = rng.random() if unanswered else 1.0
    ending: Ending = "unanswered" if draw < unanswered else "repeated" if draw < 2 * unanswered else "box"
    return _write(problem, rng, choose, ending, told)


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
    candidates = (int(str(value)[::-1]), before, (value + 10) % (HIGHEST + 1))
    return [wrong for wrong in dict.fromkeys(candidates) if wrong != value]


def guesses(value: int, operation: Operation) -> list[int]:
    """What the unexplained sign is taken to do: what another one does, or nothing; nothing for another sign."""
    if operation.sign != UNEXPLAINED:
        return []
    taken_for = [Operation(sign, operation.operand).of(value) for sign in SIGNS]
    return [wrong for wrong in (*taken_for, value) if in_range([wrong]) and wrong != operation.of(value)]


def _write(
    problem: Problem,
    rng: np.random.Generator,
    choose: Callable[[int, Sequence[Mistake]], Mistake | None],
    ending: Ending = "box",
    told: AbstractSet[int] = frozenset(),
) -> str:
    def line(step: int, right: Line, ways: Mapping[Mistake, Sequence[Line]]) -> Line:
        mistake = choose(step, [mistake for mistake, lines in ways.items() if lines])
        return right if mistake is None else ways[mistake][int(rng.integers(len(ways[mistake])))]

    before = value = problem.start
    done, steps = 0, []
    while done < len(problem.operations):
        operation, *rest = problem.operations[done:]
        step = len(steps) + 1
        if step in told:
            said = Line(problem.lines[step - 1], problem.values[step], step - done)
        else:
            right = Line(operation.line(value), operation.of(value))
            said = line(step, right, _wrong_lines(before, value, operation, rest))
        before, value, done = value, said.value, done + said.done
        steps.append(f"### Step {step}: {said.text}\n")
    if ending != "box":
        return f"{''.join(steps)}={value}\n" + (f"\\boxed{{{value}}}" if ending == "repeated" else "")
    wrong_boxes = [Line(str(wrong), wrong) for wrong in miscopies(before, value)]
    box = line(len(problem.operations) + 1, Line(str(value), value), {"box": wrong_boxes})
    return f"{''.join(steps)}\\boxed{{{box.text}}}"


def _wrong_lines(before: int, value: int, operation: Operation, rest: Sequence[Operation]) -> dict[Mistake, list[Line]]:
    """Every way to get a step wrong, by the mistake; none from which right steps would leave 0..49."""
    right = operation.of(value)
    operands = [Operation(operation.sign, operand) for operand in OPERANDS if operand != operation.operand]
    signs = [Operation(sign, operation.operand) for sign in SIGNS if sign != operation.sign]
    ways: dict[Mistake, list[Line]] = {
        "guess": [Line(operation.line(value, wrong), wrong) for wrong in guesses(value, operation)],
        "carry": [Line(operation.line(value, wrong), wrong) for wrong in forgotten_carry(value, operation)],
        "slip": [Line(operation.line(value, wrong), wrong) for wrong in slips(right)],
        "operator": [Line(other.line(value), other.of(value)) for other in signs],
        "operand": [Line(other.line(value), other.of(value)) for other in operands],
        "skip": [Line(following.line(value), following.of(value), done=2) for following in rest[:1]],
        "copy": [Line(operation.line(wrong, right), right) for wrong in miscopies(before, value)],
    }
    return {
        mistake: [line for line in lines if in_range(results(line.value, rest[line.done - 1 :]))]
        for mistake, lines in ways.items()
    }
