"""Planning: turn (response, criterion) pairs into calls and checks, each with a digest. Pure; nothing is asked here."""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from judge_server.errors import invalid_field
from judge_server.judging.calibration import EMPTY_RESPONSE, ProbabilityMap, RelativeVerdict
from judge_server.judging.checks import BY_MATH, GroupChecks, turns_for
from judge_server.judging.presentation import (
    decoy_for,
    has_content,
    images_of,
)
from judge_server.judging.prompts.library import MATERIAL
from judge_server.judging.questions import (
    HOLISTIC,
    CallDigests,
    PreparedConfig,
    Question,
    ask_alone,
    ask_criteria,
    ending_of,
)
from judge_server.judging.replies import combine_turns
from judge_server.judging.shown import GroupContext, GroupDisplay, OnPassages
from judge_server.ports import Batch, CallFailure, JudgeResult, SamplingOptions
from judge_server.verifiers import Check
from trainer_client.final_answer import extract_final_answer
from trainer_client.steps import WHOLE_RESPONSE, Step
from trainer_client.text.thinking import JudgedContent
from trainer_client.wire import Criterion, JudgingOptions
from trainer_client.wire.verdicts import Passage, VerdictMethod

OUTCOME = "outcome"
"""The criterion id of the verdict that compares the final answer with the ground truth."""


class TurnsVerdict(NamedTuple):
    """A verdict that is combined from one on each turn: its digest, and the number and digest of each turn's verdict.

    `avoided` says whether a good response does not meet the criterion.
    """

    digest: bytes
    turns: tuple[tuple[int, bytes], ...]
    avoided: bool

    @classmethod
    def of(cls, turns: Sequence[tuple[int, bytes]], *, avoided: bool) -> "TurnsVerdict":
        """Return the verdict under the digest of its parts."""
        whole = hashlib.sha256(f"turns {avoided}".encode())
        for number, digest in turns:
            whole.update(number.to_bytes(4, "big") + digest)
        return cls(whole.digest(), tuple(turns), avoided)

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The digests of the turns' verdicts."""
        return tuple([digest for _, digest in self.turns])

    def combine(self, outcomes: Sequence[JudgeResult | CallFailure]) -> JudgeResult | CallFailure:
        """Return the verdict from those on the turns; see `combine_turns`."""
        numbers = [number for number, _ in self.turns]
        return combine_turns(list(zip(numbers, outcomes, strict=True)), avoided=self.avoided)


class PendingVerdict(NamedTuple):
    """A verdict that an answer needs, before it is judged.

    Attributes:
        criterion: the criterion's id.
        method: how it is decided.
        digests: the digest of each vote's outcome, one by default; none for a criterion that rubric dropout excluded.
        step: the step of a verdict that names none, such as that of a program that searches no steps.
        turns: for a criterion that applies to each turn, the number and digest of each turn's verdict.
        parts: digests of the constituent calls, if they differ from `digests`.
        passages: what the judge is shown of texts that are too long to be shown whole; None if it is shown all.
    """

    criterion: str
    method: VerdictMethod
    digests: tuple[bytes, ...]
    step: int | None = None
    turns: tuple[tuple[int, bytes], ...] = ()
    parts: tuple[bytes, ...] = ()
    passages: tuple[Passage, ...] | None = None

    @property
    def awaited(self) -> tuple[bytes, ...]:
        """The digests of the calls and checks that must end before it is known."""
        return self.parts or self.digests


