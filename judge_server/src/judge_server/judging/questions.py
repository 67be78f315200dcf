"""Questions to the judge: judging configurations, the protocols, what each protocol asks, and the digests of calls.

A `Question` is plain data (the call, the criteria that its reply decides, and how the reply is read), so that it can be
sent to a judge in another process. One criterion per call is answered with a token or label choice, so that no text in
a response can produce a verdict that is not on offer. Several criteria per call are answered as JSON, which
`judge_server.judging.items` reads.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from judge_server.judging.calibration import NEUTRAL, UNSCALED, Calibration, ProbabilityMap
from judge_server.judging.items import ItemForm, items_schema, json_output_tokens
from judge_server.judging.presentation import STEP_WORDS
from judge_server.judging.prompts import PromptTemplates, points
from judge_server.judging.prompts.library import DEFAULT_DECLARATION, Declaration
from judge_server.judging.replies import MIN_CHOICE_MASS, read_grade, read_json_output, read_rating, read_yes_no
from judge_server.ports import (
    AnswerForm,
    Batch,
    Call,
    CallFailure,
    JsonOutput,
    JudgeResult,
    LabelChoice,
    Option,
    Reasoning,
    Reply,
    SamplingOptions,
    TextOutput,
    TokenChoice,
)
from rubric_store.byte_cache import ByteCache
from trainer_client.steps import NO_STEP, WHOLE_RESPONSE
from trainer_client.wire import RATIONALE_TOKENS, Criterion, JudgingOptions, UsedProtocol
from trainer_client.wire.criteria import CriterionKind
from trainer_client.wire.judging import StepRule

Reading: TypeAlias = Literal["yes_no", "grade", "rating"] | tuple[ItemForm, ...]
"""How a reply is read: as one verdict of this kind, or as JSON items in these forms."""


@dataclass(frozen=True, slots=True)
class Question:
    """A call, the ids of the criteria that its reply decides, and how the reply is read.

    `alone(place)` is the question about one of the criteria by itself, asked if the reply left it out. `scaling`
    calibrates the probability of a yes/no verdict. A verdict with less mass on its choices than `min_choice_mass`
    fails.
    """

    call: Call
    criteria: tuple[str, ...]
    reading: Reading
    alone: Callable[[int], "Question"] | None = None
    scaling: ProbabilityMap = UNSCALED
    min_choice_mass: float = MIN_CHOICE_MASS

    def read(self, reply: Reply) -> list[JudgeResult | CallFailure]:
        """Return the verdict on each of the criteria, in order."""
        answer, reading = self.call.answer, self.reading
        if reading == "yes_no" and isinstance(answer, TokenChoice):
            return [read_yes_no(answer, reply, self.scaling, self.min_choice_mass)]
        if reading == "grade" and isinstance(answer, TokenChoice | LabelChoice):
            return [read_grade(answer, reply, self.min_choice_mass)]
        if reading == "rating" and isinstance(answer, TokenChoice):
            return [read_rating(answer, reply, self.min_choice_mass)]
        if isinstance(reading, tuple):
            return read_json_output(reading, reply)
        raise TypeError(f"an answer of the form {type(answer).__name__} cannot be read as {reading}")


@dataclass(frozen=True, slots=True)
class JudgingConfig:
    """The options of a request that can change a verdict, apart from the texts shown.

    `contextual` says whether verdicts are relative to those on an empty response, `passages` how many characters of a
    longer text are shown for a criterion.
    """

    protocol: UsedProtocol
    per_call: int | Literal["all"] = 1
    rationale: bool = False
    think_tokens: int = 0
    temperature: float = 0.0
    template: str | None = None
    steps: StepRule = "headings"
    contextual: bool = False
    passages: int | None = None

    @classmethod
    def of(cls, options: JudgingOptions, protocol: UsedProtocol) -> "JudgingConfig":
        """Return the configuration that a request's options ask for."""
        default: int | Literal["all"] = "all" if protocol == "checklist" else 1
        return cls(
            protocol,
            1 if protocol == "likert" else options.criteria_per_call or default,
            options.rationale,
            options.think_tokens,
            options.sampling_temperature,
            options.template,
            options.steps if protocol == "stepwise" else "headings",
            bool(options.contextual_calibration),
            options.passages,
        )

    def recorded(self) -> dict[str, Any]:
        """Return the options as data, without those that were added later and are not used."""
        options = asdict(self)
        if self.steps == "headings":
            del options["steps"]
        if not self.contextual:
            del options["contextual"]
        if self.passages is None:
            del options["passages"]
        return options

    @property
    def plain(self) -> bool:
        """Whether each call asks for one verdict and nothing else: no rationale, no thinking, no other criterion."""
        return not self.rationale and not self.think_tokens and self.per_call == 1

    @property
    def comparable(self) -> bool:
        """Whether the configuration asks yes or no so plainly that two responses' log-odds can be compared."""
        return self.protocol in ("binary", "stepwise") and self.plain


