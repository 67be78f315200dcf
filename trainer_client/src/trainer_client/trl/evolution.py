"""Evolve the rubrics of the groups that a run has seen: write, lint, discriminate, publish.

`GroupHistory` keeps the newest group of each rubric, whose responses are compared; `merge_histories` combines the
shares of all ranks, with the same result on each. `evolve` has an operation of the service write criteria, checks them
and publishes the ones that pass. If anything fails, the rubric stays unchanged, with a reason.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast

from pydantic import TypeAdapter

from trainer_client import AsyncClient
from trainer_client.client.keywords import RewardKeywords
from trainer_client.errors import AdjudgeError, RubricRefused
from trainer_client.rewards import UnsuitableRubric, check_rubric
from trainer_client.text.thinking import judged_content, opened_by
from trainer_client.trl.scoring.results import ScoredRow, answer_is_right
from trainer_client.wire import (
    Criterion,
    Group,
    Prompt,
    ResponseReward,
    RewardMode,
    RubricContent,
    RubricVersion,
    as_response,
)
from trainer_client.wire.operations import Operation

SHARED_PROMPT = ""
"""Marks a rubric that several prompts share, in place of a prompt."""


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A prompt with its responses, and the rubric that judged them.

    Attributes:
        reference: the reference of the rubric, as the user wrote it.
        place: the number of the generation batch, and the index of the first response in it.
        group: the group as it is judged, without the rubric.
        correct: for each response whether its answer is right; None if unknown.
    """

    reference: str
    place: tuple[int, int]
    group: Group
    correct: tuple[bool | None, ...]

    @property
    def prompt(self) -> str:
        """A digest of the prompt."""
        prompt_json = self.group.model_dump_json(include={"prompt"})
        return hashlib.sha256(prompt_json.encode("utf-8", "surrogatepass")).hexdigest()[:16]


SEEN_GROUPS = TypeAdapter(list[SeenGroup])
"""Reads and writes groups as JSON-compatible data."""


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """The groups seen so far.

    Attributes:
        groups: the newest group of each rubric.
        prompts: the digest of the only prompt that each rubric ever judged, or `SHARED_PROMPT`.
    """

    groups: Mapping[str, SeenGroup]
    prompts: Mapping[str, str]

    def with_groups(self, groups: Iterable[SeenGroup], max_groups: int) -> "GroupHistory":
        """Return a history with more groups, of which the newest `max_groups` are kept."""
        newest, prompts = dict(self.groups), dict(self.prompts)
        for one in groups:
            if prompts.setdefault(one.reference, one.prompt) != one.prompt:
                prompts[one.reference] = SHARED_PROMPT
            if one.reference not in newest or newest[one.reference].place <= one.place:
                newest[one.reference] = one
        return GroupHistory(_newest(newest, max_groups), prompts)

    @property
    def shared(self) -> list[str]:
        """The rubrics that judge several prompts."""
        return [reference for reference in self.groups if self.prompts[reference] == SHARED_PROMPT]


def merge_histories(shares: Sequence[GroupHistory], max_groups: int) -> GroupHistory:
    """Merge the ranks' histories, with a group's responses in rank order, keeping the newest `max_groups` groups."""
    prompts: dict[str, str] = {}
    groups: dict[str, SeenGroup] = {}
    for share in shares:
        for reference, prompt in share.prompts.items():
            if prompts.setdefault(reference, prompt) != prompt:
                prompts[reference] = SHARED_PROMPT
        for reference, one in share.groups.items():
            existing = groups.get(reference)
            if existing is not None and existing.group.id == one.group.id:
                groups[reference] = _merge_group(existing, one)
            elif existing is None or existing.place <= one.place:
                groups[reference] = one
    return GroupHistory(_newest(groups, max_groups), prompts)


