"""Planning: turn (response, criterion) pairs into calls and checks, each with a digest. Pure; nothing is asked here."""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from judge_server.errors import invalid_field
from judge_server.judging.calibration import EMPTY_RESPONSE, ProbabilityMap, RelativeVerdict
from judge_server.judging.fingerprint import CallDigests, ending_of
from judge_server.judging.passages import Excerpt, PassageFinder, common_paragraphs, not_shown
from judge_server.judging.presentation import (
    decoy_for,
    has_content,
    images_of,
    material_characters,
    show_hidden,
    show_response,
    steps_of,
    without_middle,
)
from judge_server.judging.questions import HOLISTIC, PreparedConfig, Question, ask_alone, ask_criteria
from judge_server.judging.replies import combine_turns
from judge_server.ports import Batch, CallFailure, JudgeResult, SamplingOptions
from judge_server.prompts.disguises import normalise, undisguised
from judge_server.prompts.fencing import render_conversation
from judge_server.prompts.library import MATERIAL
from judge_server.verifiers import Check, ToolUse, stated_answer, step_to_search, tool_uses
from trainer_client.final_answer import extract_final_answer
from trainer_client.steps import WHOLE_RESPONSE, Step, split_steps
from trainer_client.text.thinking import JudgedContent, without_tags
from trainer_client.wire import Criterion, Prompt, Verification
from trainer_client.wire.criteria import (
    ContainsVerification,
    ExactVerification,
    JudgeVerification,
    MathVerification,
    RegexVerification,
    ToolCallVerification,
    TurnsVerification,
)
from trainer_client.wire.judging import Defence, StepRule
from trainer_client.wire.verdicts import Passage, VerdictMethod

FINAL_ANSWER_CHARACTERS = 400
"""How many characters of an extracted final answer are shown again next to the correct one."""

OUTCOME = "outcome"
"""The criterion id of the verdict that compares the final answer with the ground truth."""

BY_MATH = MathVerification(method="math")


@dataclass(frozen=True, slots=True)
class GroupContext:
    """What the responses of a group share: the prompt, and the material that only the judge sees."""

    prompt: Prompt
    grounding: str | None = None
    reference_answer: str | None = None
    ground_truth: str | None = None

    def without(self, withheld: Collection[str]) -> "GroupContext":
        """Return the context without the material that a template set withholds from the judge."""
        return GroupContext(self.prompt, *[None if name in withheld else getattr(self, name) for name in MATERIAL])


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


class _OnPassages(NamedTuple):
    """What the call about one criterion is shown, after what all calls are, and the passages in it."""

    shown: str
    passages: tuple[Passage, ...]


class _Draft:
    """What is planned so far about one response: its calls and checks, and the digests of each criterion's votes.

    `on_passages` has what is shown for each criterion that is judged on passages.
    """

    def __init__(self, digests: CallDigests, on_passages: Mapping[str, _OnPassages]) -> None:
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


