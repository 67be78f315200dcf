"""Contenders: methods of asking a model whether a response meets a criterion, all with the same engine.

A contender turns an item into a system message, a shared text and a question, and reads a verdict from the reply.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.agreement.items import Item
from benchmarks.agreement.store import StoredEngine, StoredReply
from judge_server.judging.calibration import builtin_calibrations
from judge_server.judging.plan import GroupPlanner, ResponsePlan
from judge_server.judging.preparation import Preparer
from judge_server.judging.prompts.library import TemplateLibrary
from judge_server.judging.questions import YES_NO, JudgingConfig
from judge_server.judging.results import collect
from judge_server.judging.shown import GroupContext
from judge_server.ports import Batch, Call, CallFailure, TokenChoice
from judge_server.scheduling.executor import LocalExecutor
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.judge import Judge
from judge_server.scoring.verdicts import verdict_of
from trainer_client.text.thinking import JudgedContent
from trainer_client.wire import Criterion, JudgingProtocol
from trainer_client.wire.criteria import JudgeVerification

DEADLINE_S = 1800.0
"""Deadline of one judgement, long enough for a slow machine."""

GROUP = 8
"""How many responses share a call about an empty one, for tokens per judgement: those of a group in training."""


@dataclass(frozen=True, slots=True)
class ItemVerdict:
    """A contender's verdict on an item.

    Attributes:
        satisfied: the verdict; for a pitfall, whether the mistake is made.
        probability: the probability of yes as the contender reports it.
        raw_probability: the model's yes / (yes + no), before calibration; relative to an empty response where the
            contender asks about one.
        asked_probability: the model's yes / (yes + no) about the response.
        content_free_probability: the same about an empty response; None if it was not asked.
        choice_mass: the model's total probability of yes and no.
        tokens_computed, tokens_reused: prompt tokens that were computed, and reused; with a `GROUP`-th of those of a
            call about an empty response.
        seconds: the time of the call.
    """

    satisfied: bool
    probability: float
    raw_probability: float
    asked_probability: float
    content_free_probability: float | None
    choice_mass: float
    tokens_computed: float
    tokens_reused: float
    seconds: float


class Contender(Protocol):
    """A method of asking for verdicts."""

    async def start(self) -> None:
        """Prepare for judging."""

    def batches(self, item: Item) -> tuple[Batch, ...]:
        """Build the engine's batches of one call each about an item, the one about its response first."""

    async def judge(self, item: Item) -> ItemVerdict | CallFailure:
        """Return the verdict on an item, or the failure."""

    async def close(self) -> None:
        """Release all resources except the engine."""


class PlainContender:
    """An ordinary hand-written question, without fences or calibration; yes from a probability of 0.5."""

    SYSTEM = "You are a strict grader. Answer yes or no."

    def __init__(self, engine: StoredEngine) -> None:
        self._engine = engine

    async def start(self) -> None:
        """Start the engine."""
        await self._engine.start()

    def batches(self, item: Item) -> tuple[Batch, ...]:
        """Build the batch with the item as plain text."""
        parts = [f"Task:\n{item.prompt}"]
        if item.grounding is not None:
            parts.append(f"Source:\n{item.grounding}")
        if item.reference_answer is not None:
            parts.append(f"Reference answer:\n{item.reference_answer}")
        parts.append(f"Response:\n{item.response}")
        mistake = "The response makes this mistake: " if item.kind == "pitfall" else ""
        question = f"Criterion: {mistake}{item.criterion}\n\nIs it met? Answer yes or no."
        shared = "".join(f"{part}\n\n" for part in parts)
        return (Batch(self.SYSTEM, shared, (Call(question, TokenChoice(YES_NO)),)),)

    async def judge(self, item: Item) -> ItemVerdict | CallFailure:
        """Ask the engine, and compare the probability of yes with that of no."""
        stored = await self._engine.ask(*self.batches(item))
        if isinstance(stored, CallFailure):
            return stored
        if stored.raw_probability is None:
            return CallFailure("parse", "the judge put no probability on yes or no")
        return item_verdict(stored, stored.raw_probability >= 0.5, stored.raw_probability, stored.raw_probability)

    async def close(self) -> None:
        """Do nothing."""