def evolvable_groups(rows: Sequence[ScoredRow], batch: int, first: int) -> list[SeenGroup]:
    """Return the groups of one rank's rows whose rubrics can evolve: references without a version.

    `batch` is the number of the generation batch, and `first` the index of the first row among those of all ranks.
    """
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        if isinstance(row.rubric, str) and can_evolve(row.rubric):
            places.setdefault(row.group, []).append(place)
    return [_group(rows, own, (batch, first + own[0])) for own in places.values()]


def can_evolve(reference: str) -> bool:
    """Whether a reference can be pinned to another version: `name` or `name@alias`."""
    return not reference.startswith("sha256:") and not reference.partition("@")[2].isdecimal()


def _group(rows: Sequence[ScoredRow], own: Sequence[int], place: tuple[int, int]) -> SeenGroup:
    row = rows[own[0]]
    group = Group.model_validate({**row.fields, "responses": [rows[one].response for one in own]})
    return SeenGroup(str(row.rubric), place, group, tuple([answer_is_right(rows[one]) for one in own]))


def _merge_group(one: SeenGroup, other: SeenGroup) -> SeenGroup:
    responses = (*one.group.responses, *other.group.responses)
    group = one.group.model_copy(update={"responses": responses})
    return replace(one, place=min(one.place, other.place), group=group, correct=(*one.correct, *other.correct))


def _newest(groups: Mapping[str, SeenGroup], max_groups: int) -> dict[str, SeenGroup]:
    kept = sorted(groups.values(), key=lambda one: one.place)[-max_groups:]
    return {one.reference: one for one in kept}


GENERATOR = "evolving"
MAX_INPUT_RESPONSES = 64
MAX_QUESTION_CHARACTERS = 12_000
MAX_RESPONSE_CHARACTERS = 50_000
"""The limits of the generator's input."""

_GENERATION_TIME_SHARE = 0.75
"""The share of the deadline that generating criteria may take."""

UnchangedReason = Literal[
    "shared",
    "alike",
    "question",
    "discarded",
    "lint",
    "unsuitable",
    "same",
    "backwards",
    "timeout",
    "service",
    "writer",
    "judge",
    "publishing",
]
"""Why a rubric stays unchanged. `docs/how-to/use-adjudge-with-trl.md` explains each reason."""

FAILURE_REASONS: frozenset[UnchangedReason] = frozenset({"timeout", "service", "writer", "judge", "publishing"})
"""The reasons that are failures of the service, its models or its store, rather than of the generated criteria."""


class UnchangedRubric(NamedTuple):
    """Why a rubric stays unchanged: a reason, and a sentence with the details."""

    reason: UnchangedReason
    detail: str


class CriterionDiscrimination(NamedTuple):
    """How well a criterion tells responses apart, by the judge's scores.

    Attributes:
        spread: the highest minus the lowest score of the responses, 0 to 1.
        difference: how much higher right responses score than wrong ones, -1 to 1; None if either kind is missing.
    """

    spread: float
    difference: float | None


@dataclass(frozen=True, slots=True)
class EvolutionConfig:
    """The settings of an evolution.

    Attributes:
        mode, options: the judging options of the run.
        parameters: the parameters of the generator.
        min_spread: the least difference between the scores of a new criterion.
        deadline_s: seconds for the whole evolution.
        step: the training step, which is recorded in the lineage.
    """

    mode: RewardMode
    options: RewardKeywords
    parameters: Mapping[str, Any]
    min_spread: float
    deadline_s: float
    step: int


@dataclass(slots=True)
class EvolutionResult:
    """The new pin of each evolved rubric, and why the others stay unchanged, by reference."""

    pins: dict[str, str] = field(default_factory=dict)
    unchanged: dict[str, UnchangedRubric] = field(default_factory=dict)
    criteria: int = 0
    seconds: float = 0.0

    @property
    def failures(self) -> dict[str, UnchangedRubric]:
        """The rubrics that stay unchanged because of a failure."""
        return {
            reference: unchanged
            for reference, unchanged in self.unchanged.items()
            if unchanged.reason in FAILURE_REASONS
        }


