"""Plan the checks of a group: which criteria programs verify, and what each check reads of a response. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from judge_server.judging.presentation import steps_of
from judge_server.judging.prompts.disguises import undisguised
from judge_server.judging.questions import PreparedConfig
from judge_server.judging.shown import GroupContext
from judge_server.verifiers import Check, ToolUse, stated_answer, step_to_search, tool_uses
from trainer_client.final_answer import extract_final_answer
from trainer_client.steps import Step, split_steps
from trainer_client.text.thinking import JudgedContent, without_tags
from trainer_client.wire import Criterion, Verification
from trainer_client.wire.criteria import (
    ContainsVerification,
    ExactVerification,
    JudgeVerification,
    MathVerification,
    RegexVerification,
    ToolCallVerification,
    TurnsVerification,
)
from trainer_client.wire.judging import StepRule

BY_MATH = MathVerification(method="math")


class GroupChecks:
    """Plans the checks of the responses to one prompt. What they share is read once.

    Args:
        prepared: the judging configuration, made ready.
        context: the material of the group, with its ground truth.
        criteria: all criteria of the rubric.
        rule: what the steps of a response are.

    Attributes:
        programs: the verification of each criterion; None if the judge is asked.
        verified: the criteria that programs verify, each with its verification.
    """

    def __init__(
        self, prepared: PreparedConfig, context: GroupContext, criteria: Sequence[Criterion], rule: StepRule
    ) -> None:
        self.programs = [verification_of(prepared, criterion, context) for criterion in criteria]
        self.verified = [
            (c, program) for c, program in zip(criteria, self.programs, strict=True) if program is not None
        ]
        self._searches_steps = any(step_to_search(program) is not None for _, program in self.verified)
        self._truth = context.ground_truth
        self._true_answer = stated_answer(self._truth) if self.verified and self._truth is not None else None
        self._rule = rule
        self._stepwise = prepared.config.protocol == "stepwise"
        self._program_digests: dict[tuple[str, bool], bytes] = {}

    def steps(self, judged: JudgedContent) -> tuple[Step, ...]:
        """Return the steps of a response; none if neither the judge nor a program asks for them."""
        return steps_of(judged, self._rule) if self._stepwise or self._searches_steps else ()

    def planned(
        self, judged: JudgedContent, final_answer: str | None, steps: tuple[Step, ...], turns: Sequence[Step]
    ) -> Iterator[tuple[str, int | None, bytes, Check]]:
        """Yield each check of a response: the criterion's id, the turn that it is about or None, its digest, itself."""
        subjects: dict[str, bytes] = {}
        for criterion, program in self.verified:
            whole = self._whole(criterion, program, judged, final_answer, steps)
            for turn, check in self._of_turns(whole, judged, turns_for(criterion, turns)):
                key = criterion.id, check.names_step
                if key not in self._program_digests:
                    self._program_digests[key] = check.program_digest()
                yield criterion.id, turn, check.digest_with(self._program_digests[key], subjects), check

    def _whole(
        self,
        criterion: Criterion,
        program: Verification,
        judged: JudgedContent,
        final_answer: str | None,
        steps: tuple[Step, ...],
    ) -> Check:
        """Return the check of a whole response."""
        uses: tuple[ToolUse, ...] = ()
        names_step = self._stepwise
        if isinstance(program, ToolCallVerification):
            uses = () if judged.messages is None else tool_uses(judged.messages, judged.turns)
            names_step = self._stepwise and self._rule == "turns"
        return Check(
            program,
            judged.text,
            final_answer,
            self._truth,
            steps,
            names_step=names_step,
            true_answer=self._true_answer,
            uses=uses,
            turns=len(judged.turns),
            avoided=criterion.avoided,
        )

    def _of_turns(
        self, whole: Check, judged: JudgedContent, turns: Sequence[Step]
    ) -> Iterator[tuple[int | None, Check]]:
        """Yield the check of a response, or one for each of these turns of it, with its number."""
        if not turns:
            yield None, self._with_further_readings(whole, "\n\n".join(filter(None, judged.said)))
        for number, start, end in turns:
            text = judged.text[start:end]
            about = replace(
                whole,
                text=text,
                final_answer=extract_final_answer(text),
                steps=(),
                names_step=False,
                uses=tuple([use for use in whole.uses if use.turn == number]),
            )
            yield number, self._with_further_readings(about, judged.said[number - 1] if judged.said else "")

    def _with_further_readings(self, check: Check, said: str) -> Check:
        """Return a check that decides against a response by its other readings too; other checks stay the same.

        These readings are what the response `said` together with its hidden text, and both of them without disguises
        and tags.
        """
        program = check.program
        if isinstance(program, ToolCallVerification | TurnsVerification) or not (check.avoided or forbids(program)):
            return check
        texts = [check.text, said] if said else [check.text]
        further: dict[str, Verification] = {}
        if (plain := undisguised_program(program)) is not None:
            for text in texts:
                further |= {undisguised(text): plain, undisguised(without_tags(text)): plain}
        readings = [(of, text) for text, of in further.items() if text not in texts or plain != program]
        readings += [(program, said)] if said else []
        beside = [self._reading(check, of, text) for of, text in readings if text != check.text]
        return replace(check, beside=tuple(beside)) if beside else check

    def _reading(self, check: Check, program: Verification, text: str) -> Check:
        steps = tuple(split_steps(text)) if self._searches_steps else ()
        return replace(check, verification=program, text=text, final_answer=extract_final_answer(text), steps=steps)


def turns_for(criterion: Criterion, turns: Sequence[Step]) -> Sequence[Step]:
    """Return the turns that a criterion is about one by one; empty if it is about the whole response."""
    if criterion.applies_to == "trajectory" or not turns:
        return ()
    return turns[-1:] if criterion.applies_to == "last_turn" else turns


def forbids(program: Verification) -> bool:
    """Whether a program is satisfied by what a text lacks: by a regular expression with a negative lookaround."""
    return isinstance(program, RegexVerification) and ("(?!" in program.pattern or "(?<!" in program.pattern)


def undisguised_program(program: Verification) -> Verification | None:
    """Return a verification whose expected texts are without disguises too; None if nothing is left of one of them."""
    if isinstance(program, ContainsVerification):
        all_of, any_of = tuple(map(undisguised, program.all_of)), tuple(map(undisguised, program.any_of))
        if not all((*all_of, *any_of)):
            return None
        return program.model_copy(update={"all_of": all_of, "any_of": any_of})
    if isinstance(program, ExactVerification) and program.expected is not None:
        return program.model_copy(update={"expected": undisguised(program.expected)})
    return program


def verification_of(prepared: PreparedConfig, criterion: Criterion, context: GroupContext) -> Verification | None:
    """Return the verification of a criterion by a program; None if the judge is asked.

    A criterion of kind `answer` that names no verification is compared with the ground truth, if there is one, because
    SRaR verifies the answer by the outcome.
    """
    if prepared.config.protocol == "likert" or isinstance(criterion.verification, JudgeVerification):
        return None
    if criterion.verification is None and criterion.kind == "answer" and context.ground_truth:
        return BY_MATH
    return criterion.verification