@dataclass(frozen=True, slots=True)
class PreparedConfig:
    """A judging configuration made ready: templates for one criterion and for several, fingerprint and calibration.

    Under `stepwise`, the judge is not asked which step decides a criterion of `kinds_without_steps`; its verdicts on
    these are about the whole response. `declaration` is the template set's, such as what it withholds from the
    judge. `min_choice_mass` is the least mass on its choices that a verdict is read from. `uncalibrated` is the
    fingerprint that the judge would have without a calibration. `cache_salt` enters the digests of calls: verdicts are
    shared only between callers that have the same. `members` are the configurations of a cascade's or panel's judges.
    `model` is the name of the model that it was prepared for, which may change before a request is answered.
    """

    config: JudgingConfig
    single_templates: PromptTemplates
    multi_templates: PromptTemplates
    fingerprint: str
    calibration: Calibration = NEUTRAL
    kinds_without_steps: frozenset[CriterionKind] = frozenset()
    declaration: Declaration = DEFAULT_DECLARATION
    min_choice_mass: float = MIN_CHOICE_MASS
    uncalibrated: str = ""
    cache_salt: str = ""
    members: tuple["PreparedConfig", ...] = ()
    model: str = ""

    @property
    def wording(self) -> str:
        """The digest of the question that is asked alone; '' if something else is asked, too, or several at once."""
        if not self.config.plain or self.config.contextual:
            return ""
        parts = (self.single_templates.digest, *self.declaration.digest_parts)
        return "sha256:" + hashlib.sha256("\0".join(parts).encode()).hexdigest()

    @property
    def typed(self) -> bool:
        """Whether the judge is a decision model, which is told what each option means."""
        return self.single_templates.form.typed

    def per_call(self, criteria: int) -> int:
        """Return how many criteria share a call when `criteria` are asked."""
        return max(criteria, 1) if self.config.per_call == "all" else self.config.per_call

    def asks_individually(self, criteria: int) -> bool:
        """Whether each of `criteria` criteria gets a call of its own. A checklist is always written as one answer."""
        if self.config.protocol == "checklist":
            return False
        return self.config.protocol == "likert" or min(self.per_call(criteria), criteria) <= 1


def option(label: str, synonym: str = "") -> Option:
    """Return a label with the spellings that models use for it and for a synonym.

    There are at most ten, so that two labels fit the 20 tokens whose probabilities vLLM and the OpenAI API return.
    """
    cased = [label, label.capitalize(), label.upper(), *([synonym, synonym.capitalize()] if synonym else ())]
    spellings = tuple(dict.fromkeys(cased))
    return Option(label, (*spellings, *(f" {spelling}" for spelling in spellings)))


YES_NO = (option("yes", "true"), option("no", "false"))
"""The default templates ask for yes or no; a template set may ask for true or false, or declare other words."""

TYPED_YES_NO = (
    replace(YES_NO[0], description="It is true of the response."),
    replace(YES_NO[1], description="It is not true of the response, or only in part, or that is not clear."),
)
"""Yes and no as a decision model is told them."""

_RATINGS = {0: "worthless", 3: "poor", 6: "good, with flaws", 9: "could not be better"}
HOLISTIC = "overall"
"""The criterion id of a verdict about the whole response."""

_HIGHEST_DIGIT = 9
"""A one-digit grade is one token for every tokenizer, so its masses can be read. On a higher scale the grade is a label
choice, of which only the picked label is known. A rating from 1 to 10 is asked for as a digit from 0 to 9."""


def ask_criteria(
    prepared: PreparedConfig,
    criteria: tuple[Criterion, ...],
    step_numbers: tuple[int, ...],
    sample: SamplingOptions | None,
) -> list[Question]:
    """Return the questions about a response with these steps, in the order of the criteria."""
    if prepared.config.protocol == "likert":
        return [_ask_holistically(prepared, criteria, sample)]
    if prepared.asks_individually(len(criteria)):
        return [ask_alone(prepared, criterion, step_numbers, sample) for criterion in criteria]
    size = prepared.per_call(len(criteria))
    chunks = [criteria[start : start + size] for start in range(0, len(criteria), size)]
    return [_ask_together(prepared, chunk, step_numbers, sample) for chunk in chunks]