class AdjudgeContender:
    """Judging as in the service: its planner, templates, fences, queue and parsing of replies.

    Args:
        engine: the engine.
        templates: a folder of templates that replace the default ones; None for the default templates.
        protocol: the judging protocol.
        contextual: whether to judge relative to an empty response.
    """

    def __init__(
        self,
        engine: StoredEngine,
        templates: Path | None = None,
        protocol: JudgingProtocol = "binary",
        contextual: bool = False,
    ) -> None:
        self._engine = engine
        library = TemplateLibrary(None if templates is None else templates.resolve().parent)
        self._judge = Judge(LocalExecutor(engine), MemoryCache(), preparer=Preparer(library, builtin_calibrations()))
        self._config = JudgingConfig(
            protocol,
            template=None if templates is None else templates.resolve().name,
            contextual=contextual,
        )

    async def start(self) -> None:
        """Start the engine and check the templates. Raises `InvalidRequest` if they cannot be used."""
        await self._judge.start()
        self._judge.prepared(self._config)

    def batches(self, item: Item) -> tuple[Batch, ...]:
        """Build the batches with the service's planner."""
        plan = self._plan(item)
        return (plan.batch,) if plan.content_free is None else (plan.batch, plan.content_free.batch)

    async def judge(self, item: Item) -> ItemVerdict | CallFailure:
        """Judge the item with the service's judge, and return the verdict as in an answer of the service."""
        plan = self._plan(item)
        outcomes = await collect(self._judge.judge([plan], asyncio.get_running_loop().time() + DEADLINE_S))
        (slot,) = plan.pending
        outcome = outcomes.by_digest[slot.digests[0]]
        if isinstance(outcome, CallFailure):
            return outcome
        verdict, stored = verdict_of(slot, outcomes), self._engine.find(plan.batch)
        if stored is None:
            raise RuntimeError(f"the verdict has no stored reply: {outcome}")
        if stored.raw_probability is None or verdict.score is None or verdict.probability is None:
            raise RuntimeError(f"the verdict has no probability: {verdict}; use the protocol binary or stepwise")
        raw = verdict.raw_probability
        found = item_verdict(
            stored, verdict.score >= 0.5, verdict.probability, stored.raw_probability if raw is None else raw
        )
        for batch in self.batches(item)[1:]:
            shared = self._engine.find(batch)
            assert shared is not None, "the service has asked about the empty response"
            found = replace(
                found,
                content_free_probability=shared.raw_probability,
                tokens_computed=found.tokens_computed + shared.tokens_computed / GROUP,
                tokens_reused=found.tokens_reused + shared.tokens_reused / GROUP,
                seconds=found.seconds + shared.seconds / GROUP,
            )
        return found

    async def close(self) -> None:
        """Close the judge."""
        await self._judge.close()

    def _plan(self, item: Item) -> ResponsePlan:
        criterion = Criterion.model_validate(
            {
                "id": "c",
                "description": item.criterion,
                "kind": item.kind,
                "verification": JudgeVerification(method="judge"),
            }
        )
        context = GroupContext(item.prompt, item.grounding, item.reference_answer, item.ground_truth)
        planner = GroupPlanner(self._judge.prepared(self._config), context, (criterion,))
        return planner.plan(JudgedContent(item.response, 0, None))


def item_verdict(stored: StoredReply, satisfied: bool, probability: float, raw_probability: float) -> ItemVerdict:
    """Build a verdict from a stored reply, with the reply's cost."""
    asked = raw_probability if stored.raw_probability is None else stored.raw_probability
    return ItemVerdict(
        satisfied,
        probability,
        raw_probability,
        asked,
        None,
        stored.choice_mass,
        stored.tokens_computed,
        stored.tokens_reused,
        stored.seconds,
    )


class UnknownContender(ValueError):
    """The contender does not exist; the message lists the known ones."""


CONTENDERS: dict[str, Callable[[StoredEngine], Contender]] = {
    "plain": PlainContender,
    "adjudge": AdjudgeContender,
    "contextual": partial(AdjudgeContender, contextual=True),
    "stepwise": partial(AdjudgeContender, protocol="stepwise"),
    "contextual-stepwise": partial(AdjudgeContender, protocol="stepwise", contextual=True),
}
"""The contenders by name: `adjudge` and `stepwise` judge as the service does by default, the others with or without an
empty response to compare with. The name `adjudge:DIR` is also accepted: the service with the templates in a folder."""

DEFAULT_CONTENDERS = ("plain", "adjudge")


def make_contender(name: str, engine: StoredEngine) -> Contender:
    """Create a contender by name: one of `CONTENDERS`, or `adjudge:DIR`.

    Raises:
        UnknownContender: the name is unknown.
    """
    kind, _, folder = name.partition(":")
    if kind == "adjudge" and folder:
        return AdjudgeContender(engine, Path(folder))
    if name not in CONTENDERS:
        known = ", ".join(CONTENDERS)
        raise UnknownContender(f"there is no contender {name!r}; use {known}, or adjudge:DIR (a folder of templates)")
    return CONTENDERS[name](engine)