class PlannedCall(NamedTuple):
    """One call of a plan's batch, with the digest of each verdict in its reply."""

    question: Question
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """How one response is judged.

    Attributes:
        pending: the verdicts that an answer needs, in the order of the criteria.
        batch: the calls about the response.
        planned_calls: the same calls, each with the digests of its verdicts.
        checks: the checks by programs, by digest.
        system_alone: the system message for asking a single criterion again.
        steps: the steps of the response.
        characters_omitted: how many characters of the response the judge is not shown.
        group: the index of the response's group in its request.
        decided: the outcomes that are known without asking, by digest.
        decoy: the verdict on the decoy criterion, if one is asked.
        content_free: under contextual calibration, the plan of the calls about an empty response. The responses of a
            group share it.
        combinations: the verdicts that are combined from other outcomes, each after those that it is combined from.
        digests: the digests of all verdicts that the judge is asked for.
        uses: how many verdicts an answer about the response uses, every vote counted.
    """

    pending: tuple[PendingVerdict, ...]
    batch: Batch
    planned_calls: tuple[PlannedCall, ...]
    checks: tuple[tuple[bytes, Check], ...] = ()
    system_alone: str = ""
    steps: tuple[Step, ...] = ()
    characters_omitted: int = 0
    group: int = 0
    decided: tuple[tuple[bytes, JudgeResult], ...] = ()
    decoy: PendingVerdict | None = None
    content_free: "ResponsePlan | None" = None
    combinations: tuple[RelativeVerdict | TurnsVerdict, ...] = ()
    digests: tuple[bytes, ...] = field(init=False, repr=False, compare=False)
    uses: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Counted here, since planning is done in slices; later, thousands of plans are looked through at once.
        digests = tuple([digest for call in self.planned_calls for digest in call.digests])
        object.__setattr__(self, "digests", digests)
        object.__setattr__(self, "uses", sum([len(one.digests) for one in self.pending]))

    def with_calls_for(self, digests: Collection[bytes]) -> "ResponsePlan":
        """Return the plan with only the calls for these verdicts, still in one batch."""
        calls = tuple([call for call in self.planned_calls if not set(call.digests).isdisjoint(digests)])
        batch = replace(self.batch, calls=tuple([call.question.call for call in calls]))
        return replace(self, batch=batch, planned_calls=calls)

    @property
    def awaited(self) -> set[bytes]:
        """The digests of everything that an answer about the response needs."""
        decoy = () if self.decoy is None else self.decoy.digests
        return {digest for one in self.pending for digest in one.awaited}.union(decoy)


_UNMET, _UNMET_GRADE = [
    (hashlib.sha256(f"no content, {result}".encode()).digest(), result)
    for result in (JudgeResult(score=0.0), JudgeResult(score=0.0, grade=0.0))
]
"""The outcome of a criterion that a response without content does not meet, by its digest; with and without grades."""


AskedQuestions = list[tuple[Question, bytes]]
"""Questions, each with the part of its digest that does not depend on the response."""


class _Draft:
    """What is planned so far about one response: its calls and checks, and the digests of each criterion's votes.

    `on_passages` has what is shown for each criterion that is judged on passages.
    """

    def __init__(self, digests: CallDigests, on_passages: Mapping[str, OnPassages]) -> None:
        self._digests = digests
        self.on_passages = on_passages
        self.calls: list[PlannedCall] = []
        self.checks: dict[bytes, Check] = {}
        self.votes_of: dict[str, list[bytes]] = {}
        self.turns_of: dict[str, list[tuple[int, bytes]]] = {}
        self.relative: dict[bytes, RelativeVerdict] = {}
        self.by_turn: list[TurnsVerdict] = []
        self.decoy: PendingVerdict | None = None

    def add(self, question: Question, ending: bytes) -> tuple[bytes, ...]:
        """Add a call; return the digest of each verdict in its reply."""
        if (own := self.on_passages.get(question.criteria[0])) is not None:
            question = replace(question, call=replace(question.call, question=own.shown + question.call.question))
        digests = self._digests.with_ending(question.call, ending, len(question.criteria))
        self.calls.append(PlannedCall(question, digests))
        return digests


_UNDEFENDED = JudgingOptions(defences=())


