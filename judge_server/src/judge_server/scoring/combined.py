"""Cascades and panels as judges: they plan with their members, ask them, and combine the verdicts.

Each member is a judge of its own, with its queue, its cache and its single flight, so that its verdicts are shared with
requests that name it directly. In a cascade, the large judge is asked as soon as the small one is done with a response,
about all of the response's escalated criteria in one batch.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Literal

from prometheus_client import Counter

from judge_server.errors import CannotLoad, CannotSleep, NotReady, invalid_field
from judge_server.judging.calibration import StoredCalibration
from judge_server.judging.combining import (
    CascadeRule,
    CombinationRule,
    CombinedConfig,
    CombinedPlan,
    StoredRule,
    combined_verdicts,
    only,
    only_checks,
)
from judge_server.judging.plan import ResponsePlan
from judge_server.judging.preparation import check_votes
from judge_server.judging.questions import JudgingConfig, PreparedConfig
from judge_server.judging.results import (
    ANONYMOUS_CALLER,
    NO_COSTS,
    Caller,
    CallOutcome,
    Judged,
    JudgingProgress,
    MemberCosts,
    Outcomes,
)
from judge_server.ports import Batch, CallFailure, Capabilities, EngineIdentity, JudgeResult, MemberView
from judge_server.scheduling.metrics import JudgeMetrics
from judge_server.scheduling.sleep import Lease, SleepReport, hold_all, together
from judge_server.scheduling.weights import WeightsOrder, WeightsReport
from judge_server.scoring.judge import Judge, JudgeKind
from trainer_client.wire import JudgingOptions, UsedProtocol
from trainer_client.wire.judges import SleepState

_COMBINABLE = ("binary", "stepwise", "comparison")
"""The protocols whose verdicts are a yes or a no with a probability."""


class CombinedMetrics(JudgeMetrics):
    """The metrics of a cascade or panel. What its members cost is in their own metrics too, with all else they do."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        counter = partial(Counter, registry=self._registry)
        self._verdicts = counter(
            "adjudge_member_verdicts",
            "Distinct verdicts that a member of a cascade or panel was asked for; in a cascade, those of the large "
            "judge are the escalated ones",
            ["member", "outcome"],
        )
        self._member_calls = counter("adjudge_member_calls", "Judge calls of a cascade or panel, by member", ["member"])
        self._member_tokens = counter(
            "adjudge_member_prompt_tokens",
            "Prompt tokens of a cascade or panel, by member: computed, or reused",
            ["member", "source"],
        )
        self._compared = counter("adjudge_members_compared", "Verdicts on which at least two members gave a score")
        self._disagreed = counter("adjudge_members_disagreed", "Verdicts on which members disagreed")

    def combined(self, caller: Caller, outcomes: Outcomes) -> None:
        """Record a request's verdicts, and the part of each member."""
        verdicts = Outcomes(outcomes.by_digest, outcomes.cached, outcomes.joined, checks=outcomes.checks)
        self.request(caller, verdicts, len(verdicts.by_digest))
        for name, member in outcomes.members.items():
            self._verdicts.labels(name, "ok").inc(member.verdicts - member.failed)
            self._verdicts.labels(name, "failed").inc(member.failed)
            self._member_calls.labels(name).inc(member.costs.calls)
            self._member_tokens.labels(name, "computed").inc(member.costs.tokens_computed)
            self._member_tokens.labels(name, "reused").inc(member.costs.tokens_reused)
        self._compared.inc(outcomes.compared)
        self._disagreed.inc(outcomes.disagreed)