class GroupPlanner:
    """Plans the calls and checks for the responses to one prompt under one rubric. What they share is built once.

    Args:
        prepared: the judging configuration, made ready.
        context: the prompt and the material of the group. The judge sees what its templates do not withhold.
        criteria: the M criteria to judge by. Under `likert` they guide one rating of the whole response.
        votes: how many verdicts to sample for each criterion.
        group: the index of the group in its request.
        defences: the defences in force.
        left_out: ids of the criteria that are not judged.
        steps: what the steps of a response are.

    Attributes:
        verified: the criteria that programs verify, each with its verification.
    """

    def __init__(
        self,
        prepared: PreparedConfig,
        context: GroupContext,
        criteria: Sequence[Criterion],
        *,
        votes: int = 1,
        group: int = 0,
        defences: Sequence[Defence] = (),
        left_out: Collection[str] = (),
        steps: StepRule = "headings",
    ) -> None:
        self._prepared = prepared
        self._group = group
        self._context = context
        self._shown = context.without(prepared.declaration.withholds)
        self._criteria = criteria
        self._votes = votes
        self._defences = defences
        self._programs = [verification_of(prepared, criterion, context) for criterion in criteria]
        self.verified = [
            (c, program) for c, program in zip(criteria, self._programs, strict=True) if program is not None
        ]
        truth = context.ground_truth if self.verified else None
        self._true_answer = None if truth is None else stated_answer(truth)
        self._to_ask = tuple(
            [c for c, program in zip(criteria, self._programs, strict=True) if program is None and c.id not in left_out]
        )
        self._templates = (
            prepared.single_templates if prepared.asks_individually(len(self._to_ask)) else prepared.multi_templates
        )
        self._stepwise = prepared.config.protocol == "stepwise"
        self._step_rule = steps
        self._searches_steps = any(step_to_search(program) is not None for _, program in self.verified)
        self._prompt = render_conversation(context.prompt)
        self._images = images_of(context.prompt)
        self._looks_at_turns = prepared.config.protocol != "likert" and any(
            criterion.applies_to != "trajectory" for criterion in criteria
        )
        self._turn_questions: dict[tuple[str, int], AskedQuestions] = {}
        self._questions: dict[tuple[tuple[str, ...], tuple[int, ...]], AskedQuestions] = {}
        self._program_digests: dict[str, bytes] = {}
        self._passages = prepared.config.passages
        grounding = self._shown.grounding or ""
        is_long = self._passages is not None and len(grounding) > self._passages
        self._grounding_finder = PassageFinder(grounding) if is_long else None
        self._response_finder = lru_cache(maxsize=1)(PassageFinder)  # a response is planned again to fit the context
        self._content_free: ResponsePlan | None = None
        self._content_free_by_id: dict[str, tuple[bytes, ProbabilityMap]] = {}
        if prepared.config.contextual and self._to_ask:
            self._content_free = self._plan_content_free()

    def plan(self, judged: JudgedContent, *, keep: int | None = None) -> ResponsePlan:
        """Plan one response, or the part of it that is judged.

        `keep` limits how many characters the judge is shown: the first and the last half of them, with the middle left
        out; None shows all. Steps and final answer are always those of the full text.
        """
        parts = steps_of(judged, self._step_rule) if self._stepwise or self._searches_steps else ()
        steps = parts if self._stepwise else ()
        needs_final_answer = self._stepwise or self._context.ground_truth is not None or bool(self.verified)
        final_answer = extract_final_answer(judged.text) if needs_final_answer else None
        turns = judged.turns if self._looks_at_turns and len(judged.turns) > 1 else ()
        images = (*self._images, *images_of(judged.messages or ()))
        unmet = self._decided(judged)
        to_ask = tuple([criterion for criterion in self._to_ask if criterion.id not in unmet])
        on_passages: dict[str, _OnPassages] = {}
        if to_ask and self._is_long(judged):
            shared, omitted, on_passages = self._shared_with_passages(judged, to_ask, final_answer, keep)
        else:
            shared, omitted = self._shared(judged, steps, turns, final_answer, keep)
        batch = self._batch(shared, images)
        draft = _Draft(CallDigests(self._prepared.fingerprint, batch), on_passages)
        draft.votes_of = {id_: [digest] for id_, (digest, _) in unmet.items()}
        self._add_calls(draft, to_ask, turns, judged, tuple([step.number for step in steps]))
        subjects: dict[str, bytes] = {}
        for verified, program in self.verified:
            looked_at = _turns_for(verified, turns)
            for check in self._checks(verified, program, judged, final_answer, parts, looked_at):
                digest = self._digest(verified.id, check, subjects)
                draft.checks[digest] = check
                draft.votes_of.setdefault(verified.id, []).append(digest)
            numbers = [turn.number for turn in looked_at]
            draft.turns_of[verified.id] = list(zip(numbers, draft.votes_of[verified.id], strict=False))
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
            for turn in _turns_for(scoped, turns):
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
        shared, _ = self._shared(JudgedContent(EMPTY_RESPONSE, 0, None), (), (), None, None)
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

    def _checks(
        self,
        criterion: Criterion,
        program: Verification,
        judged: JudgedContent,
        final_answer: str | None,
        parts: tuple[Step, ...],
        turns: Sequence[Step],
    ) -> list[Check]:
        """Return the check of a response, or one for each of these turns of it."""
        uses: tuple[ToolUse, ...] = ()
        names_step = self._stepwise
        if isinstance(program, ToolCallVerification):
            uses = () if judged.messages is None else tool_uses(judged.messages, judged.turns)
            names_step = self._stepwise and self._step_rule == "turns"
        whole = Check(
            program,
            judged.text,
            final_answer,
            self._context.ground_truth,
            parts,
            names_step=names_step,
            true_answer=self._true_answer,
            uses=uses,
            turns=len(judged.turns),
            avoided=criterion.avoided,
        )
        if not turns:
            return [self._with_further_readings(whole, "\n\n".join(filter(None, judged.said)))]
        texts = [(turn.number, judged.text[turn.start : turn.end]) for turn in turns]
        return [
            self._with_further_readings(
                replace(
                    whole,
                    text=text,
                    final_answer=extract_final_answer(text),
                    steps=(),
                    names_step=False,
                    uses=tuple([use for use in uses if use.turn == number]),
                ),
                judged.said[number - 1] if judged.said else "",
            )
            for number, text in texts
        ]

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

    def _decided(self, judged: JudgedContent) -> dict[str, tuple[bytes, JudgeResult]]:
        """Return the criteria that a response without content does not meet, each with its outcome.

        A criterion of negative weight and a pitfall are left to the judge: nothing is decided in a response's favour.
        So are a conversation, which may have tool calls, and an answer that the group gives as the right one.
        """
        protocol = self._prepared.config.protocol
        if "no_content" not in self._defences or protocol == "likert" or judged.messages is not None:
            return {}
        context = self._context
        right = {text.strip() for text in (context.ground_truth, context.reference_answer) if text is not None}
        if has_content(judged.text) or judged.text.strip() in right:
            return {}
        unmet = _UNMET_GRADE if protocol in ("graded", "checklist") else _UNMET
        return {one.id: unmet for one in self._to_ask if one.weight >= 0 and one.kind != "pitfall"}

    def _digest(self, criterion: str, check: Check, subjects: dict[str, bytes]) -> bytes:
        if criterion not in self._program_digests:
            self._program_digests[criterion] = check.program_digest()
        return check.digest_with(self._program_digests[criterion], subjects)

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
        for c, program in zip(self._criteria, self._programs, strict=True):
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

    def most_shown(self, judged: JudgedContent) -> int:
        """Return the most characters of a response that a call shows, notes left out."""
        length = material_characters(judged)
        return length if self._passages is None or judged.messages is not None else min(length, self._passages)

    def _is_long(self, judged: JudgedContent) -> bool:
        """Whether a text is to be shown in passages. Responses sent as messages are judged on whole texts."""
        if self._passages is None or judged.messages is not None:
            return False
        return self._grounding_finder is not None or len(judged.text) > self._passages

    def _shared_with_passages(
        self, judged: JudgedContent, to_ask: tuple[Criterion, ...], final_answer: str | None, keep: int | None
    ) -> tuple[str, int, dict[str, _OnPassages]]:
        """Return what all calls are shown, how many characters of the response none is shown, and what each is shown.

        What all calls are shown does not depend on the criteria, so that each call has the same digest beside others.
        """
        assert self._passages is not None
        characters = self._passages if keep is None else min(self._passages, keep)
        finder = self._response_finder(judged.text) if len(judged.text) > characters else None
        # the decoy first, so that a criterion of the rubric with its id keeps its own passages
        decoys = (decoy_for(judged.text),) if "decoy" in self._defences else ()
        hidden, hidden_omitted = without_middle(judged.hidden, characters)
        excerpts: list[Excerpt] = []
        shown: dict[str, _OnPassages] = {}
        for criterion in (*decoys, *to_ask):
            response, grounding, passages = judged.text, None, list[Passage]()
            if finder is not None:
                excerpt = finder.excerpt(criterion.description, characters)
                excerpts += () if criterion in decoys else (excerpt,)
                response = excerpt.text
                passages += _passages_of("response", excerpt, judged.offset)
            if self._grounding_finder is not None:
                found = self._grounding_finder.excerpt(f"{criterion.description}\n{response}", self._passages)
                grounding = found.text
                passages += _passages_of("grounding", found)
            shortened = replace(judged, text=response, hidden=hidden)
            whole, _ = self._shared(shortened, (), (), final_answer, None, grounding)
            shown[criterion.id] = _OnPassages(whole, tuple(passages))
        nothing = replace(judged, text=judged.text if finder is None else "", hidden=hidden)
        blank, _ = self._shared(nothing, (), (), final_answer, None, None if self._grounding_finder is None else " ")
        shared = common_paragraphs([blank, *[one.shown for one in shown.values()]])
        rest = {id_: one._replace(shown=one.shown[len(shared) :]) for id_, one in shown.items()}
        omitted = 0 if finder is None else not_shown(len(judged.text), excerpts)
        if any(criterion.avoided for criterion in self._to_ask):
            omitted += hidden_omitted
        return shared, omitted, rest

    def _shared(
        self,
        judged: JudgedContent,
        steps: Sequence[Step],
        turns: Sequence[Step],
        final_answer: str | None,
        keep: int | None,
        grounding: str | None = None,
    ) -> tuple[str, int]:
        context = self._shown
        asks_for_answer = self._stepwise and self._step_rule == "headings"
        show_final_answer = asks_for_answer or context.ground_truth is not None
        numbered: StepRule = "turns" if turns else self._step_rule if self._stepwise else "headings"
        normalised = "normalise" in self._defences
        response, omitted = show_response(judged, steps, numbered, normalised=normalised, keep=keep)
        if judged.hidden and any(criterion.avoided for criterion in self._to_ask):
            hidden, more = show_hidden(judged.hidden, normalised=normalised, keep=keep)
            response, omitted = f"{response}\n\n{hidden}", omitted + more
        if final_answer is not None:
            final_answer = normalise(final_answer) if normalised else final_answer
            final_answer, _ = without_middle(final_answer, FINAL_ANSWER_CHARACTERS)
        shared = self._templates.shared(
            prompt=self._prompt,
            conversation=not isinstance(context.prompt, str),
            response=response,
            grounding=context.grounding if grounding is None else grounding,
            reference_answer=context.reference_answer,
            ground_truth=context.ground_truth,
            show_final_answer=show_final_answer,
            final_answer=final_answer if show_final_answer else None,
        )
        return shared, omitted


def _passages_of(text: Literal["response", "grounding"], excerpt: Excerpt, offset: int = 0) -> list[Passage]:
    """Return the passages that were found in a text, which begins at `offset` of the text as sent."""
    spans = excerpt.spans if excerpt.found else ()
    return [Passage(text=text, start=start + offset, end=end + offset) for start, end in spans]


def _turns_for(criterion: Criterion, turns: Sequence[Step]) -> Sequence[Step]:
    """Return the turns that a criterion is about one by one; empty if it is about the whole response."""
    if criterion.applies_to == "trajectory" or not turns:
        return ()
    return turns[-1:] if criterion.applies_to == "last_turn" else turns


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
