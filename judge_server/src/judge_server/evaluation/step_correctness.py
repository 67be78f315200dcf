"""Is each step of a solution correct, given the problem, its answer and the steps before? (SRaR, appendix 7.5)

The question is put to a judge as a binary criterion about one step: the steps before stand in the conversation.
"""

from collections.abc import Sequence
from typing import Any

from trainer_client.steps import split_steps

STEP_CRITERION = {
    "id": "correct",
    "description": (
        "This one step of a solution is correct: its operations, its calculations and its deductions hold. The steps "
        "before it are taken as correct, and it need not reach the final answer."
    ),
}
"""What is asked of a step: the paper's three questions, in our words."""


def step_groups(
    prompt: str | Sequence[Any], text: str, *, ground_truth: str | None, reference_answer: str | None = None
) -> list[dict[str, Any]]:
    """Give a group of one response for each parsed step of a solution, in order; none where it has no step headers.

    Args:
        prompt: the problem, a text or messages.
        text: the solution.
        ground_truth, reference_answer: shown to the judge, where they are known.
    """
    asked: list[Any] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    known = {"ground_truth": ground_truth, "reference_answer": reference_answer}
    shown = {name: value for name, value in known.items() if value is not None}
    groups = []
    before = ""
    for step in split_steps(text):
        done = [{"role": "assistant", "content": before.strip()}] if before.strip() else []
        current = text[step.start : step.end].strip()
        groups.append({"id": f"step-{step.number}", "prompt": [*asked, *done], "responses": [current], **shown})
        before += f"{current}\n"
    return groups