class GroupPlanner:
    """Plans the calls and checks for the responses to one prompt under one rubric. What they share is built once.

    Args:
        prepared: the judging configuration, made ready.
        context: the prompt and the material of the group. The judge sees what its templates do not withhold.
        criteria: the M criteria to judge by. Under `likert` they guide one rating of the whole response.
        options: the votes on each criterion, the defences in force, and what the steps of a response are.
        group: the index of the group in its request.
        left_out: ids of the criteria that are not judged.

    Attributes:
        checks: plans the checks by programs.
        display: shows the responses to the judge.
    """

    def __init__(
        self,
        prepared: PreparedConfig,
        context: GroupContext,
        criteria: Sequence[Criterion],
        options: JudgingOptions = _UNDEFENDED,
        *,
        group: int = 0,
        left_out: Collection[str] = (),
    ) -> None:
        self._prepared = prepared
        self._group = group
        self._context = context
        self._criteria = criteria
        self._votes = options.votes
        self._defences = options.defences
        self._stepwise = prepared.config.protocol == "stepwise"
        self.checks = GroupChecks(prepared, context, criteria, options.steps)
        self._to_ask = tuple(
            [
                criterion
                for criterion, program in zip(criteria, self.checks.programs, strict=True)
                if program is None and criterion.id not in left_out
            ]
        )
        self._templates = (
            prepared.single_templates if prepared.asks_individually(len(self._to_ask)) else prepared.multi_templates
        )
        self.display = GroupDisplay(
            prepared,
            self._templates,
            context,
            options,
            shows_hidden=any(criterion.avoided for criterion in self._to_ask),
        )
        self._images = images_of(context.prompt)
        self._looks_at_turns = prepared.config.protocol != "likert" and any(
            criterion.applies_to != "trajectory" for criterion in criteria
        )
        self._turn_questions: dict[tuple[str, int], AskedQuestions] = {}
        self._questions: dict[tuple[tuple[str, ...], tuple[int, ...]], AskedQuestions] = {}
        self._content_free: ResponsePlan | None = None
        self._content_free_by_id: dict[str, tuple[bytes, ProbabilityMap]] = {}
        if prepared.config.contextual and self._to_ask:
            self._content_free = self._plan_content_free()

    def plan(self, judged: JudgedContent, *, keep: int | None = None) -> ResponsePlan:
        """Plan one response, or the part of it that is judged.

        `keep` limits how many characters the judge is shown: the first and the last half of them, with the middle left
        out; None shows all. Steps and final answer are always those of the full text.
        """
        parts = self.checks.steps(judged)
        steps = parts if self._stepwise else ()
        needs_final_answer = self._stepwise or self._context.ground_truth is not None or bool(self.checks.verified)
        final_answer = extract_final_answer(judged.text) if needs_final_answer else None
        turns = judged.turns if self._looks_at_turns and len(judged.turns) > 1 else ()
        images = (*self._images, *images_of(judged.messages or ()))
        unmet = self._decided(judged)
        to_ask = tuple([criterion for criterion in self._to_ask if criterion.id not in unmet])
        on_passages: dict[str, OnPassages] = {}
        if to_ask and self.display.is_long(judged):
            shared, omitted, on_passages = self.display.in_passages(judged, to_ask, final_answer, keep)
        else:
            shared, omitted = self.display.whole(judged, steps, turns, final_answer, keep)
        batch = self._batch(shared, images)
        draft = _Draft(CallDigests(self._prepared.fingerprint, batch), on_passages)
        draft.votes_of = {id_: [digest] for id_, (digest, _) in unmet.items()}
        self._add_calls(draft, to_ask, turns, judged, tuple([step.number for step in steps]))
        for criterion, turn, digest, check in self.checks.planned(judged, final_answer, parts, turns):
            draft.checks[digest] = check
            draft.votes_of.setdefault(criterion, []).append(digest)
            if turn is not None:
                draft.turns_of.setdefault(criterion, []).append((turn, digest))
        pending = self._pending(draft, unmet, turns)
        return ResponsePlan(
            pending,
            replace(batch, calls=tuple([a.question.call for a in draft.calls])),
            tuple(draft.calls),
            tuple(draft.checks.items()),
            self._prepared.multi_templates.system
            if self._prepared.config.protocol == "checklist"
            else self._prepared.single_templates.system,
            steps,
            omitted,
            self._group,
            tuple(dict.fromkeys(unmet.values())),
            draft.decoy,
            self._content_free_for(draft.relative.values()),
            (*draft.relative.values(), *draft.by_turn),
        )

    def _add_calls(
        self,
        draft: "_Draft",
        to_ask: tuple[Criterion, ...],
        turns: Sequence[Step],
        judged: JudgedContent,
        step_numbers: tuple[int, ...],
    ) -> None:
        """Add the calls about the whole response, about its turns, and about the decoy criterion."""
        whole = tuple([criterion for criterion in to_ask if not turns or criterion.applies_to == "trajectory"])
        for question, ending in self._questions_about(whole, step_numbers) if whole or not turns else ():
            for criterion, digest in zip(question.criteria, draft.add(question, ending), strict=True):
                draft.votes_of.setdefault(criterion, []).append(self._relate(criterion, digest, draft.relative))
        for scoped in to_ask if turns else ():
            for turn in turns_for(scoped, turns):
                for question, ending in self._questions_about_turn(scoped, turn.number):
                    (digest,) = draft.add(question, ending)
                    digest = self._relate(scoped.id, digest, draft.relative)
                    draft.votes_of.setdefault(scoped.id, []).append(digest)
                    draft.turns_of.setdefault(scoped.id, []).append((turn.number, digest))
        if "decoy" in self._defences and to_ask:
            decoy = decoy_for(judged.text)
            ((question, ending),) = self._asked(lambda one: [ask_alone(self._prepared, decoy, step_numbers, one)], 1)
            draft.decoy = PendingVerdict(decoy.id, "judge", draft.add(question, ending))

    def _plan_content_free(self) -> ResponsePlan:
        """Plan the calls about an empty response, one for each criterion, without a step or a turn."""
        shared, _ = self.display.whole(JudgedContent(EMPTY_RESPONSE, 0, None), (), (), None, None)
        batch = self._batch(shared, self._images)
        digests = CallDigests(self._prepared.fingerprint, batch)
        questions = [ask_alone(self._prepared, criterion, None, None) for criterion in self._to_ask]
        planned = tuple([PlannedCall(one, digests.of(one.call, scaling=one.scaling)) for one in questions])
        batch = replace(batch, calls=tuple([one.call for one in questions]))
        scaling_for = self._prepared.calibration.scaling_for
        self._content_free_by_id = {
            criterion.id: (call.digests[0], scaling_for(criterion))
            for criterion, call in zip(self._to_ask, planned, strict=True)
        }
        return ResponsePlan((), batch, planned, system_alone=self._prepared.single_templates.system, group=self._group)

    def _batch(self, shared: str, images: tuple[str, ...]) -> Batch:
        """Return what the calls about a text share, without the calls."""
        return Batch(self._templates.system, shared, (), images, self._prepared.cache_salt)

    def _content_free_for(self, relative: Collection[RelativeVerdict]) -> ResponsePlan | None:
        """Return the plan of the calls about an empty response that these verdicts need."""
        if self._content_free is None or not relative:
            return None
        needed = {one.content_free for one in relative}
        return self._content_free if len(needed) == len(self._to_ask) else self._content_free.with_calls_for(needed)

    def _relate(self, criterion: str, digest: bytes, relative: dict[bytes, RelativeVerdict]) -> bytes:
        """Return the digest of the verdict that a call's reply is read as; adds it to `relative` if it is another."""
        if self._content_free is None:
            return digest
        content_free, scaling = self._content_free_by_id[criterion]
        one = RelativeVerdict.of(digest, content_free, scaling)
        relative[one.digest] = one
        return one.digest

    def _decided(self, judged: JudgedContent) -> dict[str, tuple[bytes, JudgeResult]]:
        """Return the criteria that a response without content does not meet, each with its outcome.

        A criterion of negative weight and a pitfall are left to the judge: nothing is decided in a response's favour.
        So are a conversation, which may have tool calls, and an answer that the group gives as the right one.
        """
        protocol = self._prepared.config.protocol
        if "no_content" not in self._defences or protocol == "likert" or judged.messages is not None:
            return {}
        if has_content(judged.text) or judged.text.strip() in self._context.right_answers():
            return {}
        unmet = _UNMET_GRADE if protocol in ("graded", "checklist") else _UNMET
        return {one.id: unmet for one in self._to_ask if one.weight >= 0 and one.kind != "pitfall"}

    def _asked(self, make: Callable[[SamplingOptions | None], list[Question]], votes: int) -> AskedQuestions:
        """Return the questions that `make` makes, vote by vote, each with its digest ending."""
        temperature = self._prepared.config.temperature
        samples = [SamplingOptions(temperature, vote) if temperature else None for vote in range(votes)]
        return [(one, ending_of(one.call, one.scaling)) for sample in samples for one in make(sample)]

    def _questions_about(self, to_ask: tuple[Criterion, ...], step_numbers: tuple[int, ...]) -> AskedQuestions:
        """Return the questions about a response with these steps."""
        key = tuple([criterion.id for criterion in to_ask]), step_numbers
        if key not in self._questions:
            self._questions[key] = self._asked(
                lambda sample: ask_criteria(self._prepared, to_ask, step_numbers, sample), self._votes
            )
        return self._questions[key]

    def _questions_about_turn(self, criterion: Criterion, turn: int) -> AskedQuestions:
        """Return the questions about one turn of a response."""
        key = criterion.id, turn
        if key not in self._turn_questions:
            description = f"In turn {turn} alone: {criterion.description}"
            about = criterion.model_copy(update={"description": description})
            self._turn_questions[key] = self._asked(
                lambda sample: [ask_alone(self._prepared, about, None, sample)], self._votes
            )
        return self._turn_questions[key]

    def _pending(self, draft: "_Draft", decided: Collection[str], turns: Sequence[Step]) -> tuple[PendingVerdict, ...]:
        """Return the verdicts that an answer needs; adds those that are combined from turns to the draft."""
        votes_of, relative = draft.votes_of, draft.relative
        if self._prepared.config.protocol == "likert":
            return (PendingVerdict(HOLISTIC, "judge", tuple(votes_of[HOLISTIC])),)
        step = WHOLE_RESPONSE if self._stepwise else None
        pending = []
        for c, program in zip(self._criteria, self.checks.programs, strict=True):
            digests, method = tuple(votes_of.get(c.id, ())), "judge" if program is None else program.method
            parts = tuple([part for digest in digests if digest in relative for part in relative[digest].parts])
            if c.id in decided:
                pending.append(PendingVerdict(c.id, "no_content", digests, step))
            elif turns and c.applies_to == "each_turn" and digests:
                whole = TurnsVerdict.of(draft.turns_of[c.id], avoided=c.avoided)
                draft.by_turn.append(whole)
                pending.append(PendingVerdict(c.id, method, (whole.digest,), None, whole.turns, parts or whole.parts))
            elif turns and c.applies_to == "last_turn":
                last = turns[-1].number if self._stepwise else None
                pending.append(PendingVerdict(c.id, method, digests, last, parts=parts))
            else:
                is_named = program is None and c.kind not in self._prepared.kinds_without_steps
                own = draft.on_passages.get(c.id) if program is None else None
                passages = None if own is None else own.passages
                pending.append(
                    PendingVerdict(c.id, method, digests, None if is_named else step, parts=parts, passages=passages)
                )
        return tuple(pending)