def ask_alone(
    prepared: PreparedConfig, criterion: Criterion, step_numbers: tuple[int, ...] | None, sample: SamplingOptions | None
) -> Question:
    """Return the question about one criterion of a response with these steps; with None, no step is asked for."""
    protocol = prepared.config.protocol
    if protocol == "checklist":
        return _ask_together(prepared, (criterion,), step_numbers or (), sample)
    question = prepared.single_templates.question(criterion)
    if protocol == "graded":
        grades = _typed_grades(criterion.scale) if prepared.typed else _grades(criterion.scale)
        return ask(prepared, criterion.id, question, grades, sample, "grade")
    steps = _steps_on_offer(prepared, criterion, step_numbers)
    token_choice = _yes_no(steps, prepared.declaration.verdicts, prepared.typed, prepared.config.steps)
    if prepared.declaration.lead:
        token_choice = replace(token_choice, lead=prepared.declaration.lead)
    scaling = UNSCALED if prepared.config.contextual else prepared.calibration.scaling_for(criterion)
    return ask(prepared, criterion.id, question, token_choice, sample, "yes_no", scaling)


def ask(
    prepared: PreparedConfig,
    about: str,
    question: str,
    answer: AnswerForm,
    sample: SamplingOptions | None,
    reading: Literal["yes_no", "grade", "rating"],
    scaling: ProbabilityMap = UNSCALED,
) -> Question:
    """Return a question for one verdict, whose probability is calibrated by `scaling`."""
    config = prepared.config
    reasoning = Reasoning(RATIONALE_TOKENS, prepared.single_templates.ask) if config.rationale else None
    call = Call(question, answer, reasoning, config.think_tokens, sample)
    return Question(call, (about,), reading, scaling=scaling, min_choice_mass=prepared.min_choice_mass)


def _ask_together(
    prepared: PreparedConfig,
    criteria: tuple[Criterion, ...],
    step_numbers: tuple[int, ...],
    sample: SamplingOptions | None,
) -> Question:
    forms = tuple([_form(prepared, one, _steps_on_offer(prepared, one, step_numbers)) for one in criteria])
    schema, tokens = _json_output_spec(forms)
    call = Call(
        prepared.multi_templates.questions(criteria),
        JsonOutput(schema, tokens),
        think_tokens=prepared.config.think_tokens,
        sample=sample,
    )
    return Question(
        call,
        tuple([criterion.id for criterion in criteria]),
        forms,
        lambda place: ask_alone(prepared, criteria[place], step_numbers, sample),
        min_choice_mass=prepared.min_choice_mass,
    )