def measure_discrimination(
    criterion: Criterion, answers: Sequence[ResponseReward], correct: Sequence[bool | None]
) -> CriterionDiscrimination | None:
    """Measure how a criterion tells N judged responses apart; None if a verdict is missing.

    The difference is that of `adjudge rubrics discriminate`: the mean score of right responses minus that of wrong
    ones, negated for pitfalls and negative weights.
    """
    by_answer = [[v.score for v in answer.verdicts if v.criterion == criterion.id] for answer in answers]
    scores = [own[0] for own in by_answer if len(own) == 1 and own[0] is not None]
    if not scores or len(scores) < len(correct):
        return None
    right = [score for score, known in zip(scores, correct, strict=True) if known is True]
    wrong = [score for score, known in zip(scores, correct, strict=True) if known is False]
    difference = None
    if right and wrong:
        sign = -1.0 if criterion.kind == "pitfall" or criterion.weight < 0 else 1.0
        difference = sign * (sum(right) / len(right) - sum(wrong) / len(wrong))
    return CriterionDiscrimination(max(scores) - min(scores), difference)


def assemble_rubric(
    parent: Sequence[Criterion], generated: Sequence[Criterion], accepted: Sequence[Criterion]
) -> RubricContent:
    """Assemble a rubric if only some of the new criteria were accepted.

    The generator drops the oldest evolved criteria to make room for new ones. For each new criterion that was not
    accepted, the newest of the dropped ones is restored.
    """
    unchanged, known = {one.id for one in generated}, {one.id for one in parent}
    dropped = [one.id for one in parent if one.id not in unchanged]
    rejected = sum(one.id not in known for one in generated) - len(accepted)
    restored = set(dropped[max(0, len(dropped) - rejected) :]) if rejected else set()
    kept = [one for one in parent if one.id in unchanged or one.id in restored]
    return RubricContent(criteria=(*kept, *accepted))


async def evolve(
    client: AsyncClient, groups: Sequence[SeenGroup], pinned: Callable[[str], str], config: EvolutionConfig
) -> EvolutionResult:
    """Evolve the rubrics of groups with different rubrics. Returns within about `config.deadline_s`."""
    work = _EvolutionRun(client, pinned, config)
    await work.run(groups)
    return work.evolution


class _RubricUnchanged(Exception):
    """Raised if a rubric stays unchanged, with the reason."""

    def __init__(self, reason: UnchangedReason, detail: str) -> None:
        super().__init__(detail)
        self.unchanged = UnchangedRubric(reason, detail)