def combine(
    plan: ResponsePlan, known: Mapping[bytes, JudgeResult | CallFailure]
) -> dict[bytes, JudgeResult | CallFailure]:
    """Return the verdicts that are made of several outcomes, where all of these are known, and which are not known yet.

    These are the verdicts relative to an empty response, and those on criteria that apply to each turn.
    """
    made: dict[bytes, JudgeResult | CallFailure] = {}
    for one in plan.combinations:
        if one.digest not in known:
            outcomes = [outcome for part in one.parts if (outcome := made.get(part) or known.get(part)) is not None]
            if len(outcomes) == len(one.parts):
                made[one.digest] = one.combine(outcomes)
    return made


def check_scopes(where: str, prepared: PreparedConfig, criteria: Sequence[Criterion], votes: int) -> None:
    """Check that criteria about turns can be judged in this configuration.

    Raises:
        InvalidRequest: one cannot; `where` is the request field of the group.
    """
    scoped = [criterion for criterion in criteria if criterion.applies_to != "trajectory"]
    if not scoped or prepared.config.protocol == "likert":
        return
    one, config, reason = scoped[0], prepared.config, ""
    if config.protocol == "checklist" or config.per_call != 1:
        reason = "needs a call of its own; leave out criteria_per_call, or choose another protocol than 'checklist'"
    elif config.protocol == "stepwise" and config.steps != "turns":
        reason = "needs steps that are turns; set judging.steps to 'turns'"
    elif votes > 1 and any(criterion.applies_to == "each_turn" for criterion in scoped):
        reason = "cannot be judged by several votes; leave out judging.votes"
    if reason:
        raise invalid_field(f"{where}.rubric", f"criterion {one.id!r} applies to {one.applies_to!r}, which {reason}")


def check_required(where: str, prepared: PreparedConfig, given: GroupContext) -> None:
    """Check that a group has the material that the template set requires.

    Raises:
        InvalidRequest: something required is missing; `where` is the request field that holds the material.
    """
    missing = prepared.declaration.missing({name: getattr(given, name) for name in MATERIAL})
    if missing is not None:
        raise invalid_field(
            f"{where}.{missing}",
            f"the template set {prepared.config.template!r} needs a {missing}, which the request lacks; add it, or "
            "choose another set",
        )


def plan_outcome(judged: JudgedContent, ground_truth: str, true_answer: str, group: int = 0) -> ResponsePlan:
    """Plan the check of a response's final answer against the one that the ground truth states; no judge is asked."""
    check = Check(BY_MATH, judged.text, extract_final_answer(judged.text), ground_truth, true_answer=true_answer)
    digest = check.digest
    return ResponsePlan(
        (PendingVerdict(OUTCOME, "math", (digest,)),), Batch("", "", ()), (), ((digest, check),), group=group
    )