def _steps_on_offer(
    prepared: PreparedConfig, criterion: Criterion, step_numbers: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    asked = prepared.config.protocol == "stepwise" and criterion.kind not in prepared.kinds_without_steps
    return step_numbers if asked else None


def _ask_holistically(
    prepared: PreparedConfig, criteria: tuple[Criterion, ...], sample: SamplingOptions | None
) -> Question:
    shown = () if "criteria" in prepared.declaration.withholds else criteria
    ratings = _typed_ratings() if prepared.typed else _grades(_HIGHEST_DIGIT)
    return ask(prepared, HOLISTIC, prepared.single_templates.holistic(shown), ratings, sample, "rating")


def _form(prepared: PreparedConfig, criterion: Criterion, steps: tuple[int, ...] | None) -> ItemForm:
    protocol, reason = prepared.config.protocol, prepared.config.rationale
    if protocol == "graded":
        return ItemForm("grade", float(criterion.scale), reason=reason)
    if protocol == "checklist":
        return ItemForm("awarded", points(criterion), reason=reason)
    return ItemForm("satisfied", steps=steps, reason=reason)


_JSON_OUTPUT_SPECS: ByteCache[tuple[ItemForm, ...], tuple[str, int]] = ByteCache(8 * 2**20)


def _json_output_spec(forms: tuple[ItemForm, ...]) -> tuple[str, int]:
    return _JSON_OUTPUT_SPECS.get_or_create(forms, lambda: (items_schema(forms), json_output_tokens(forms)))


def _ask_step(rule: StepRule) -> str:
    word, name = STEP_WORDS[rule]
    return (
        f"Which {word} decides it? Answer with the number N of its {name}, with 0 for the whole response, or with -1 "
        f"if no {word} does."
    )


_YES_NO_CHOICES: ByteCache[tuple[tuple[int, ...] | None, tuple[str, str] | None, bool, StepRule], TokenChoice] = (
    ByteCache(8 * 2**20)
)


def _yes_no(
    step_numbers: tuple[int, ...] | None, verdicts: tuple[str, str] | None, typed: bool, rule: StepRule
) -> TokenChoice:
    key = step_numbers, verdicts, typed, rule
    return _YES_NO_CHOICES.get_or_create(key, lambda: _make_yes_no(step_numbers, verdicts, typed, rule))


def _make_yes_no(
    step_numbers: tuple[int, ...] | None, verdicts: tuple[str, str] | None, typed: bool, rule: StepRule
) -> TokenChoice:
    options = TYPED_YES_NO if typed else YES_NO
    if verdicts is not None:
        options = (option(verdicts[0]), option(verdicts[1]))
    if step_numbers is None:
        return TokenChoice(options)
    labels = tuple(str(n) for n in (*step_numbers, WHOLE_RESPONSE, NO_STEP))
    return TokenChoice(options, LabelChoice(labels, lead=f", {STEP_WORDS[rule][0]} ", ask=_ask_step(rule)))


@lru_cache(maxsize=128)
def _grades(scale: int) -> TokenChoice | LabelChoice:
    labels = tuple(str(n) for n in range(scale + 1))
    if scale > _HIGHEST_DIGIT:
        return LabelChoice(labels)
    return TokenChoice(tuple(Option(label, (label, f" {label}")) for label in labels))


@lru_cache(maxsize=128)
def _typed_grades(scale: int) -> TokenChoice | LabelChoice:
    grades = _grades(scale)
    if isinstance(grades, LabelChoice):
        return grades
    words = {0: "not at all", scale: "entirely"}
    return _described(grades, [f"{grade} of {scale}: {words.get(grade, 'in part')}" for grade in range(scale + 1)])


@lru_cache(maxsize=1)
def _typed_ratings() -> TokenChoice:
    ratings = _grades(_HIGHEST_DIGIT)
    assert isinstance(ratings, TokenChoice)
    described = [f"{n} of 9: {_RATINGS[n]}" if n in _RATINGS else f"{n} of 9" for n in range(_HIGHEST_DIGIT + 1)]
    return _described(ratings, described)


def _described(choice: TokenChoice, descriptions: Sequence[str]) -> TokenChoice:
    options = [replace(one, description=given) for one, given in zip(choice.options, descriptions, strict=True)]
    return replace(choice, options=tuple(options))


class CallDigests:
    """Digests of calls about one shared text: hash(fingerprint, rendered prompt, answer form), 32 bytes each.

    Everything that the calls of `batch` share enters, its `cache_salt` included; its calls do not.
    """

    def __init__(self, fingerprint: str, batch: Batch) -> None:
        self._start = hashlib.sha256(f"{fingerprint}\0{batch.system}\0{batch.shared}\0".encode())
        if batch.cache_salt:
            self._start.update(b"\0salt" + hashlib.sha256(batch.cache_salt.encode()).digest())
        for image in batch.images:
            self._start.update(b"\0image" + hashlib.sha256(image.encode()).digest())

    def of(self, call: Call, verdicts: int = 1, scaling: ProbabilityMap = UNSCALED) -> tuple[bytes, ...]:
        """Return one digest per verdict of a call; equal prompts with equal answer forms have equal digests.

        The scaling enters too, because criteria of two kinds may be asked in the same words.
        """
        return self.with_ending(call, ending_of(call, scaling), verdicts)

    def with_ending(self, call: Call, ending: bytes, verdicts: int = 1) -> tuple[bytes, ...]:
        """Like `of`, with the result of `ending_of` computed beforehand for a call asked about many texts."""
        digest = self._start.copy()
        digest.update(call.question.encode())
        digest.update(ending)
        whole = digest.digest()
        if verdicts == 1:
            return (whole,)
        return tuple([hashlib.sha256(whole + n.to_bytes(4, "big")).digest() for n in range(verdicts)])


def ending_of(call: Call, scaling: ProbabilityMap = UNSCALED) -> bytes:
    """Return the part of a call's digest after its question: answer form, reasoning, sampling and scaling."""
    ending = _FORMS.get_or_create(call.answer, lambda: _form_as_bytes(call.answer))
    if call.reasoning is not None or call.think_tokens or call.sample is not None:
        ending += repr((call.reasoning, call.think_tokens, call.sample)).encode()
    if scaling != UNSCALED:
        ending += ("\0scaled" + "".join([f"\0{number!r}" for number in scaling.numbers])).encode()
    return ending


_FORMS: ByteCache[AnswerForm, bytes] = ByteCache(8 * 2**20)


def _form_as_bytes(answer: AnswerForm) -> bytes:
    if isinstance(answer, TokenChoice):
        then = () if answer.then is None else ("then", answer.then.lead, answer.then.ask, *answer.then.labels)
        described = tuple(option.description for option in answer.options)
        parts: tuple[str, ...] = ("menu", *(option.label for option in answer.options), *then)
        if any(described):
            parts += ("described", *described)
        if answer.lead:
            parts += ("lead", answer.lead)
    elif isinstance(answer, LabelChoice):
        parts = ("choice", answer.lead, answer.ask, *answer.labels)
    elif isinstance(answer, TextOutput):
        parts = ("prose", str(answer.max_tokens))
    else:
        parts = ("written", str(answer.max_tokens), answer.schema)
    return ("\0" + "\0".join(parts)).encode()
