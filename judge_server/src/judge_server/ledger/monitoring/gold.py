"""The gold judge: a second judge that sees a share of a run's responses, after their rewards were answered.

It never delays a request and never changes a reward. Its verdicts are recorded under the run's name with `/gold`, and
compared with the first judge's by `judge_server.ledger.monitoring.monitors`. If too much waits, samples are dropped and
counted: a missing sample makes the comparison less precise, not wrong.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from judge_server.errors import ServiceError
from judge_server.ledger.monitoring.signals import scores_of
from judge_server.ports import Identity, RubricSource, current_identity, identity_context
from judge_server.scoring.combined import AnyJudge
from judge_server.scoring.planner import FirstJudgement, JudgedRequest, RecordSink
from judge_server.scoring.scorer import Scorer
from trainer_client.wire import Group, Prompt, RewardRequest
from trainer_client.wire.rewards import GOLD_SUFFIX

log = logging.getLogger("adjudge")

MAX_WAITING = 200
"""The most requests whose samples may wait for the gold judge."""

GOLD_DEADLINE_S = 600.0
"""The seconds that the gold judge has for the samples of one request. Nothing waits for it; a slow one drops samples
once 200 requests wait."""

GOLD_DRAIN_S = 4.0
"""The seconds that a process which ends gives the gold judge for what still waits. What is left then counts as
dropped. A supervisor waits for it, as for the ledger."""

Outcome = Literal["judged", "dropped", "failed"]


class GoldSample(NamedTuple):
    """The sampled part of a request, as a request to the gold judge, and the first judgement of each response."""

    request: RewardRequest
    first: Sequence[FirstJudgement]
    request_id: str
    project_id: str
    record_id: bytes | None


def is_sampled(prompt: Prompt, text: Prompt, share: float) -> bool:
    """Whether a response is in the sample: a hash of prompt and response, as a number in [0, 1), is below the share."""
    encoded = json.dumps([prompt, text], default=lambda message: message.model_dump(mode="json")).encode()
    return int.from_bytes(hashlib.sha256(encoded).digest()[:8], "big") / 2**64 < share


def sample(request: RewardRequest, judged: JudgedRequest) -> GoldSample | None:
    """Select the part of a judged request that the gold judge sees; None if there is nothing."""
    if request.gold is None or not judged.rewards:
        return None
    groups: list[Group] = []
    first: list[FirstJudgement] = []
    place = 0
    for planned_group in judged.groups:
        group, end = planned_group.group, place + len(planned_group.responses)
        rewarded = zip(planned_group.responses, _declared(judged)[place:end], strict=True)
        chosen = [pair for pair in rewarded if is_sampled(group.prompt, pair[0].response.text, request.gold.share)]
        place = end
        if chosen:
            groups.append(group.model_copy(update={"responses": tuple([planned.response for planned, _ in chosen])}))
            first += [FirstJudgement(reward, scores_of(planned, judged.outcomes)) for planned, reward in chosen]
    if not groups:
        return None
    changes = {
        "run": f"{request.run}{GOLD_SUFFIX}",
        "judge": request.gold.judge,
        "gold": None,
        "groups": tuple(groups),
        "priority": "bulk",
        "deadline_s": GOLD_DEADLINE_S,
        "on_failure": "null",
        "on_uncertain": "null",
        "allow_retired": True,
        "reward": request.reward.model_copy(update={"weighting": "declared"}),
        "dropout": None if judged.reward_rules is None else judged.reward_rules.dropout,
    }
    record_id = None
    if judged.record_id is not None:  # ids begin with their time
        record_id = judged.record_id[:8] + hashlib.sha256(judged.record_id + b"gold").digest()[:8]
    return GoldSample(request.model_copy(update=changes), first, judged.request_id, judged.project_id, record_id)


def _declared(judged: JudgedRequest) -> list[float | None]:
    """The rewards under the rubric's own weights, which the gold judge's are compared with."""
    if judged.reward_rules is not None and judged.reward_rules.reward.weighting == "contrast":
        return list(judged.declared_rewards)
    return [reward for reward, _ in judged.rewards]


class GoldMetrics:
    """The metrics of the gold judge's samples."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._samples = Counter(
            "adjudge_gold_responses", "Responses sampled for a gold judge, by outcome", ["outcome"], registry=registry
        )
        for outcome in get_args(Outcome):
            self._samples.labels(outcome)
        self._waiting = Gauge(
            "adjudge_gold_requests_waiting", "Requests whose samples wait for a gold judge", registry=registry
        )
        self.collect = registry.collect

    def count(self, outcome: Outcome, responses: int) -> None:
        """Count sampled responses."""
        self._samples.labels(outcome).inc(responses)

    def set_waiting(self, requests: int) -> None:
        """Set the number of requests whose samples wait."""
        self._waiting.set(requests)