@dataclass(frozen=True, slots=True)
class MemberExecutors:
    """Combined status of the members' executors."""

    members_of: tuple[Judge, ...]

    @property
    def max_calls(self) -> int:
        """How many calls of one request the member with the shortest queue takes."""
        return min(judge.executor.max_calls for judge in self.members_of)

    @property
    def unavailable_reason(self) -> str:
        """Why a member cannot answer calls at the moment; empty if all can."""
        return next((reason for judge in self.members_of if (reason := judge.executor.unavailable_reason)), "")

    @property
    def sleep_state(self) -> SleepState:
        """The state that all members have, or whether they are on their way."""
        return together(SleepReport(judge.executor.sleep_state) for judge in self.members_of).state

    async def hold(self, lease: Lease) -> SleepReport:
        """Have all members take the lease, or none if one cannot sleep.

        Raises the first error, once all have followed or failed.
        """
        try:
            return await hold_all([judge.executor.hold(lease) for judge in self.members_of])
        except CannotSleep:
            ended = lease._replace(seconds=0.0)
            await asyncio.gather(*[judge.executor.hold(ended) for judge in self.members_of], return_exceptions=True)
            raise

    @property
    def weights(self) -> WeightsReport:
        """The weights of all members, as those of one model."""
        of = [judge.executor.weights for judge in self.members_of]
        return WeightsReport(", ".join(one.model for one in of), "+".join(one.tag for one in of))

    async def load(self, order: WeightsOrder) -> WeightsReport:
        """Raise `CannotLoad`: each member has weights of its own."""
        raise CannotLoad("it is made of other judges; load the weights of one of these, by its name")

    @asynccontextmanager
    async def one_version(self, deadline: float) -> AsyncIterator[None]:
        """Keep the weights of all members as they are. They are held in one order, so that none waits in a circle."""
        async with AsyncExitStack() as held:
            for judge in sorted(self.members_of, key=id):
                await held.enter_async_context(judge.executor.one_version(deadline))
            yield

    def members(self) -> list[MemberView]:
        """Return nothing: the pools of endpoints are the members' own."""
        return []

    async def count_tokens(self, batch: Batch) -> int:
        """Return the most tokens that a member counts."""
        return max([await judge.executor.count_tokens(batch) for judge in self.members_of])

    async def ready(self) -> bool:
        """Return whether all members could answer a call now."""
        return all([await judge.executor.ready() for judge in self.members_of])

    async def should_receive_traffic(self) -> bool:
        """Return whether this replica should receive traffic, as far as the members are concerned."""
        return all([await judge.executor.should_receive_traffic() for judge in self.members_of])


class CombinedJudge:
    """A cascade or panel of judges. The caller starts and closes the members.

    Args:
        members: the judges by name; of a cascade, the small one and then the large one.
        kind: what they form.
        rule: how their verdicts are combined; None if a stored version says so, which `stored_rule` must then hold.
        reference: the name of that version.
    """

    stored_calibrations: Sequence[StoredCalibration] = ()

    def __init__(
        self,
        members: Mapping[str, Judge],
        kind: Literal["cascade", "panel"],
        rule: CombinationRule | None,
        *,
        reference: str | None = None,
    ) -> None:
        self.kind: JudgeKind = kind
        self.reference = reference
        self.members: Mapping[str, Judge] = dict(members)
        self.names = tuple(members)
        self.judges = tuple(members.values())
        self.stored_rule: StoredRule | None = None
        self._rule = rule
        first = self.judges[0]
        self.executor = MemberExecutors(self.judges)
        self.cache, self.checker, self.preparer, self.clock = first.cache, first.checker, first.preparer, first.clock
        self.metrics = CombinedMetrics(self.clock)

    @property
    def rule(self) -> CombinationRule:
        """How verdicts are combined now."""
        rule = self._rule if self.stored_rule is None else self.stored_rule.rule
        assert rule is not None, "the stored rule has not been loaded"
        return rule

    @property
    def identity(self) -> EngineIdentity:
        """The model's name is made of the members' names; a capability is there if all members have it."""
        of = [judge.identity for judge in self.judges]
        flags = [asdict(one.capabilities) for one in of]
        return EngineIdentity(
            model=f"{self.kind}({', '.join(one.model for one in of)})",
            weights_digest="",
            engine=self.kind,
            chat_template_digest="",
            decoding="",
            context_tokens=min(one.context_tokens for one in of),
            concurrent_batches=min(one.concurrent_batches for one in of),
            capabilities=Capabilities(**{name: all(one[name] for one in flags) for name in flags[0]}),
        )

    def prepared(self, config: JudgingConfig) -> CombinedConfig:
        """Return the members' templates, calibrations and fingerprints for a configuration.

        Raises:
            InvalidRequest: as `Judge.prepared` for a member; or the verdicts of this configuration cannot be combined;
                or the band or error rates in use were fitted for other judges or another configuration.
        """
        self._refuse_what_cannot_be_combined(config)
        members = [judge.prepared(config) for judge in self.judges]
        self._refuse_other_judges(config, members)
        return CombinedConfig.of(members, self.rule, self.identity.model)

    def refused_calibrations(self) -> list[str]:
        """Return the stored calibrations of members that were fitted for other weights than they have now."""
        return [reference for judge in self.judges for reference in judge.refused_calibrations()]

    def prepared_for(self, options: JudgingOptions, protocol: UsedProtocol) -> CombinedConfig:
        """Return the prepared configuration for a request's options; raises as `check_votes` and `prepared` do."""
        config = JudgingConfig.of(options, protocol)
        prepared = self.prepared(config)
        for judge in self.judges:
            check_votes(judge.identity, config, options.votes)
        return prepared

    def _refuse_what_cannot_be_combined(self, config: JudgingConfig) -> None:
        alone = f"or name one of its judges: {', '.join(self.names)}"
        if config.protocol not in _COMBINABLE:
            message = f"a {self.kind} combines verdicts of yes or no, not {config.protocol}; use binary or stepwise, "
            raise invalid_field("judging.protocol", message + alone)
        if config.per_call != 1:
            message = f"a {self.kind} needs a probability for each criterion; ask for one criterion per call, "
            raise invalid_field("judging.criteria_per_call", message + alone)
        if self.kind == "cascade" and not self.judges[0].identity.capabilities.logprobs:
            raise invalid_field(
                "judge",
                f"{self.names[0]!r} decides by its probability, and {self.judges[0].identity.model} returns none; make "
                f"a cascade whose first judge returns probabilities, {alone}",
            )

    def _refuse_other_judges(self, config: JudgingConfig, members: Sequence[PreparedConfig]) -> None:
        stored = self.stored_rule
        if stored is None or stored.judges == tuple([one.fingerprint for one in members]):
            return
        reference = f"{stored.name}@{stored.version}"
        if stored.config != config.recorded():
            message = f"{reference} was fitted for other judging options than this request has; fit one for these"
        else:
            changed = [
                name
                for name, before, one in zip(self.names, stored.judges, members, strict=False)
                if before != one.fingerprint
            ]
            message = (
                f"{reference} was fitted for other judges: {', '.join(changed) or 'their number'} has changed since, "
                f"or its calibration has; fit it again with `adjudge {self.kind}`"
            )
        raise invalid_field("judge", message)

    def judge(
        self,
        plans: Sequence[ResponsePlan],
        deadline: float,
        *,
        caller: Caller = ANONYMOUS_CALLER,
        tick_s: float | None = None,
    ) -> AsyncGenerator[Judged, None]:
        """Ask the members about the plans, and combine their verdicts; see `Judge.judge`.

        A member that is lost fails the verdicts that need it, unless all of a panel or the small judge of a cascade is.

        Raises:
            Overloaded: the queue of a member has no room for the calls. Verdicts that are there already are cached.
            NotReady: the small judge of a cascade, or every judge of a panel, is not available.
        """
        combined = [plan for plan in plans if isinstance(plan, CombinedPlan)]
        if len(combined) < len(plans):  # only programs are asked
            return self.judges[0].judge(plans, deadline, caller=caller, tick_s=tick_s)
        progress = JudgingProgress()
        return progress.follow(_CombinedRequest(self, combined, deadline, caller, progress).run, tick_s)


