"""How solutions are judged: rubrics whose criteria programs verify, so that the judge is exact, and the same by hand.

A service judges by the rubrics; the functions that look at a response themselves are for evaluation.
"""

from typing import Any

from examples.learning.arithmetic import OPERATORS, ArithmeticProblem
from examples.learning.solutions import Mistake, forgotten_carry, guesses, miscopies, slips

from trainer_client.final_answer import extract_final_answer
from trainer_client.steps import split_steps


def rubric(problem: ArithmeticProblem) -> dict[str, Any]:
    """Make the step-wise rubric, all verified by programs: what each step should say, and what goes wrong there.

    `other-k` is known from the operation alone, so it is found also after earlier mistakes; `slip-k`, `copy-k` and
    `box` are known only where the numbers before are right.
    """
    criteria = []
    before = [problem.start, *problem.values]
    for k, (line, operation) in enumerate(zip(problem.lines, problem.operations, strict=True), 1):
        value, right = problem.values[k - 1 : k + 1]
        operation_text = f"{operation.operator}{operation.operand}"
        others = [
            f"{operator}{operand}="
            for operator in OPERATORS
            for operand in range(10)
            if f"{operator}{operand}" != operation_text
        ]
        wrong_results = [*guesses(value, operation), *forgotten_carry(value, operation), *slips(right)]
        slipped = [f": {operation.line(value, wrong)}\n" for wrong in wrong_results]
        copied = [f": {operation.line(wrong, right)}\n" for wrong in miscopies(before[k - 1], value)]
        criteria += [
            _criterion(f"right-{k}", "suggest", f"Step {k} is {line}.", step=k, all_of=[f": {line}\n"]),
            _criterion(f"other-{k}", "pitfall", f"Step {k} does not do {operation_text}.", step=k, any_of=others),
            _criterion(f"slip-{k}", "pitfall", f"Step {k} miscalculates {line}.", step=k, any_of=slipped),
            _criterion(f"copy-{k}", "pitfall", f"Step {k} does not begin with {value}.", step=k, any_of=copied),
        ]
    last = len(problem.lines)
    boxed = [f": {problem.lines[-1]}\n\\boxed{{{wrong}}}" for wrong in miscopies(*problem.values[-2:])]
    criteria.append(_criterion("box", "pitfall", "Boxes another number than the result.", step=last, any_of=boxed))
    return {"criteria": [*criteria, _answer(problem, "answer")]}


def plain_rubric(problem: ArithmeticProblem) -> dict[str, Any]:
    """Make the rubric for the modes that weigh: what each step should say, and the answer, which weighs as much."""
    steps = [
        _criterion(f"right-{k}", "process", f"Step {k} is {line}.", step=k, all_of=[f": {line}\n"])
        for k, line in enumerate(problem.lines, 1)
    ]
    return {"criteria": [*steps, _answer(problem, "factual") | {"weight": len(steps)}]}


def format_rubric(problem: ArithmeticProblem) -> dict[str, Any]:
    """Make the rubric that gates: what any final answer must be, right or wrong; the same for every problem."""
    where = {"method": "contains", "all_of": ["\\boxed{"]}
    return {"criteria": [{"id": "boxed", "description": "The answer is in a box.", "verification": where}]}


def pitfall_id(mistake: Mistake, step: int) -> str:
    """Give the id of the criterion of `rubric` that finds a mistake, if nothing went wrong before it."""
    found = {
        "box": "box",
        "copy": f"copy-{step}",
        "guess": f"slip-{step}",
        "carry": f"slip-{step}",
        "slip": f"slip-{step}",
    }
    return found.get(mistake, f"other-{step}")


def right_steps(problem: ArithmeticProblem, response: str) -> list[bool]:
    """Say of each of the problem's steps whether a response has it as it should be."""
    text_by_step = {step.number: response[step.start : step.end] for step in split_steps(response)}
    return [text_by_step.get(k, "").startswith(f"### Step {k}: {line}\n") for k, line in enumerate(problem.lines, 1)]


def step_accuracy(problem: ArithmeticProblem, response: str) -> float:
    """Give the share of the problem's steps that a response has, each as it should be."""
    right = right_steps(problem, response)
    return sum(right) / len(right)


def answer_is_right(problem: ArithmeticProblem, response: str) -> bool:
    """Whether a response's final answer is the right one."""
    return extract_final_answer(response) == problem.answer


def _criterion(id_: str, kind: str, description: str, **where: Any) -> dict[str, Any]:
    verification = {"method": "contains", "case_sensitive": True, **where}
    return {"id": id_, "kind": kind, "description": description, "verification": verification}


def _answer(problem: ArithmeticProblem, kind: str) -> dict[str, Any]:
    verification = {"method": "exact", "expected": problem.answer}
    return {"id": "answer", "kind": kind, "description": "The answer is right.", "verification": verification}
