"""Plans of comparisons: which of two responses to a prompt is better, shown in one order. Pure; nothing is asked here.

A judge may prefer whichever response comes first, so callers plan both orders of a pair.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from judge_server.judging.combining import CombinedConfig, combine_plans
from judge_server.judging.defences import has_content
from judge_server.judging.fingerprint import CallDigests
from judge_server.judging.plan import GroupContext, PlannedCall, ResponsePlan, VerdictSlot
from judge_server.judging.presentation import images_of, show_response
from judge_server.judging.questions import PreparedConfig, ask, option
from judge_server.ports import Batch, JudgeResult, TokenChoice
from judge_server.prompts.fencing import render_conversation
from trainer_client.text.thinking import JudgedContent
from trainer_client.wire import Criterion
from trainer_client.wire.judging import Defence

DEFAULT_QUESTION = "Which response is better?"
A_OR_B = TokenChoice((option("A"), option("B")))

_NO_CONTENT = {
    score: (hashlib.sha256(f"no content, compared: {score}".encode()).digest(), JudgeResult(score=score))
    for score in (0.0, 0.5, 1.0)
}
"""The outcomes of comparisons with a response that says nothing, by what the first response wins."""


class ShownResponse(NamedTuple):
    """A response as the judge is shown it, whether it says nothing, and its images."""

    text: str
    empty: bool
    images: tuple[str, ...] = ()


class PairPlanner:
    """Plans comparisons of responses to one prompt. What they share is built once.

    Args:
        prepared: the judging configuration of the protocol `comparison`, made ready.
        context: the prompt and the material of the group. The judge sees what its templates do not withhold.
        criteria: what counts; may be empty.
        question: what the judge is asked.
        defences: the defences in force. With `no_content`, a response that says nothing loses to one that says
            something, and ties with another that says nothing, without a call.
        group: the index of the group in its request.
    """

    def __init__(
        self,
        prepared: PreparedConfig,
        context: GroupContext,
        criteria: Sequence[Criterion],
        question: str = DEFAULT_QUESTION,
        *,
        defences: Sequence[Defence] = (),
        group: int = 0,
    ) -> None:
        members = prepared.members if isinstance(prepared, CombinedConfig) else ()
        self._members = [
            PairPlanner(own, context, criteria, question, defences=defences, group=group) for own in members
        ]
        self._prepared, self._defences, self._group = prepared, defences, group
        self._templates, withheld = prepared.single_templates, prepared.declaration.withholds
        self._right = {text.strip() for text in (context.ground_truth, context.reference_answer) if text is not None}
        self._shown = context.without(withheld)
        self._prompt = render_conversation(context.prompt, self._templates.fence)
        self._images = images_of(context.prompt)
        self._question = self._templates.comparison(() if "criteria" in withheld else criteria, question)

    def shown(self, judged: JudgedContent) -> ShownResponse:
        """Return a response in the form in which `plan` takes it."""
        says_nothing = judged.messages is None and not has_content(judged.text)
        empty = "no_content" in self._defences and says_nothing and judged.text.strip() not in self._right
        normalised = "normalise" in self._defences
        fence = self._templates.fence
        text, _ = show_response(judged, (), "headings", fence, normalised=normalised, keep=None)
        return ShownResponse(text, empty, images_of(judged.messages or ()))

    def plan(self, about: str, first: ShownResponse, second: ShownResponse) -> ResponsePlan:
        """Plan whether the first response is better; `about` is the id of the verdict, 1 meaning that it is."""
        if isinstance(self._prepared, CombinedConfig):
            return combine_plans(self._prepared, [member.plan(about, first, second) for member in self._members])
        templates = self._templates
        if first.empty or second.empty:
            digest, result = _NO_CONTENT[(1.0 + second.empty - first.empty) / 2]
            slot = VerdictSlot(about, "no_content", (digest,))
            return ResponsePlan((slot,), Batch("", "", ()), (), group=self._group, decided=((digest, result),))
        shared = templates.pair(
            prompt=self._prompt,
            conversation=not isinstance(self._shown.prompt, str),
            a=first.text,
            b=second.text,
            grounding=self._shown.grounding,
            reference_answer=self._shown.reference_answer,
        )
        question = ask(self._prepared, about, self._question, A_OR_B, None, "yes_no")
        images = (*self._images, *first.images, *second.images)
        digests = CallDigests(self._prepared.fingerprint, templates.system, shared, images).of(question.call)
        return ResponsePlan(
            (VerdictSlot(about, "judge", digests),),
            Batch(templates.system, shared, (question.call,), images),
            (PlannedCall(question, digests),),
            system_alone=templates.system,
            group=self._group,
        )
