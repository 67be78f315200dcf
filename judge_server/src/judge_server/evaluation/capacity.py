"""How many GPUs a judge needs: the work in a sample of responses, an engine's rates, and what follows from both.

The sample is planned as a request for rewards would be, by the same code, and its prompts are tokenised by the engine's
own tokenizer; nothing is judged. An engine computes of a prompt what its prefix cache does not hold:

- `slot`: the cache is the previous prompt, as with one llama.cpp slot. At least one token of each prompt is computed.
- `blocks`: the cache holds all prompts, in whole blocks of 16 tokens, as with vLLM and enough memory.

Rates are measured on this machine, or as published: seconds = computed * prefill_s + written * decode_s, both of one
replica under full load. A replica is one engine with all its GPUs.

A training step asks for the judgements of all its responses at once, and a response is judged by one replica. Alone, a
step of n responses of s seconds takes T = s ceil(n / c) on c replicas. With other runs, which keep the replicas busy
for the share rho of the time, it waits about

    T rho^(sqrt(2 (k + 1)) - 1) / (k (1 - rho)), with k = max(1, c / n)

which is Sakasegawa's approximation (1977, Ann. Inst. Statist. Math. 29:67-75) for k servers of whole steps; with k = 1
it is processor sharing, T / (1 - rho) in all. The queue finishes steps one after another, which takes less, so a plan
is on the safe side. docs/studies/layouts.md compares this with a simulation of the queue.

`judge_layouts` compares a judge on GPUs of its own with one on the trainers' GPUs, awake or asleep between two batches.
"""

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from judge_server.errors import InvalidRequest
from judge_server.judging.plan import ResponsePlan
from judge_server.ports import AnswerForm, Batch, Call, CallFailure, Engine, RubricSource, TokenChoice
from judge_server.scheduling.time_sharing import TimeSlicer
from judge_server.scoring.judge import Judge
from judge_server.scoring.planner import AskedGroups, plan_groups
from judge_server.scoring.ranking import plan_tournaments
from judge_server.scoring.rubrics import PROJECT_ID, ResolvedRubric, resolve_rubrics
from trainer_client.wire import RewardRequest

PrefixCache = Literal["slot", "blocks"]

BLOCK_TOKENS = 16


@runtime_checkable
class PromptTokenizer(Protocol):
    """Tokenises whole prompts."""

    async def prompt_tokens(self, batch: Batch, call: Call) -> list[int]:
        """Return the token ids of a call's prompt, chat template included, up to the answer."""


