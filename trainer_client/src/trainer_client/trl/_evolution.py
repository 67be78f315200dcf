"""Evolves the rubrics of groups over HTTP: written by an operation, linted, discriminated, published.

Whatever fails leaves the rubric as it is, with a reason. Knows nothing of trainers and ranks.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

from trainer_client import AsyncClient
from trainer_client._options import RewardKeywords
from trainer_client.errors import AdjudgeError, RubricRefused
from trainer_client.rewards import UnsuitableRubric, check_rubric
from trainer_client.thinking import judged
from trainer_client.trl._seen_groups import SeenGroup
from trainer_client.wire import Criterion, Prompt, ResponseReward, RewardMode, RubricContent, RubricVersion, as_response
from trainer_client.wire.operations import Operation

GENERATOR = "evolving"
MOST_RESPONSES = 64
MOST_QUESTION_CHARACTERS = 12_000
MOST_RESPONSE_CHARACTERS = 50_000
"""What the generator takes."""

_WRITING_SHARE = 0.75
"""Of the time there is, how much the writing may take."""

Reason = Literal[
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
"""Why a rubric was kept as it is. `Kept` and `docs/training.md` say what each means."""

FAILURES: frozenset[Reason] = frozenset({"timeout", "service", "writer", "judge", "publishing"})
"""The reasons that are failures of the service, its models or its store, and not of what was written."""


class Kept(NamedTuple):
    """Why a rubric was kept, in a word and in a sentence."""

    reason: Reason
    detail: str


class Figures(NamedTuple):
    """What the judge's scores say of a criterion.

    Attributes:
        spread: the highest less the lowest score of the responses, 0 to 1.
        difference: how much better right responses do than wrong ones, -1 to 1; None where either kind is missing.
    """

    spread: float
    difference: float | None


@dataclass(frozen=True, slots=True)
class Terms:
    """What rubrics are evolved on.

    Attributes:
        mode, options: how the run is judged.
        parameters: of the generator.
        least_difference: what the scores of a new criterion must differ by.
        deadline_s: seconds for all of it.
        step: the training step, which the lineage names.
    """

    mode: RewardMode
    options: RewardKeywords
    parameters: Mapping[str, Any]
    least_difference: float
    deadline_s: float
    step: int


@dataclass(slots=True)
class Evolution:
    """What came of it: the new pin of each rubric that evolved, and why each other was kept, by reference."""

    pins: dict[str, str] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    criteria: int = 0
    seconds: float = 0.0

    @property
    def failures(self) -> dict[str, Kept]:
        """Those that were kept because something failed."""
        return {reference: kept for reference, kept in self.kept.items() if kept.reason in FAILURES}


def figures_of(
    criterion: Criterion, answers: Sequence[ResponseReward], correct: Sequence[bool | None]
) -> Figures | None:
    """Measure how a criterion tells N judged responses apart; None where a verdict is missing.

    The difference is that of `adjudge rubrics discriminate`: mean score of right responses less that of wrong ones,
    turned round where a satisfied criterion is bad news.
    """
    found = [[v.score for v in answer.verdicts if v.criterion == criterion.id] for answer in answers]
    scores = [own[0] for own in found if len(own) == 1 and own[0] is not None]
    if not scores or len(scores) < len(correct):
        return None
    right = [score for score, known in zip(scores, correct, strict=True) if known is True]
    wrong = [score for score, known in zip(scores, correct, strict=True) if known is False]
    difference = None
    if right and wrong:
        turned = -1.0 if criterion.kind == "pitfall" or criterion.weight < 0 else 1.0
        difference = turned * (sum(right) / len(right) - sum(wrong) / len(wrong))
    return Figures(max(scores) - min(scores), difference)


def assembled(parent: Sequence[Criterion], made: Sequence[Criterion], accepted: Sequence[Criterion]) -> RubricContent:
    """Put a rubric together of which only some of the new criteria were accepted.

    The generator drops the oldest evolved criteria to make room for new ones; for each new one that was not accepted,
    the newest of these comes back.
    """
    kept, known = {one.id for one in made}, {one.id for one in parent}
    dropped = [one.id for one in parent if one.id not in kept]
    spared = sum(one.id not in known for one in made) - len(accepted)
    back = set(dropped[max(0, len(dropped) - spared) :]) if spared else set()
    stay = [one for one in parent if one.id in kept or one.id in back]
    return RubricContent(criteria=(*stay, *accepted))


async def evolve(
    client: AsyncClient, groups: Sequence[SeenGroup], pinned: Callable[[str], str], terms: Terms
) -> Evolution:
    """Evolve the rubric of each group, which are different ones; returns within `terms.deadline_s`, or little later."""
    work = _Work(client, pinned, terms)
    await work.run(groups)
    return work.evolution


class _Failed(Exception):
    """A rubric is kept; carries why."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.kept = Kept(reason, detail)