class _WaitingSample(NamedTuple):
    sampled: GoldSample
    judge: AnyJudge
    recorder: RecordSink
    identity: Identity


class GoldSampler:
    """Judges samples one request after the other, in the background.

    Call `run` in a task; to stop, call `drain`, and then cancel the task.
    """

    def __init__(self, rubrics: RubricSource) -> None:
        self.metrics = GoldMetrics()
        self._rubrics = rubrics
        self._waiting: asyncio.Queue[_WaitingSample] = asyncio.Queue(MAX_WAITING)

    def recorder(self, request: RewardRequest, judge: AnyJudge, recorder: RecordSink) -> RecordSink:
        """Return a recorder that also has the gold judge, `judge`, judge the request's sample."""
        return _SamplingSink(self, request, judge, recorder)

    def add(self, sampled: GoldSample, judge: AnyJudge, recorder: RecordSink) -> None:
        """Have a sample judged, in the name of the current identity; never blocks."""
        try:
            self._waiting.put_nowait(_WaitingSample(sampled, judge, recorder, current_identity()))
        except asyncio.QueueFull:
            self.metrics.count("dropped", len(sampled.first))
        self.metrics.set_waiting(self._waiting.qsize())

    async def run(self) -> None:
        """Judge samples until cancelled."""
        while True:
            waiting = await self._waiting.get()
            self.metrics.set_waiting(self._waiting.qsize())
            outcome: Outcome = "dropped"
            try:
                outcome = await self._judge(waiting)
            finally:
                self.metrics.count(outcome, len(waiting.sampled.first))
                self._waiting.task_done()

    async def drain(self, timeout_s: float = GOLD_DRAIN_S) -> None:
        """Wait until all samples are judged, but no longer than this; those that still wait then count as dropped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._waiting.join()
        dropped = 0
        while not self._waiting.empty():
            dropped += len(self._waiting.get_nowait().sampled.first)
            self._waiting.task_done()
        self.metrics.set_waiting(0)
        if dropped:
            self.metrics.count("dropped", dropped)
            log.warning("the process ends, and the gold judge has not seen %d sampled responses", dropped)

    async def _judge(self, waiting: _WaitingSample) -> Outcome:
        sampled = waiting.sampled
        scorer = Scorer(waiting.judge, self._rubrics, _ComparingSink(waiting.recorder, sampled.first))
        try:
            with identity_context(waiting.identity):
                await scorer.score(
                    sampled.request,
                    request_id=sampled.request_id,
                    project_id=sampled.project_id,
                    record_id=sampled.record_id,
                )
        except ServiceError as error:
            log.warning("the gold judge could not judge %d responses: %s", len(sampled.first), error.detail)
            return "failed"
        except Exception:
            log.exception("the gold judge could not judge %d responses", len(sampled.first))
            return "failed"
        return "judged"


class _SamplingSink:
    """Records a request, and then passes its sample on."""

    def __init__(self, sampler: GoldSampler, request: RewardRequest, judge: AnyJudge, recorder: RecordSink) -> None:
        self._sampler, self._request, self._judge, self._recorder = sampler, request, judge, recorder

    def record(self, judged: JudgedRequest) -> None:
        self._recorder.record(judged)
        if (sampled := sample(self._request, judged)) is not None:
            self._sampler.add(sampled, self._judge, self._recorder)


class _ComparingSink:
    """Records the gold judge's verdicts together with the first judge's."""

    def __init__(self, recorder: RecordSink, first: Sequence[FirstJudgement]) -> None:
        self._recorder, self._first = recorder, first

    def record(self, judged: JudgedRequest) -> None:
        judged.compared = self._first
        self._recorder.record(judged)