class CountedCall(NamedTuple):
    """A call's prompt tokens, those of them that an engine computes, and the tokens that it writes."""

    prompt: int
    computed: int
    written: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The work in a sample.

    Attributes:
        responses: the responses.
        judgements: the verdicts on them, by the judge and by programs; of a ranking, the comparisons.
        by_program: the verdicts that need no call.
        repeated: calls that ask what another call of the sample asks; they are made once.
        calls: the calls that are made, in order.
        last: the tokens of the last prompt.
    """

    responses: int
    judgements: int
    by_program: int
    repeated: int
    calls: tuple[CountedCall, ...]
    last: tuple[int, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """The tokens of all prompts."""
        return sum(call.prompt for call in self.calls)

    @property
    def computed(self) -> int:
        """The prompt tokens that an engine with this prefix cache computes."""
        return sum(call.computed for call in self.calls)

    @property
    def written(self) -> int:
        """The tokens that the judge writes."""
        return sum(call.written for call in self.calls)


class UncountableCall(ValueError):
    """The length of a call depends on what the judge writes, so that it cannot be counted beforehand."""


async def count_workload(
    tokenizer: PromptTokenizer,
    plans: Sequence[ResponsePlan],
    cache: PrefixCache,
    *,
    responses: int,
    previous: Sequence[int] = (),
) -> Workload:
    """Count the work of plans, in the order in which an engine would take their calls.

    `responses` is the number of responses that the plans are about, and `previous` has the tokens of the prompt before
    the first one, which a `slot` still holds. Of a call that asks for a step too, the longest label is counted, so that
    the judge writes at most as much.

    Raises:
        UncountableCall: a call has the judge write text, whose length cannot be known.
    """
    judgements = by_program = repeated = 0
    counted: list[CountedCall] = []
    known: set[bytes] = set()
    prefixes = _Prefixes(cache, previous)
    answers = _Answers(tokenizer)
    for plan in _with_content_free(plans):
        pending = [one for one in plan.pending if one.digests]
        judgements += sum(len(one.digests) for one in pending)
        by_program += sum(one.method != "judge" for one in pending)
        for planned in plan.planned_calls:
            if known.issuperset(planned.digests):
                repeated += 1
                continue
            known.update(planned.digests)
            call = planned.question.call
            _check_countable(call)
            prompt = await tokenizer.prompt_tokens(plan.batch, call)
            appended, written = await answers.tokens(plan.batch, call, len(prompt))
            counted.append(CountedCall(len(prompt), prefixes.add(prompt) + appended, written))
    return Workload(responses, judgements, by_program, repeated, tuple(counted), tuple(prefixes.last))


def _with_content_free(plans: Sequence[ResponsePlan]) -> list[ResponsePlan]:
    """Return the plans in the order in which they are asked: those about empty responses come first."""
    shared = {id(plan.content_free): plan.content_free for plan in plans if plan.content_free is not None}
    return [*shared.values(), *plans]


def _check_countable(call: Call) -> None:
    if not isinstance(call.answer, TokenChoice) or call.reasoning is not None or call.think_tokens:
        raise UncountableCall(
            "the judge writes text for a verdict: with rationale, think_tokens, several criteria per call, the "
            "protocol checklist, and scales above 9; plan with binary, stepwise, graded, likert or ranking"
        )


class _Answers:
    """The tokens after a prompt: those that are appended to what the judge wrote, and those that it writes."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[AnswerForm, tuple[int, int]] = {}

    async def tokens(self, batch: Batch, call: Call, prompt: int) -> tuple[int, int]:
        """Return the tokens appended and written after a prompt of so many tokens.

        A verdict is one token. If the call asks for a step too, the verdict and the lead are appended to the prompt,
        and the judge writes the label of a step and the end of its turn.
        """
        if not isinstance(call.answer, TokenChoice) or call.answer.then is None:
            return 0, 1
        if call.answer not in self._known:
            verdict = max((option.label for option in call.answer.options), key=len)
            lead = verdict + call.answer.then.lead
            appended = await self._longer_by(batch, call, lead, prompt)
            label = max(call.answer.then.labels, key=len)
            whole = await self._longer_by(batch, call, lead + label, prompt)
            self._known[call.answer] = appended, 1 + max(1, whole - appended) + 1
        return self._known[call.answer]

    async def _longer_by(self, batch: Batch, call: Call, text: str, prompt: int) -> int:
        longer = replace(call, question=f"{call.question}\n{text}")
        return max(1, len(await self._tokenizer.prompt_tokens(batch, longer)) - prompt - 1)


class _Prefixes:
    """A prefix cache: how much of each prompt must be computed."""

    def __init__(self, cache: PrefixCache, previous: Sequence[int]) -> None:
        self._blocks: set[int] | None = set() if cache == "blocks" else None
        self.last = list(previous)

    def add(self, prompt: list[int]) -> int:
        """Return how many tokens of a prompt are computed, and keep it."""
        if self._blocks is None:
            reused = _common_prefix(self.last, prompt)
        else:
            keys = list(_block_keys(prompt))
            reused = next((n for n, key in enumerate(keys) if key not in self._blocks), len(keys)) * BLOCK_TOKENS
            self._blocks.update(keys)
        self.last = prompt
        return max(1, len(prompt) - reused)


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def _block_keys(prompt: Sequence[int]) -> Iterator[int]:
    """Yield a hash of the prompt up to the end of each whole block."""
    key = 0
    for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        key = hash((key, tuple(prompt[start : start + BLOCK_TOKENS])))
        yield key


PLANNING_S = 600.0
"""The seconds that planning a sample may take. A large sample needs more; a smaller one says as much."""


