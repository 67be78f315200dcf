"""Planning: (response, criterion) pairs become calls, each with its digest. Pure: nothing is asked here."""

from collections.abc import Sequence
from dataclasses import dataclass

from judge_server.judging.fingerprint import CallDigests
from judge_server.judging.protocols import make_call
from judge_server.ports import Batch
from judge_server.prompts import PromptTemplates
from trainer_client.steps import Step, extract_final_answer, split_steps
from trainer_client.wire import Criterion, Group, Protocol

FINAL_ANSWER_CHARACTERS = 400
"""How much of an extracted final answer is shown again beside the right one."""


@dataclass(frozen=True, slots=True)
class JudgeSetup:
    """Who judges: the protocol, its templates, and the fingerprint they give with the engine."""

    protocol: Protocol
    templates: PromptTemplates
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """One response's calls, in the order of its criteria, with their digests; `batch` holds them all."""

    batch: Batch
    digests: tuple[bytes, ...]
    steps: tuple[Step, ...]
    characters_omitted: int = 0


def plan_response(
    setup: JudgeSetup, group: Group, response: str, criteria: Sequence[Criterion], keep: int | None
) -> ResponsePlan:
    """Plan the calls about one response.

    Args:
        setup: the judge.
        group: the prompt, and what else the judge may see.
        response: the text to judge. Its steps are those of the whole text, whatever `keep` says.
        criteria: what to judge it by; shape (M,).
        keep: show the judge only this many characters, the first and the last half with the middle left out; None
            shows them all.
    """
    stepwise = setup.protocol == "stepwise"
    steps = tuple(split_steps(response)) if stepwise else ()
    show_final_answer = stepwise or group.ground_truth is not None
    final_answer = extract_final_answer(response) if show_final_answer else None
    if final_answer is not None:
        final_answer, _ = _without_middle(final_answer, FINAL_ANSWER_CHARACTERS)
    shown, omitted = _without_middle(response, keep)
    templates = setup.templates
    shared = templates.shared(group, shown, show_final_answer=show_final_answer, final_answer=final_answer)
    numbers = [step.number for step in steps]
    calls = tuple([make_call(setup.protocol, templates.question(c), numbers) for c in criteria])
    digests = CallDigests(setup.fingerprint, templates.system, shared)
    return ResponsePlan(Batch(templates.system, shared, calls), tuple([digests.of(c) for c in calls]), steps, omitted)


def _without_middle(text: str, keep: int | None) -> tuple[str, int]:
    if keep is None or len(text) <= keep:
        return text, 0
    omitted = len(text) - keep
    head = keep - keep // 2
    return f"{text[:head]}\n[{omitted} characters left out]\n{text[len(text) - keep // 2 :]}", omitted