class _EvolutionRun:
    def __init__(self, client: AsyncClient, pinned: Callable[[str], str], config: EvolutionConfig) -> None:
        self.evolution = EvolutionResult()
        self._client = client
        self._pinned = pinned
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def run(self, groups: Sequence[SeenGroup]) -> None:
        """Evolve the rubrics of all groups."""
        inputs: dict[str, dict[str, Any]] = {}
        for group in groups:
            with self._recording(group.reference):
                inputs[group.reference] = self._input(group)
        written: Mapping[str, Mapping[str, Any]] = {}
        if inputs:
            with self._recording(*inputs):
                async with self._until_deadline("no criteria were generated"), self._unchanged_on_error("service"):
                    written = await self._generate_criteria(inputs)
        await asyncio.gather(
            *[self._evolve(group, written[group.reference]) for group in groups if group.reference in written]
        )
        self.evolution.seconds = self._loop.time() - self._began

    @contextmanager
    def _recording(self, *references: str) -> Iterator[None]:
        """Record why rubrics stay unchanged."""
        try:
            yield
        except _RubricUnchanged as failed:
            self.evolution.unchanged |= dict.fromkeys(references, failed.unchanged)

    @property
    def _seconds_left(self) -> float:
        return self._config.deadline_s - (self._loop.time() - self._began)

    @asynccontextmanager
    async def _until_deadline(self, missed: str) -> AsyncIterator[None]:
        """Leave rubrics unchanged if it is not done by the deadline."""
        try:
            async with asyncio.timeout(max(0.0, self._seconds_left)):
                yield
        except TimeoutError:
            raise _RubricUnchanged("timeout", f"{missed} within {self._config.deadline_s:g} s") from None

    def _input(self, seen: SeenGroup) -> dict[str, Any]:
        """Build the generator's input for a group."""
        question = _question_text(seen.group.prompt)
        if not question.strip() or len(question) > MAX_QUESTION_CHARACTERS:
            detail = f"the prompt has {len(question)} characters; the generator reads 1 to {MAX_QUESTION_CHARACTERS}"
            raise _RubricUnchanged("question", detail)
        part = self._config.options.get("reasoning", "strip")
        opens = opened_by(seen.group.prompt, self._config.options.get("prompt_opens"))
        responses = [
            judged_content(as_response(one), part, opens).text[:MAX_RESPONSE_CHARACTERS] for one in seen.group.responses
        ]
        different = list(dict.fromkeys(one.strip() for one in responses))[:MAX_INPUT_RESPONSES]
        if len(different) < 2:
            raise _RubricUnchanged("alike", "all responses are the same, so there is nothing to compare")
        return {"rubric": self._pinned(seen.reference), "question": question, "responses": different}

    async def _generate_criteria(self, inputs: Mapping[str, dict[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """Run the operation, return its outputs by reference, and record why there is none for the others."""
        request = {
            "kind": "generate_rubrics",
            "generator": GENERATOR,
            "inputs": list(inputs.values()),
            "parameters": dict(self._config.parameters),
            "publish": False,
        }
        operation = await self._client.submit(request)
        seconds = self._seconds_left - (1.0 - _GENERATION_TIME_SHARE) * self._config.deadline_s
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                async for now in self._client.follow(operation.id):
                    operation = now
        except TimeoutError:
            operation = await self._client.cancel_operation(operation.id)
        by_index = {one["index"]: one async for one in self._client.operation_results(operation.id)}
        written: dict[str, Mapping[str, Any]] = {}
        for index, reference in enumerate(inputs):
            if by_index.get(index):
                written[reference] = by_index[index]
            else:
                self.evolution.unchanged[reference] = _explain_missing_output(operation)
        return written

    async def _evolve(self, seen: SeenGroup, written: Mapping[str, Any]) -> None:
        """Check, judge and publish a generated rubric, and record the outcome."""
        with self._recording(seen.reference):
            async with self._until_deadline("the new criteria were not judged and published"):
                pin, added = await self._build_version(seen, written)
            self.evolution.pins[seen.reference] = pin
            self.evolution.criteria += added

    async def _build_version(self, seen: SeenGroup, written: Mapping[str, Any]) -> tuple[str, int]:
        """Publish a new version, and return its reference and the number of new criteria."""
        async with self._unchanged_on_error("service"):
            parent = await self._client.rubric(self._pinned(seen.reference))
            generated = RubricContent.model_validate({"criteria": written["criteria"]}).criteria
            findings = written.get("lint")
            if findings is None:
                raise _RubricUnchanged("service", "the service is too old to lint what it writes; upgrade it")
        known = {one.id for one in parent.criteria}
        new = [one for one in generated if one.id not in known]
        wrong = {one["criterion"]: f"{one['code']}: {one['problem']}" for one in findings if one["severity"] == "error"}
        linted = _select_passing(new, lambda one: UnchangedRubric("lint", wrong[one.id]) if one.id in wrong else None)
        fit = _select_passing(linted, lambda one: self._check_suitability(parent, one))
        discriminations = await self._score_candidates(seen, assemble_rubric(parent.criteria, generated, fit), fit)
        accepted = _select_passing(fit, lambda one: self._check_discrimination(discriminations[one.id]))
        content = assemble_rubric(parent.criteria, generated, accepted)
        discrimination = {one.id: own._asdict() for one in accepted if (own := discriminations[one.id]) is not None}
        version = await self._publish(parent, content, written, cast(dict[str, Any], discrimination))
        return version.reference, len(accepted)

    def _check_suitability(self, parent: RubricVersion, criterion: Criterion) -> UnchangedRubric | None:
        try:
            check_rubric([*parent.criteria, criterion], self._config.mode, self._config.options.get("kinds"))
        except UnsuitableRubric as error:
            return UnchangedRubric("unsuitable", str(error))
        return None

    def _check_discrimination(self, measured: CriterionDiscrimination | None) -> UnchangedRubric | None:
        if measured is None:
            return UnchangedRubric("judge", "the judge gave no verdict on a new criterion for some responses")
        if measured.spread < self._config.min_spread:
            return UnchangedRubric(
                "same", f"the judge scores all responses alike by the new criteria, within {measured.spread:.2g}"
            )
        if measured.difference is not None and measured.difference < 0:
            return UnchangedRubric(
                "backwards",
                f"right responses score lower by the new criteria than wrong ones, by {-measured.difference:.2g}",
            )
        return None

    async def _score_candidates(
        self, seen: SeenGroup, content: RubricContent, new: Sequence[Criterion]
    ) -> dict[str, CriterionDiscrimination | None]:
        """Judge the group by the candidate version, with the judging options of the run."""
        try:
            async with self._unchanged_on_error("judge"):
                answer = await self._client.rewards(
                    [seen.group.model_copy(update={"rubric": content})],
                    mode=self._config.mode,
                    deadline_s=max(1.0, self._seconds_left),
                    **self._config.options,
                )
        except RubricRefused as error:
            raise _RubricUnchanged("unsuitable", str(error)) from error
        (group,) = answer.groups
        return {one.id: measure_discrimination(one, group.responses, seen.correct) for one in new}

    async def _publish(
        self, parent: RubricVersion, content: RubricContent, written: Mapping[str, Any], discrimination: dict[str, Any]
    ) -> RubricVersion:
        lineage = dict(written.get("lineage") or {})
        lineage["parameters"] = {**lineage.get("parameters", {}), "training_step": self._config.step}
        async with self._unchanged_on_error("publishing"):
            return await self._client.publish_rubric(
                parent.name,
                content.criteria,
                metadata={**written["metadata"], "discrimination": discrimination},
                tags=written.get("tags", ()),
                lineage=lineage,
                parent=parent.version,
            )

    @asynccontextmanager
    async def _unchanged_on_error(self, reason: UnchangedReason) -> AsyncIterator[None]:
        """Turn errors and invalid answers of the service into an unchanged rubric with this reason."""
        try:
            yield
        except RubricRefused:
            raise
        except (AdjudgeError, ValueError, LookupError, TypeError) as error:
            raise _RubricUnchanged(reason, f"{type(error).__name__}: {error}") from error


def _select_passing(
    criteria: Sequence[Criterion], check: Callable[[Criterion], UnchangedRubric | None]
) -> list[Criterion]:
    """Return the criteria that pass a check.

    If none passes, raise the reason of the first criterion, or preferably a failure.
    """
    problems = {one.id: check(one) for one in criteria}
    good = [one for one in criteria if problems[one.id] is None]
    if not good:
        reasons = [unchanged for unchanged in problems.values() if unchanged is not None]
        first = min(
            reasons,
            key=lambda unchanged: unchanged.reason not in FAILURE_REASONS,
            default=UnchangedRubric("discarded", "no criterion is new"),
        )
        raise _RubricUnchanged(*first)
    return good


def _explain_missing_output(operation: Operation) -> UnchangedRubric:
    if operation.state == "done":
        return UnchangedRubric(
            "discarded", f"the generated criteria were discarded: {', '.join(operation.progress.discarded) or 'empty'}"
        )
    if operation.state == "failed":
        return UnchangedRubric("writer", operation.problem or "the operation failed")
    return UnchangedRubric("timeout", f"generation took too long, and operation {operation.id} was cancelled")


def _question_text(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    messages = [(one.role, one.content or "") for one in prompt]
    return (
        messages[0][1] if len(messages) == 1 else "\n\n".join(f"{role.capitalize()}: {text}" for role, text in messages)
    )