async def plan_sample(
    judge: Judge, rubrics: RubricSource, request: RewardRequest, *, criteria_share: float = 1.0
) -> list[ResponsePlan]:
    """Return the plans of a request's groups, in order, by a started judge.

    A ranking's later rounds are planned as if all were tied. Of each rubric's criteria, a share of `criteria_share` is
    planned, evenly picked and at least one.

    Raises:
        ServiceError: as for a request for rewards.
    """
    deadline = asyncio.get_running_loop().time() + PLANNING_S
    mode = request.reward.mode
    if request.protocol is None:
        raise InvalidRequest(f"reward.mode: mode {mode!r} asks no judge, so there is nothing to plan")

    resolved = await resolve_rubrics(rubrics, request, PROJECT_ID, deadline)
    resolved = [_with_share(rubric, criteria_share) for rubric in resolved]
    prepared, asked = judge.prepared_for(request.judging, request.protocol), AskedGroups.of(request)
    if mode != "ranking":
        groups = await plan_groups(judge, prepared, asked, resolved, deadline)
        return [response.plan for group in groups for response in group.responses]
    plans: list[ResponsePlan] = []
    for tournament in await plan_tournaments(judge, prepared, request, asked, resolved, deadline):
        while not tournament.finished:
            plans += await tournament.next_round(TimeSlicer(deadline))
    return plans