AnyJudge = Judge | CombinedJudge
"""A judge: one model, or several as a cascade or panel."""


class _CombinedRequest:
    """One request to a cascade or panel: which members are still to answer about which response."""

    def __init__(
        self,
        judge: CombinedJudge,
        plans: Sequence[CombinedPlan],
        deadline: float,
        caller: Caller,
        progress: JudgingProgress,
    ) -> None:
        self._judge, self._plans, self._progress = judge, plans, progress
        self._deadline, self._caller = deadline, caller
        self._first = (0,) if judge.kind == "cascade" else tuple(range(len(judge.names)))
        self._missing = [len(self._first) for _ in plans]
        self._known: list[dict[bytes, CallOutcome]] = [{} for _ in judge.names]
        self._cached: list[set[bytes]] = [set() for _ in judge.names]
        self._joined: list[set[bytes]] = [set() for _ in judge.names]
        self._escalated: dict[int, set[bytes]] = {}
        self._waiting: list[int] = []
        self._costs = [NO_COSTS for _ in judge.names]
        self._said: list[list[CallOutcome | None]] = []
        self._lost = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Ask the members until every plan has its verdicts."""
        decided: dict[bytes, CallOutcome] = dict([known for plan in self._plans for known in plan.decided])
        self._progress.add(Outcomes(decided))
        for plan in self._plans:
            self._progress.track(plan)
        for place in self._first:
            self._tasks.add(asyncio.create_task(self._ask(place, range(len(self._plans)))))
        checks = [only_checks(plan) for plan in self._plans if plan.checks]
        if checks:
            self._tasks.add(asyncio.create_task(self._check(checks)))
        try:
            while self._tasks:
                finished, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                self._tasks -= finished
                for task in finished:
                    task.result()
        finally:
            left = list(self._tasks)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._progress.add(self._account())
            self._judge.metrics.combined(self._caller, self._progress.total())

    async def _check(self, plans: Sequence[ResponsePlan]) -> None:
        """Have programs decide their part of the plans."""
        async with aclosing(self._judge.judges[0].judge(plans, self._deadline, caller=self._caller)) as judging:
            async for judged in judging:
                found = judged.outcomes
                self._progress.add(Outcomes(found.by_digest, found.cached, checks=found.checks))

    async def _ask(self, place: int, indices: Sequence[int]) -> None:
        """Have a member judge its part of these plans."""
        name, member = self._judge.names[place], self._judge.judges[place]
        parts = [self._part(place, index) for index in indices]
        found, open_ = Outcomes(), set(range(len(indices)))
        try:
            async with aclosing(member.judge(parts, self._deadline, caller=self._caller)) as judging:
                async for judged in judging:
                    found.add(judged.outcomes)
                    self._costs[place] += judged.outcomes.costs
                    self._progress.charge(judged.outcomes.costs)
                    open_.difference_update(judged.complete)
                    for number in judged.complete:
                        self._settle(place, indices[number], parts[number], found)
        except NotReady as error:
            self._lost += 1
            if self._lost == len(self._first) and place in self._first:
                raise
            failure = CallFailure("engine", f"the judge {name!r} is not available: {error}")
            for part in parts:
                for digest in _digests(part):
                    found.by_digest.setdefault(digest, failure)
            for number in open_:
                self._settle(place, indices[number], parts[number], found)

    def _part(self, place: int, index: int) -> ResponsePlan:
        plan = self._plans[index].members[place]
        return only(plan, self._escalated[index]) if index in self._escalated else plan

    async def _escalate(self) -> None:
        """Ask the large judge about all responses that wait for it. It runs a turn after the first began to wait."""
        waiting, self._waiting = self._waiting, []
        await self._ask(1, waiting)

    def _settle(self, place: int, index: int, part: ResponsePlan, found: Outcomes) -> None:
        """Take over what a member said about a response, and in a cascade find out what the large judge is to say."""
        digests = _digests(part)
        self._known[place].update({digest: found.by_digest[digest] for digest in digests})
        self._cached[place] |= _made_of(part, found.cached)
        self._joined[place] |= _made_of(part, found.cached, found.joined) - self._cached[place]
        plan = self._plans[index]
        if isinstance(plan.rule, CascadeRule) and index not in self._escalated:
            needed = {
                large
                for _, ((small, _), (large, _)) in combined_verdicts(plan)
                if plan.rule.escalates(self._known[0][small])
            }
            if needed:
                self._escalated[index] = needed
                self._waiting.append(index)
                if len(self._waiting) == 1:
                    self._tasks.add(asyncio.create_task(self._escalate()))
                return
        self._missing[index] -= 1
        if not self._missing[index]:
            self._combine(index)

    def _combine(self, index: int) -> None:
        """Combine the verdicts on a response, once all members that are to be asked have answered."""
        plan, names, known = self._plans[index], self._judge.names, self._progress.known
        made = Outcomes()
        for digest, own in combined_verdicts(plan):
            if digest in known or digest in made.by_digest:
                continue
            asked = [
                (place, one, pending)
                for place, (one, pending) in enumerate(own)
                if place in self._first or one in self._escalated.get(index, ())
            ]
            outcomes: list[CallOutcome | None] = [None] * len(own)
            for place, one, pending in asked:
                outcomes[place] = _with_step(self._known[place][one], pending.step)
            made.by_digest[digest] = plan.rule.combine(names, outcomes)
            if all(one in self._cached[place] for place, one, _ in asked):
                made.cached.add(digest)
            elif all(one in self._cached[place] or one in self._joined[place] for place, one, _ in asked):
                made.joined.add(digest)
            self._said.append(outcomes)
        self._progress.add(made)

    def _account(self) -> Outcomes:
        """Return what each member said and cost, and how often members disagreed."""
        account = Outcomes()
        by_member = zip(*self._said, strict=True) if self._said else [()] * len(self._costs)
        for name, costs, outcomes in zip(self._judge.names, self._costs, by_member, strict=True):
            said = [one for one in outcomes if one is not None]
            failed = sum(isinstance(one, CallFailure) for one in said)
            account.members[name] = MemberCosts(len(said), failed, costs)
        for of_verdict in self._said:
            scores = [one.score for one in of_verdict if isinstance(one, JudgeResult)]
            account.compared += len(scores) > 1
            account.disagreed += len(set(scores)) > 1
        return account


def _with_step(outcome: CallOutcome, step: int | None) -> CallOutcome:
    """Return an outcome with this step, unless it names one."""
    if isinstance(outcome, CallFailure) or outcome.step is not None or step is None:
        return outcome
    return replace(outcome, step=step)


def _digests(plan: ResponsePlan) -> set[bytes]:
    return {digest for pending in plan.pending for digest in pending.digests}


def _made_of(plan: ResponsePlan, *known: set[bytes]) -> set[bytes]:
    """Return the digests of the verdicts all of whose parts are among those known."""
    pending = [
        pending for pending in plan.pending if all(any(part in some for some in known) for part in pending.awaited)
    ]
    return {digest for pending in pending for digest in pending.digests}