class _Work:
    def __init__(self, client: AsyncClient, pinned: Callable[[str], str], terms: Terms) -> None:
        self.evolution = Evolution()
        self._client = client
        self._pinned = pinned
        self._terms = terms
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def run(self, groups: Sequence[SeenGroup]) -> None:
        """Do all of it."""
        asked: list[SeenGroup] = []
        inputs: list[dict[str, Any]] = []
        for group in groups:
            given = self._input(group)
            if isinstance(given, Kept):
                self.evolution.kept[group.reference] = given
            else:
                asked.append(group)
                inputs.append(given)
        if asked:
            written: list[dict[str, Any] | Kept]
            try:
                async with asyncio.timeout(self._terms.deadline_s), self._failing("service"):
                    written = await self._written(inputs)
            except TimeoutError:
                written = [Kept("timeout", f"no rubric within {self._terms.deadline_s:g} s")] * len(asked)
            except _Failed as failed:
                written = [failed.kept] * len(asked)
            await asyncio.gather(*[self._one(group, one) for group, one in zip(asked, written, strict=True)])
        self.evolution.seconds = self._loop.time() - self._began

    def _input(self, seen: SeenGroup) -> dict[str, Any] | Kept:
        """What the generator is given of a group, or why it cannot be asked."""
        question = _question(seen.group.prompt)
        if not question.strip() or len(question) > MOST_QUESTION_CHARACTERS:
            detail = f"the prompt has {len(question)} characters; the generator reads 1 to {MOST_QUESTION_CHARACTERS}"
            return Kept("question", detail)
        part = self._terms.options.get("reasoning", "strip")
        responses = [judged(as_response(one), part).text[:MOST_RESPONSE_CHARACTERS] for one in seen.group.responses]
        different = list(dict.fromkeys(one.strip() for one in responses))[:MOST_RESPONSES]
        if len(different) < 2:
            return Kept("alike", "all responses are the same, so that nothing can be compared")
        return {"rubric": self._pinned(seen.reference), "question": question, "responses": different}

    async def _written(self, inputs: Sequence[dict[str, Any]]) -> list[dict[str, Any] | Kept]:
        """What the operation wrote for each input, or why it wrote nothing."""
        request = {
            "kind": "generate_rubrics",
            "generator": GENERATOR,
            "inputs": inputs,
            "parameters": dict(self._terms.parameters),
            "publish": False,
        }
        operation = await self._client.submit(request)
        seconds = _WRITING_SHARE * self._terms.deadline_s - (self._loop.time() - self._began)
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                async for now in self._client.follow(operation.id):
                    operation = now
        except TimeoutError:
            operation = await self._client.cancel_operation(operation.id)
        results = [one async for one in self._client.operation_results(operation.id)]
        found: dict[Any, dict[str, Any]] = {one["index"]: one for one in results}
        return [found.get(index) or _nothing(operation) for index in range(len(inputs))]

    async def _one(self, seen: SeenGroup, written: dict[str, Any] | Kept) -> None:
        """Take a written rubric to its end."""
        if isinstance(written, Kept):
            self.evolution.kept[seen.reference] = written
            return
        left = self._terms.deadline_s - (self._loop.time() - self._began)
        try:
            async with asyncio.timeout(max(0.0, left)):
                pin, added = await self._evolved(seen, written)
        except TimeoutError:
            detail = f"it was not judged and published within {self._terms.deadline_s:g} s"
            self.evolution.kept[seen.reference] = Kept("timeout", detail)
        except _Failed as failed:
            self.evolution.kept[seen.reference] = failed.kept
        else:
            self.evolution.pins[seen.reference] = pin
            self.evolution.criteria += added

    async def _evolved(self, seen: SeenGroup, written: Mapping[str, Any]) -> tuple[str, int]:
        """The reference of the new version, and how many criteria are new."""
        async with self._failing("service"):
            parent = await self._client.rubric(self._pinned(seen.reference))
            made = RubricContent.model_validate({"criteria": written["criteria"]}).criteria
            findings = written.get("lint")
            if findings is None:
                raise _Failed("service", "it does not lint what it writes, as an older release; upgrade it")
        known = {one.id for one in parent.criteria}
        new = [one for one in made if one.id not in known]
        wrong = {one["criterion"]: f"{one['code']}: {one['problem']}" for one in findings if one["severity"] == "error"}
        linted = _those(new, lambda one: Kept("lint", wrong[one.id]) if one.id in wrong else None)
        fit = _those(linted, lambda one: self._unsuitable(parent, one))
        figures = await self._figures(seen, assembled(parent.criteria, made, fit), fit)
        accepted = _those(fit, lambda one: self._undiscriminating(figures[one.id]))
        content = assembled(parent.criteria, made, accepted)
        told = {one.id: own._asdict() for one in accepted if (own := figures[one.id]) is not None}
        version = await self._published(parent, content, written, cast(dict[str, Any], told))
        return version.reference, len(accepted)

    def _unsuitable(self, parent: RubricVersion, criterion: Criterion) -> Kept | None:
        try:
            check_rubric([*parent.criteria, criterion], self._terms.mode, self._terms.options.get("kinds"))
        except UnsuitableRubric as error:
            return Kept("unsuitable", str(error))
        return None

    def _undiscriminating(self, figures: Figures | None) -> Kept | None:
        if figures is None:
            return Kept("judge", "the judge gave no verdict on a new criterion for some responses")
        if figures.spread < self._terms.least_difference:
            return Kept("same", f"the judge scores all responses alike by it, within {figures.spread:.2g}")
        if figures.difference is not None and figures.difference < 0:
            return Kept("backwards", f"right responses do worse by it than wrong ones, by {-figures.difference:.2g}")
        return None

    async def _figures(
        self, seen: SeenGroup, content: RubricContent, new: Sequence[Criterion]
    ) -> dict[str, Figures | None]:
        """Have the group judged by what may become the next version, as the run is judged."""
        left = self._terms.deadline_s - (self._loop.time() - self._began)
        try:
            async with self._failing("judge"):
                answer = await self._client.rewards(
                    [seen.group.model_copy(update={"rubric": content})],
                    mode=self._terms.mode,
                    deadline_s=max(1.0, left),
                    **self._terms.options,
                )
        except RubricRefused as error:
            raise _Failed("unsuitable", str(error)) from error
        (group,) = answer.groups
        return {one.id: figures_of(one, group.responses, seen.correct) for one in new}

    async def _published(
        self, parent: RubricVersion, content: RubricContent, written: Mapping[str, Any], told: dict[str, Any]
    ) -> RubricVersion:
        lineage = dict(written.get("lineage") or {})
        lineage["parameters"] = {**lineage.get("parameters", {}), "training_step": self._terms.step}
        async with self._failing("publishing"):
            return await self._client.publish_rubric(
                parent.name,
                content.criteria,
                metadata={**written["metadata"], "discrimination": told},
                tags=written.get("tags", ()),
                lineage=lineage,
                parent=parent.version,
            )

    @asynccontextmanager
    async def _failing(self, reason: Reason) -> AsyncIterator[None]:
        """Have what the service refuses, or answers nonsense to, keep the rubric for this reason."""
        try:
            yield
        except RubricRefused:
            raise
        except (AdjudgeError, ValueError, LookupError, TypeError) as error:
            raise _Failed(reason, f"{type(error).__name__}: {error}") from error


def _those(criteria: Sequence[Criterion], wrong: Callable[[Criterion], Kept | None]) -> list[Criterion]:
    """Give those that nothing is wrong with.

    Raises:
        _Failed: there is none; with what is wrong with the first, a failure of the judge before all else.
    """
    found = {one.id: wrong(one) for one in criteria}
    good = [one for one in criteria if found[one.id] is None]
    if not good:
        reasons = [kept for kept in found.values() if kept is not None]
        first = min(reasons, key=lambda kept: kept.reason not in FAILURES, default=Kept("discarded", "nothing is new"))
        raise _Failed(*first)
    return good


def _nothing(operation: Operation) -> Kept:
    if operation.state == "done":
        return Kept(
            "discarded", f"what was written was discarded: {', '.join(operation.progress.discarded) or 'empty'}"
        )
    if operation.state == "failed":
        return Kept("writer", operation.problem or "the operation failed")
    return Kept("timeout", f"it was not written in time, and operation {operation.id} was cancelled")


def _question(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    said = [(one.role, one.content or "") for one in prompt]
    return said[0][1] if len(said) == 1 else "\n\n".join(f"{role.capitalize()}: {text}" for role, text in said)