def _with_share(rubric: ResolvedRubric, share: float) -> ResolvedRubric:
    criteria: Sequence[object] = rubric.criteria
    kept = max(1, round(len(criteria) * share)) if criteria else 0
    places = {place * len(criteria) // kept for place in range(kept)} if kept else set()
    return replace(rubric, criteria=tuple([one for place, one in enumerate(rubric.criteria) if place in places]))


class Rates(NamedTuple):
    """The rates of one replica.

    Attributes:
        name: what they are the rates of.
        prefill_s, decode_s: seconds per prompt token that is computed, and per token that is written.
        gpus: the GPUs of a replica; 0 for a CPU.
        source: where the rates come from.
    """

    name: str
    prefill_s: float
    decode_s: float
    gpus: int
    source: str

    def seconds(self, computed: float, written: float) -> float:
        """Return the time that one replica needs."""
        return computed * self.prefill_s + written * self.decode_s


class PublishedThroughput(NamedTuple):
    """Output tokens per second of one replica under full load, of requests of 2048 + 128 and of 128 + 2048 tokens."""

    gpus: int
    long_prompts: float
    long_answers: float


TENSORRT_LLM_1_0 = (
    "TensorRT-LLM 1.0, docs/source/performance/perf-overview.md, throughput at 2048/128 and 128/2048 tokens"
)

PUBLISHED: dict[str, PublishedThroughput] = {
    "llama-3.1-8b-fp8@h100": PublishedThroughput(1, 3_450, 22_714),
    "llama-3.1-8b-fp8@h200": PublishedThroughput(1, 3_538, 26_221),
    "qwen3-30b-a3b-fp4@b200": PublishedThroughput(1, 6_251, 37_844),
    "llama-3.3-70b-fp8@h100x2": PublishedThroughput(2, 762, 6_651),
    "llama-3.3-70b-fp8@h200": PublishedThroughput(1, 442, 4_336),
    "llama-3.3-70b-fp4@b200": PublishedThroughput(1, 1_339, 9_922),
    "llama-4-scout-fp8@h100x4": PublishedThroughput(4, 3_253, 15_130),
    "qwen3-235b-a22b-fp8@h200x8": PublishedThroughput(8, 3_331, 42_821),
}
"""Published figures, by model, precision and GPUs."""


def published_rates(name: str) -> Rates:
    """Return the rates behind published throughputs: two equations of the form of this module, and their solution.

    Raises:
        ValueError: there are no figures of this name.
    """
    if name not in PUBLISHED:
        raise ValueError(f"there are no published rates of {name!r}; use {', '.join(PUBLISHED)}, or measure an engine")
    figures = PUBLISHED[name]
    tokens = np.array([[2048.0, 128.0], [128.0, 2048.0]])
    seconds = np.array([128 / figures.long_prompts, 2048 / figures.long_answers])
    prefill_s, decode_s = np.linalg.solve(tokens, seconds)
    return Rates(name, float(prefill_s), float(decode_s), figures.gpus, TENSORRT_LLM_1_0)


async def measure_rates(engine: Engine, name: str, plans: Sequence[ResponsePlan]) -> Rates:
    """Have an engine answer the calls of some plans one after another, and fit its rates.

    Raises:
        ValueError: a call failed, or there are too few calls to fit two rates.
    """
    rows: list[tuple[int, int]] = []
    seconds: list[float] = []
    for plan in plans:
        began = time.perf_counter()
        async for _, outcome in engine.answer(plan.batch):
            now = time.perf_counter()
            if isinstance(outcome, CallFailure):
                raise ValueError(f"a call failed while the engine was measured: {outcome.detail}")
            rows.append((outcome.tokens_computed, outcome.tokens_written))
            seconds.append(now - began)
            began = now
    computed = {row[0] for row in rows}
    if len(computed) < 2:
        raise ValueError("the calls are all of one length, so two rates cannot be told apart; measure more responses")
    fitted, *_ = np.linalg.lstsq(np.array(rows, dtype=float), np.array(seconds), rcond=None)
    prefill_s, decode_s = (max(0.0, float(rate)) for rate in fitted)
    return Rates(name, prefill_s, decode_s, 0, f"measured on this machine over {len(rows)} calls")


MOST_BUSY = 0.8
"""The share of the time that replicas may be busy, so that a burst or a lost replica does not fill the queue."""


class Demand(NamedTuple):
    """What training asks of a judge.

    Attributes:
        runs: training runs at the same time.
        steps_per_hour: the steps of each run.
        responses: the responses of a step.
        judging_s: the seconds that judging may add to a step.
    """

    runs: int
    steps_per_hour: float
    responses: int
    judging_s: float


class Estimate(NamedTuple):
    """The replicas that a demand needs, and how they fare.

    Attributes:
        replicas: engines, each with its GPUs.
        gpus: GPUs of all replicas; 0 for CPUs.
        busy: the share of the time that a replica works.
        alone_s: seconds that a step takes to judge with nothing else in the queue.
        queued_s: seconds that it waits for other runs, on average.
    """

    replicas: int
    gpus: int
    busy: float
    alone_s: float
    queued_s: float


def estimate(demand: Demand, seconds_per_response: float, gpus_per_replica: int) -> Estimate:
    """Return the fewest replicas that are at most `MOST_BUSY` busy and judge a step in time.

    A replica works `seconds_per_response` on each response.

    Raises:
        ValueError: a number is not above 0, or one response takes longer than a step may.
    """
    if min(demand.runs, demand.steps_per_hour, demand.responses, demand.judging_s, seconds_per_response) <= 0:
        raise ValueError("runs, steps per hour, responses, seconds and the work of a response must be above 0")
    if seconds_per_response > demand.judging_s:
        raise ValueError(
            f"judging one response takes {seconds_per_response:.3g} s and a step may take {demand.judging_s:.3g} s; "
            "allow more seconds, or take a faster judge or fewer criteria"
        )
    load = demand.runs * demand.steps_per_hour * demand.responses * seconds_per_response / 3600
    replicas = max(1, math.ceil(load / MOST_BUSY - 1e-9))
    while True:
        alone = seconds_per_response * math.ceil(demand.responses / replicas)
        queued = alone * _waits(load * (1 - 1 / demand.runs) / replicas, max(1.0, replicas / demand.responses))
        if alone + queued <= demand.judging_s:
            return Estimate(replicas, replicas * gpus_per_replica, load / replicas, alone, queued)
        replicas += 1


def _waits(busy: float, servers: float) -> float:
    """Return the mean wait as a multiple of the time of a step."""
    exponent: float = math.sqrt(2 * (servers + 1)) - 1
    return float(busy**exponent / (servers * (1 - busy)))


class Training(NamedTuple):
    """A training run without its judge.

    Attributes:
        gpus: the GPUs of its trainer, on which it also generates.
        rollout_s: the seconds of generating the responses of a step.
        update_s: the seconds of the rest of a step: the optimizer, and sending weights to the generator.
        wake_s: the seconds to wake a judge that sleeps on these GPUs, and to put it to sleep again.
        judge_memory: the share of the GPUs' memory for generation that a judge takes when it stays awake, in [0, 1).
    """

    gpus: int
    rollout_s: float
    update_s: float
    wake_s: float
    judge_memory: float

    @property
    def work_s(self) -> float:
        """The seconds of a step without judging."""
        return self.rollout_s + self.update_s


LayoutName = Literal["dedicated", "shared", "sleeping"]


class Layout(NamedTuple):
    """Where the judge runs, and what a step then takes. Seconds are means.

    Attributes:
        name: `dedicated` (GPUs of its own, for all runs), `shared` (awake on the GPUs of each trainer) or `sleeping`
            (on the GPUs of each trainer, asleep between two batches).
        replicas: engines: of all runs if dedicated, otherwise of each.
        gpus: the GPUs of all trainers and judges.
        rollout_s: seconds of generating responses.
        wake_s: seconds of waking the judge and putting it to sleep; 0 unless it sleeps.
        judging_s: seconds of judging, with the wait for other runs.
        step_s: seconds of a whole step.
        gpu_hours_per_step: GPU hours of a step of one run, with its part of a dedicated judge.
    """

    name: LayoutName
    replicas: int
    gpus: int
    rollout_s: float
    wake_s: float
    judging_s: float
    step_s: float
    gpu_hours_per_step: float


def judge_layouts(
    demand: Demand, training: Training, seconds_per_response: float, gpus_per_replica: int, dedicated: Estimate
) -> list[Layout]:
    """Return the layouts that are possible, by the GPU hours of a step.

    With n responses of s seconds in a step, R runs, g GPUs a trainer, rollouts of G seconds and updates of U:

    - dedicated: J = alone + queued of `estimate`, step = G + J + U, GPUs = R g + GPUs of the estimate.
    - shared: J = s ceil(n / c) on c = g // GPUs of a replica, while nothing else uses these GPUs. The judge takes the
      share m of the memory for generation, which slows generation by at most 1 / (1 - m), because its throughput is
      at most proportional to the memory of its key-value cache: step = G / (1 - m) + J + U, GPUs = R g.
    - sleeping: J as shared, step = G + W + J + U with W to wake and to sleep, GPUs = R g.

    GPU hours of a step of one run are GPUs / R * step / 3600. A replica that needs more GPUs than a trainer has, or
    runs on a CPU (0 GPUs), can only be dedicated.

    Raises:
        ValueError: a number of the training is out of range.
    """
    if training.gpus < 1 or min(training.rollout_s, training.update_s, training.wake_s) < 0 or training.work_s <= 0:
        raise ValueError("a trainer has at least 1 GPU, and the seconds of a step are above 0")
    if not 0 <= training.judge_memory < 1:
        raise ValueError(f"the judge's share of the memory is {training.judge_memory}; it must be at least 0, below 1")
    own = training.gpus * demand.runs

    def layout(
        name: LayoutName, replicas: int, gpus: int, judging_s: float, *, rollout_s: float, wake_s: float = 0.0
    ) -> Layout:
        step_s = rollout_s + wake_s + judging_s + training.update_s
        hours = gpus / demand.runs * step_s / 3600
        return Layout(name, replicas, gpus, rollout_s, wake_s, judging_s, step_s, hours)

    rollout_s, judging_s = training.rollout_s, dedicated.alone_s + dedicated.queued_s
    found = [layout("dedicated", dedicated.replicas, own + dedicated.gpus, judging_s, rollout_s=rollout_s)]
    replicas = training.gpus // gpus_per_replica if gpus_per_replica else 0
    if replicas:
        alone = seconds_per_response * math.ceil(demand.responses / replicas)
        slowed = rollout_s / (1 - training.judge_memory)
        found.append(layout("shared", replicas, own, alone, rollout_s=slowed))
        found.append(layout("sleeping", replicas, own, alone, rollout_s=rollout_s, wake_s=training.wake_s))
    return sorted(found, key=lambda one: one.gpu_hours_per_step)
