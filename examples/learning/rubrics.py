"""Rubrics whose criteria programs verify, so that judging is exact, and functions that evaluate responses directly.

The service judges by the rubrics; the functions are for evaluation.
"""

from typing import Any

from examples.learning.arithmetic import OPERATORS, ArithmeticProblem
from examples.learning.solutions import Mistake, forgotten_carry, guesses, miscopies, slips

from trainer_client.final_answer import extract_final_answer
from trainer_client.steps import split_steps


def rubric(problem: ArithmeticProblem) -> dict[str, Any]:
    """Create the step-wise rubric, verified by programs: the right line of each step, and the mistakes in it.

    `other-k` depends only on the operation, so it also detects mistakes after earlier ones; `slip-k`, `copy-k` and
    `box` detect mistakes only if the numbers before are right.
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
    """Create the rubric for weighted modes: the right line of each step, and the answer, with half of all weight."""
    steps = [
        _criterion(f"right-{k}", "process", f"Step {k} is {line}.", step=k, all_of=[f": {line}\n"])
        for k, line in enumerate(problem.lines, 1)
    ]
    return {"criteria": [*steps, _answer(problem, "factual") | {"weight": len(steps)}]}


def format_rubric(problem: ArithmeticProblem) -> dict[str, Any]:
    """Create the rubric for gates: the format of any final answer, right or wrong; the same for every problem."""
    where = {"method": "contains", "all_of": ["\\boxed{"]}
    return {"criteria": [{"id": "boxed", "description": "The answer is in a box.", "verification": where}]}


def twelve_rubric(problem: ArithmeticProblem) -> dict[str, Any]:
    """Create a rubric of twelve criteria of weight 1: four to learn, and eight that teach nothing.

    Responses meet four of these from the beginning and two never, since the policy cannot write the sign. The last two
    contradict each other.
    """
    learnt = [
        _criterion(f"right-{k}", "process", f"Step {k} is {line}.", all_of=[f": {line}\n"])
        for k, line in enumerate(problem.lines, 1)
        if k > 1
    ]
    shown = {"step-2": "### Step 2: ", "step-3": "### Step 3: ", "step-4": "### Step 4: ", "box": "\\boxed{"}
    met = [_criterion(name, "process", f"It has {text!r}.", all_of=[text]) for name, text in shown.items()]
    never = [_criterion(f"sign-{k}", "process", "It ends with a sign.", all_of=["∎" * k]) for k in (1, 2)]
    parity = {"even": "[02468]", "odd": "[13579]"}
    opposed = [
        {
            "id": name,
            "kind": "process",
            "description": f"The number in the box is {name}.",
            "verification": {"method": "regex", "pattern": rf"\\boxed\{{-?\d*{digits}\}}"},
        }
        for name, digits in parity.items()
    ]
    return {"criteria": [*learnt, _answer(problem, "process"), *met, *never, *opposed]}


def asked_rubric(problem: ArithmeticProblem) -> dict[str, Any]:
    """Create `twelve_rubric` so that a judge is asked about the eight criteria that teach nothing."""
    criteria = twelve_rubric(problem)["criteria"]
    learnt, others = criteria[:4], criteria[4:]
    return {"criteria": [*learnt, *({k: v for k, v in one.items() if k != "verification"} for one in others)]}


def pitfall_id(mistake: Mistake, step: int) -> str:
    """Return the id of the criterion of `rubric` that detects a mistake, if the steps before are right."""
    ids = {
        "box": "box",
        "copy": f"copy-{step}",
        "guess": f"slip-{step}",
        "carry": f"slip-{step}",
        "slip": f"slip-{step}",
    }
    return ids.get(mistake, f"other-{step}")


def right_steps(problem: ArithmeticProblem, response: str) -> list[bool]:
    """Return for each step of a problem whether a response has it right."""
    text_by_step = {step.number: response[step.start : step.end] for step in split_steps(response)}
    return [text_by_step.get(k, "").startswith(f"### Step {k}: {line}\n") for k, line in enumerate(problem.lines, 1)]


def step_accuracy(problem: ArithmeticProblem, response: str) -> float:
    """Return the share of a problem's steps that a response has right."""
    right = right_steps(problem, response)
    return sum(right) / len(right)


def answer_is_right(problem: ArithmeticProblem, response: str) -> bool:
    """Whether a response's final answer is right."""
    return extract_final_answer(response) == problem.answer


def _criterion(id_: str, kind: str, description: str, **where: Any) -> dict[str, Any]:
    verification = {"method": "contains", "case_sensitive": True, **where}
    return {"id": id_, "kind": kind, "description": description, "verification": verification}


def _answer(problem: ArithmeticProblem, kind: str) -> dict[str, Any]:
    verification = {"method": "exact", "expected": problem.answer}
    return {"id": "answer", "kind": kind, "description": "The answer is right.", "verification": verification}
