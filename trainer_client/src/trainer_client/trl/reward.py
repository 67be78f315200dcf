"""`RubricReward`: rewards from an Adjudge service as a reward function for TRL's trainers.

When judging a response fails, its reward is None and training continues without it. Training stops, on all ranks at
once, when too many responses of a batch have no reward, or when the request itself is invalid. Options are validated
locally when the function is created. This module does not need torch.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self, Unpack, cast

from trainer_client import AsyncClient, Client
from trainer_client.client.calls import RubricLike, service_url
from trainer_client.client.keywords import RewardKeywords
from trainer_client.errors import AdjudgeError, InvalidRequest
from trainer_client.rows.judging import RubricPins, ScoringConfig, blocking_client, own_client
from trainer_client.rows.reading import MESSAGES_COLUMN, JudgedColumns, RowReader, WithoutRubric
from trainer_client.rows.tables import parse_rubric
from trainer_client.trl.scoring.batch import ExtraRewards, RankBatch, RewardFunction, RubricCache, error_summary
from trainer_client.trl.scoring.components import (
    PENALTIES,
    ComponentReward,
    check_components,
    component_functions,
)
from trainer_client.trl.scoring.context import (
    STATE_KEY,
    RubricRewardWarning,
    RunNaming,
    TrainerContext,
    store_in,
    stored_in,
    warn,
)
from trainer_client.trl.scoring.ranks import (
    CollectiveOrder,
    RankFailed,
    RankSummary,
    TooManyUnscored,
    raise_if_failed,
)
from trainer_client.trl.scoring.results import ScoredBatch, ScoredRow, SentResponse, reward_metrics, verdict_summaries
from trainer_client.trl.scoring.waiting import JudgeWait, SharedMemory
from trainer_client.trl.scoring.waiting import preflight as check_service
from trainer_client.wire import (
    DEFAULT_JUDGE,
    NEEDS_NO_RUBRIC,
    Criterion,
    FailurePolicy,
    RewardMode,
    RewardOptions,
    VerdictUse,
)
from trainer_client.wire.judges import JudgeWeights
from trainer_client.wire.judging import OpeningTag

__all__ = [
    "ComponentReward",
    "RankFailed",
    "RewardFunction",
    "RubricReward",
    "RubricRewardWarning",
    "ScoredBatch",
    "ScoredRow",
    "TooManyUnscored",
]

logger = logging.getLogger(__name__)

PENALTY_OPTIONS = ("length_penalty", "overlong_penalty", "truncation_factor")

MISSING_AS_ZERO_WARNING = (
    "the trainer has other reward functions, and TRL counts 0 where the judge gives no reward, so a response that "
    "could not be judged looks like a bad one. Give the functions to RubricReward(extra_rewards=[…], weights=[…]) "
    "instead, or use RubricGRPOTrainer"
)
NON_TEXT_PARTS_WARNING = (
    "the judge reads text only: it sees an image in a prompt as [image]. Describe what the judge must know about "
    "the image in the column grounding"
)


class RubricReward:
    """An async reward function for `GRPOTrainer`, `RLOOTrainer` and `AsyncRolloutWorker` of TRL.

    It reads these columns of the dataset, each of which may be missing or hold None: `rubric` (a reference, a list of
    criteria, `{"criteria": […]}`, or one of these as JSON text; replaces the rubric given here), `grounding`,
    `reference_answer` and `ground_truth`. Only the judge sees them. It warns about columns that it does not read but
    that look like one of these. A rollout function may return `response_messages`, the messages of each response, which
    are then judged in place of its decoded text. A thinking block that the chat template opens is found by
    rendering the template.

    A row's reward is None if the judge gave none, for example because the service is unreachable. Invalid requests
    stop training, and with `on_failure="error"` failures do too. With `torch.distributed`, every rank must call the
    function for every batch. A reference without a version is pinned to the version that the first answer names,
    until `repin`.

    Args:
        client: the service's address, or a client whose settings are copied; by default the environment variable
            ADJUDGE_URL. Rewards are recorded under the client's run, or else under the trainer's `run_name`.
        rubric: a reference, an inline rubric or a list of criteria, for rows without a rubric of their own.
        name: the prefix of what is logged, in place of `rubric`, and the name of the function in TRL's own logs. Give
            each of several functions its own.
        columns: the dataset's column for each judged column that has another name there, such as
            `{"ground_truth": "answer"}`. With None for a column, the judge does not see it.
        mode: how verdicts become a reward. Default: `weighted_mean`, or the method's mode in `RubricGRPOTrainer`.
        on_failure: the reward of a response when judging fails. Default: `null`, or the method's policy.
        deadline_s: seconds that the service has to judge a batch.
        grace_s: seconds to keep waiting after the deadline. Groups received by then are kept.
        wait_for_judge_s: how long training waits for the judge when it is away, in seconds: it cannot be reached, or
            is not ready. All ranks wait together. Then `max_unscored` decides; if training stops, the trainer saves a
            checkpoint first. An outage that was waited for in vain is not waited for again by the next batches.
        judge_lease_s: for a judge that shares this trainer's GPUs: wake it before each batch, once all ranks have
            generated, and put it to sleep after, for at most so many seconds without a step. None leaves it awake.
        preflight: whether to ask the service now if it can judge. It waits up to `wait_for_judge_s` while the service
            is loading. A client with a transport of its own is not asked.
        max_unscored: the share of a batch's responses, over all ranks, that may have no reward from the judge.
            Rewards set to 0 by a failure policy count as missing. Beyond it, training stops with `TooManyUnscored`;
            1 never stops it. For `AsyncRolloutWorker`, which scores one group at a time, a batch is one group.
        extra_rewards: reward functions whose rewards are added to the rubric's reward. If any of them is None, the
            sum is None; TRL itself would count it as 0.
        weights: the weights of the rubric's reward and of each of `extra_rewards`, in this order; 1 each by default.
        options: see `Client.rewards`.

    Attributes:
        last: the rows of the latest call.
        needs_criteria: whether `last` also holds the criteria of rubrics given by reference.
        without_rubric: how to treat rows without a rubric, or with an empty one, in a mode that needs one: `refuse`
            them, judge their `outcome` (the final answer against the ground truth), or `accept` them without judging.
        applies_penalties: whether to apply the configured penalties. `RubricGRPOTrainer` evaluates without them.
        select_judged_part: returns the part of a completion to judge; unset, the whole completion is judged.
        batch_rows: the least number of responses, over all ranks, that `max_unscored` is a share of. A trainer that
            scores a batch in parts sets it, so that failures in a small part do not stop training.
        overlapped_work: work on the responses as sent and their tokens that runs, piece by piece, while the judge
            answers.

    Raises:
        ConnectionFailed, TimedOut, NotReady: the service cannot be reached, or is not ready; only with `preflight`.
        InvalidRequest: an option or an inline rubric is invalid.
        TypeError: an option is unknown, `client` has the wrong type, or one of `extra_rewards` is not a function.
        ValueError: a number is out of range.
    """

    _components: Sequence[str] | None = None
    needs_criteria: bool = False
    without_rubric: WithoutRubric = "refuse"
    applies_penalties: bool = True
    batch_rows: int = 0
    select_judged_part: Callable[[Any], Any] | None = None
    overlapped_work: Callable[[Sequence[SentResponse], Sequence[Sequence[int]]], Iterable[None]] | None = None

    def __init__(
        self,
        client: str | Client | AsyncClient | None = None,
        rubric: RubricLike | None = None,
        *,
        name: str | None = None,
        columns: Mapping[str, str | None] | None = None,
        mode: RewardMode | None = None,
        on_failure: FailurePolicy | None = None,
        deadline_s: float = 60.0,
        grace_s: float = 5.0,
        wait_for_judge_s: float = 600.0,
        judge_lease_s: float | None = None,
        preflight: bool = True,
        max_unscored: float = 0.5,
        extra_rewards: Sequence[RewardFunction] = (),
        weights: Sequence[float] | None = None,
        **options: Unpack[RewardKeywords],
    ) -> None:
        if not 0.0 <= max_unscored <= 1.0 or not grace_s >= 0.0 or not wait_for_judge_s >= 0.0:
            raise ValueError(
                f"max_unscored is {max_unscored}, grace_s is {grace_s} and wait_for_judge_s is {wait_for_judge_s}; "
                "max_unscored must be a share from 0 to 1, and the others must not be negative"
            )
        if judge_lease_s is not None and not judge_lease_s >= deadline_s:
            raise ValueError(
                f"judge_lease_s is {judge_lease_s} and deadline_s {deadline_s}; the judge has to be awake for as "
                "long as it may take to judge a batch"
            )
        self.last: ScoredBatch | None = None
        self.name, self._columns = name, JudgedColumns(columns)
        self.__name__ = name or type(self).__name__
        self.__signature__ = inspect.signature(self.__call__)
        service = service_url(None) if client is None else client
        self._client = own_client(service)
        try:
            self._rubric = parse_rubric(rubric)
        except ValueError as error:
            raise InvalidRequest(f"rubric: {error}") from error
        self._mode, self._on_failure, self._options = mode, on_failure, options
        self._deadline_s, self._grace_s, self._max_unscored = deadline_s, grace_s, max_unscored
        self._extra = ExtraRewards.of(extra_rewards, weights)
        self._pins, self._cache = RubricPins(), RubricCache()
        self._wait = JudgeWait(wait_for_judge_s)
        self._judge = options.get("judge") or DEFAULT_JUDGE
        self._shared = None if judge_lease_s is None else SharedMemory(self._judge, judge_lease_s, wait_for_judge_s)
        self._run_naming = RunNaming()
        self._chose_pins = False
        self._kept_in: Any = None
        self._kept_as = STATE_KEY
        self._tracked_criteria: set[str] = set()
        self._warned: set[str] = set()
        self._template_opens: OpeningTag | None = None
        self._config().check()
        if preflight:
            check_service(service, wait_for_judge_s)
            self.hold_sleep()

    @property
    def mode(self) -> RewardMode:
        """The mode in effect."""
        return self._mode or "weighted_mean"

    @property
    def on_failure(self) -> FailurePolicy:
        """The failure policy in effect."""
        return self._on_failure or "null"

    @property
    def use(self) -> VerdictUse:
        """What of a verdict enters the reward: its score, or its probability."""
        return self._options.get("use", "verdict")

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        *,
        trainer_state: Any = None,
        log_metric: Any = None,
        log_extra: Any = None,
        **columns: Any,
    ) -> list[float | None]:
        """Reward N completions. The signature is TRL's.

        Returns:
            N rewards; None for a response without a reward.

        Raises:
            TooManyUnscored: a larger share than `max_unscored` has no reward from the judge.
            AdjudgeError: the request is invalid, or judging failed with `on_failure="error"`.
        """
        context, order = TrainerContext(log_metric, trainer_state), CollectiveOrder()
        self._resume(trainer_state, context.prefix(self))
        given = {"trainer_state": trainer_state, "log_metric": log_metric, "log_extra": log_extra}
        arguments = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **columns}
        arguments |= {name: value for name, value in given.items() if value is not None}
        asleep: Sequence[AdjudgeError | None] = ()
        try:
            await self._run_naming.name(self._client, context, order)
            scored, summaries = await self._score_on_all_ranks(arguments, context, order)
            if self._shared is not None:
                asleep = await order.all_gather(await self._shared.problem_with_sleep(self._client))
        finally:
            order.end()
        self._pins.merge_ranks([summary.pins for summary in summaries])
        self._keep_state()
        error = scored if isinstance(scored, Exception) else None
        self.last = ScoredBatch(scored.rows) if isinstance(scored, RankBatch) else None
        try:
            raise_if_failed(
                summaries, error, self._max_unscored, self._remedy, self.batch_rows, context.never_leaves_out
            )
            if (problem := next(filter(None, asleep), None)) is not None:
                raise problem
        except Exception as stopping:  # raised on all ranks
            await context.save_checkpoint(stopping)
            raise
        assert isinstance(scored, RankBatch)  # raise_if_failed raised otherwise
        self._log(scored, context, log_metric, log_extra)
        return [row.reward for row in scored.rows]

    # TRL before 1.16 asks `inspect.iscoroutinefunction` whether to await a function, which knows an instance only by
    # these attributes of its code, and logs it under its `__name__`.
    __code__ = __call__.__code__
    __defaults__ = __call__.__defaults__
    __kwdefaults__ = __call__.__kwdefaults__

    async def _score_on_all_ranks(
        self, arguments: Mapping[str, Any], context: TrainerContext, order: CollectiveOrder
    ) -> tuple[RankBatch | Exception, list[RankSummary]]:
        """Score this rank's rows, and wait together with all ranks for a judge that is away.

        Returns:
            The scored rows, or the error, which is returned because other ranks are waiting for this one; and the
            summaries of all ranks.
        """
        loop = asyncio.get_running_loop()
        splits = self._config().compares_responses and context.group_size is None
        if self._shared is not None:
            await order.all_gather(None)  # every rank has generated, and its policy no longer needs the memory
        batch: RankBatch | None = None
        scored: RankBatch | Exception
        waited_s, score_again = 0.0, True
        while True:
            if score_again:
                began = loop.time()
                try:
                    batch = batch or self._prepare(arguments, context)
                    scored = await self._score(batch, context)
                except Exception as failed:  # noqa: BLE001
                    scored = failed
                waited_s += loop.time() - began if waited_s else 0.0
            if isinstance(scored, Exception):
                own = error_summary(scored, len(arguments["prompts"]), self._pins, waited_s)
            else:
                own = scored.summary(self._pins, waited_s, compares_responses=splits)
            summaries = await order.all_gather(own)
            if not self._waits(summaries):
                return scored, summaries
            score_again = False
            if own.away is not None:
                score_again, waited_s = await self._wait.round(self._client, own.away, waited_s)

    def _prepare(self, arguments: Mapping[str, Any], context: TrainerContext) -> RankBatch:
        """Check what the trainer gives, and read the rows."""
        if context.counts_missing_as_zero:
            self._warn_once(MISSING_AS_ZERO_WARNING)
        context.check_penalties(self._options, tokens=arguments["completion_ids"] is not None)
        context.check_columns(self.judged_columns)
        columns = dict(arguments)
        prompts, completions, ids = (columns.pop(name) for name in ("prompts", "completions", "completion_ids"))
        if self._config().compares_responses:
            context.check_whole_groups(len(prompts))
        self._warn_about_lookalikes(columns)
        if self.select_judged_part is not None:
            columns.pop(MESSAGES_COLUMN, None)
            completions = [self.select_judged_part(one) for one in completions]
        self._template_opens = context.template_opens(prompts)
        config = self._config(context.step)
        rows = self._reader(context.step, context.stop_token_ids).read(
            prompts, completions, ids, self._columns.rename(columns)
        )
        if rows.non_text_parts:
            self._warn_once(NON_TEXT_PARTS_WARNING)

        def work() -> Iterable[None]:
            if self.overlapped_work is None or ids is None:
                return ()
            return self.overlapped_work([SentResponse.of(response, config.options) for response in rows.responses], ids)

        return RankBatch(rows, config, arguments, self._extra, work)

    async def _score(self, batch: RankBatch, context: TrainerContext) -> RankBatch:
        if self._shared is not None:
            await self._shared.wake(self._client)
        await batch.score(self._client, self._pins, self._cache if self.needs_criteria else None)
        if self._components is not None:
            check_components(batch.rows, self._components, context)
        return batch

    def _log(self, batch: RankBatch, context: TrainerContext, log_metric: Any, log_extra: Any) -> None:
        """Log the batch by the functions that the trainer gave, if any."""
        prefix = context.prefix(self)
        if log_metric is not None:
            metrics = reward_metrics(batch.rows, batch.usage, batch.wait_s, self._tracked_criteria, prefix)
            for name, value in metrics.items():
                log_metric(name, value)
        if log_extra is not None and context.shows_completions:
            log_extra(prefix, verdict_summaries(batch.rows))

    def _config(self, step: int | None = None) -> ScoringConfig:
        """How a call of this step is judged."""
        options = self._judged_as(self._options) if self.applies_penalties else self._without_penalties
        return ScoringConfig(
            rubric=self._rubric,
            mode=self.mode,
            on_failure=self.on_failure,
            deadline_s=self._deadline_s,
            grace_s=self._grace_s,
            options=options,
            step=step,
        )

    def _reader(self, step: int | None = None, stop_token_ids: frozenset[int] | None = None) -> RowReader:
        without_rubric = None if self.mode in NEEDS_NO_RUBRIC else self.without_rubric
        return RowReader(rubric=self._rubric, without_rubric=without_rubric, step=step, stop_token_ids=stop_token_ids)

    def with_defaults(self, *, mode: RewardMode, on_failure: FailurePolicy, **options: Unpack[RewardKeywords]) -> Self:
        """Return a copy that uses these settings wherever the user gave none."""
        copy = self._copy(
            _mode=self._mode or mode,
            _on_failure=self._on_failure or on_failure,
            _options={**options, **self._options},
            _client=own_client(self._client),
            _pins=RubricPins(self._pins.state()),
            _tracked_criteria=set(),
            _warned=set(),
        )
        copy._config().check()
        return copy

    def without_extra_rewards(self) -> Self:
        """Return a copy without the extra reward functions. It shares the pins of this one."""
        return self._copy(_extra=ExtraRewards())

    def _copy(self, **attributes: Any) -> Self:
        """Return a shallow copy with some attributes replaced."""
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), **attributes)
        return copy

    def split(self, names: Sequence[str] | None = None) -> list[ComponentReward]:
        """Return a reward function for each component of the reward, over one request for each batch.

        With them, TRL's `reward_weights`, `multi_objective_aggregation`, logs and tables of completions work as for any
        functions. Each is called after `name`, or `rubric`, and the component: `rubric/clarity`. It gives None for a
        response whose rubric has no such component.

        A component whose verdict failed is None too. With `multi_objective_aggregation="normalize_then_sum"`, the
        response is then left out of the statistics of this component. Other trainers would count the missing part of
        the sum as 0, so there all functions give None for this response.

        The weight of each function is its attribute `weight`: with these as `reward_weights`, the sum is the reward by
        the rubric given here. It is None without such a rubric, or if the mode is not linear.

        Args:
            names: the components that get a function of their own, in this order. In a linear mode, a function `rest`
                gives the mean by weight of any others. Default: all components of the rubric given here, or all kinds.
                Where only rows have rubrics, names are needed unless components are kinds. With penalties, the last
                function is `penalties`: what they add.

        Returns:
            The functions. Each takes N completions and returns N rewards, None where it has none.

        Raises:
            ValueError: the option `components` is missing, there are extra rewards, or the names do not suit; says
                what to change.
            AdjudgeError: the rubric given by reference cannot be fetched.
        """
        if self._options.get("components") is None:
            raise ValueError(
                "components are not asked for; say what they are: RubricReward(…, components='kind'), or 'criterion' "
                "or 'tag'"
            )
        if self._extra.functions:
            raise ValueError("extra_rewards belong to no component; give them to the trainer, beside these functions")
        fields = {name: value for name, value in self._options.items() if name in RewardOptions.model_fields}
        options = RewardOptions.model_validate(fields | {"mode": self.mode})
        whole = self._copy(_warned=set(), _tracked_criteria=set())
        functions = component_functions(whole, options, self._default_criteria(), names)
        whole._components = [function.component for function in functions if function.component != PENALTIES]
        return functions

    def _default_criteria(self) -> Sequence[Criterion] | None:
        """Look up the criteria of rows without a rubric; None if there are none, or the client cannot be asked now."""
        if not isinstance(self._rubric, str):
            return None if self._rubric is None else self._rubric.criteria
        client = blocking_client(self._client)
        if client is None:
            return None
        with client:
            return client.rubric(self._pins.pinned(self._rubric)).criteria

    @property
    def run(self) -> str | None:
        """The run under which the service records the requests; None without one."""
        return self._client.run

    def hold_sleep(self, lease_s: float | None = None) -> None:
        """Keep the judge asleep for another `judge_lease_s`, or `lease_s`, if it shares this trainer's GPUs.

        `JudgeSleepCallback` calls this at each step. Call it outside an event loop. Raises `AdjudgeError`.
        """
        if self._shared is not None:
            self._shared.renew(self._client, lease_s)

    def follow_policy(
        self, version: str, adapter: str | None, *, step: int, expected: str | None
    ) -> JudgeWeights | None:
        """Have the judge judge with these weights from now on; see `Client.load_judge_weights`.

        A judge that shares this trainer's GPUs is woken for it. `JudgeWeightsCallback` calls this. Call it outside an
        event loop.

        Returns:
            The weights; None if the client has a transport of its own, which may belong to an event loop.

        Raises:
            AdjudgeError: they are not loaded.
        """
        client = blocking_client(self._client)
        if client is None:
            return None
        with client, nullcontext() if self._shared is None else self._shared.awake(client):
            return client.load_judge_weights(version, adapter, self._judge, step=step, expected=expected)

    def judge_weights(self) -> JudgeWeights | None:
        """Fetch which weights the judge has; see `Client.judge_weights`, and `follow_policy` for None."""
        client = blocking_client(self._client)
        if client is None:
            return None
        with client:
            return client.judge_weights(self._judge)

    async def report_measures(self, step: int, measures: Mapping[str, float]) -> None:
        """Report what was measured in a training step; see `Client.report_measures`."""
        await self._client.report_measures(step, measures)

    async def criteria(self, rubrics: Sequence[Any]) -> list[tuple[Criterion, ...]]:
        """Return the criteria that each row will be judged by, given the values of the column `rubric`."""
        return await self._cache.criteria_for_rows(self._client, rubrics, self._rubric, self._pins, self._deadline_s)

    def check_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Check rows of a dataset as a call would, before there are responses. No request is sent.

        `RubricGRPOTrainer` checks the first rows of its datasets. Call this yourself before any other trainer, which
        would find a mistake only after its first generation. What only the service knows is not checked, such as
        whether a rubric of this name exists.

        Args:
            rows: a dataset, or some of its rows, with a `prompt` and any other columns. They are read into memory, so
                take the first rows of a stream: `dataset.take(100)`.

        Raises:
            InvalidRequest: a row is invalid; names the row by its place among these, and the problem.
        """
        rows = list(rows)
        names = dict.fromkeys(name for row in rows for name in row if name not in ("prompt", MESSAGES_COLUMN))
        columns = {name: [row.get(name) for row in rows] for name in names}
        self._warn_about_lookalikes(columns)
        prompts, config = [row.get("prompt", "") for row in rows], self._config()
        for group in self._reader().read(prompts, [""] * len(rows), None, self._columns.rename(columns)).groups:
            try:
                config.check_group(group)
            except ValueError as error:
                raise InvalidRequest(f"row {group.rows[0]}: {error}") from error

    @property
    def judged_columns(self) -> frozenset[str]:
        """The names of the columns that the judge sees, in a dataset that has them."""
        return self._columns.in_dataset

    def column_of(self, judged: str) -> str | None:
        """Return the dataset's name of a column that the judge sees, such as `rubric`; None if it must not see it."""
        return self._columns.name_of(judged)

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint, as JSON-compatible data: the pinned rubrics."""
        return {"pins": self._pins.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint.

        Raises:
            ValueError: the state is invalid.
        """
        self._pins.load(state.get("pins"))
        self._chose_pins = True

    def repin(self, versions: Mapping[str, str] | None = None) -> None:
        """Judge by other versions from the next call on. Call it on every rank, with the same versions.

        Args:
            versions: the new pin, such as `name@3`, of each reference as it is written in the dataset or was given to
                this function; other references keep their pins. Default: the newest version of each rubric.
        """
        if versions is None:
            self._pins.clear()
        else:
            self._pins.repin(versions)
        self._chose_pins = True
        self._keep_state()

    def pinned(self, reference: str) -> str:
        """Return the version that a reference is pinned to, or the reference itself if it has no pin."""
        return self._pins.pinned(reference)

    @property
    def judging_options(self) -> tuple[RewardMode, RewardKeywords]:
        """The mode and the judging options, without penalties, dropout and gold judge."""
        options = self._without_penalties
        options.pop("dropout", None)
        options.pop("gold", None)
        return self.mode, options

    async def aclose(self) -> None:
        """Close the connections of the running event loop. A later call opens new ones."""
        await self._client.aclose()
        self._client = own_client(self._client)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "last": None, "_kept_in": None}

    def _resume(self, trainer_state: Any, prefix: str) -> None:
        """Keep the state in that of the trainer, which its checkpoints hold, and take over what a checkpoint holds.

        What was chosen by `repin` or `load_state` before the first call is kept.
        """
        if trainer_state is None or trainer_state is self._kept_in:
            return
        self._kept_in, self._kept_as = trainer_state, f"{STATE_KEY} {prefix}"
        saved = stored_in(trainer_state, self._kept_as)
        if saved and not self._chose_pins:
            self.load_state(saved)

    def _keep_state(self) -> None:
        store_in(self._kept_in, self.state(), self._kept_as)

    def _waits(self, summaries: Sequence[RankSummary]) -> bool:
        """Decide, on all ranks alike, whether to wait for a judge that is away."""
        if any(summary.fatal and summary.away is None for summary in summaries):
            return False
        return self._wait.continues([one.away for one in summaries], [one.waited_s for one in summaries])

    @property
    def weight(self) -> float:
        """The weight of the judge's own reward."""
        return self._extra.weights[0]

    @property
    def _without_penalties(self) -> RewardKeywords:
        kept = {name: value for name, value in self._options.items() if name not in PENALTY_OPTIONS}
        return self._judged_as(cast(RewardKeywords, kept))

    def _judged_as(self, options: RewardKeywords) -> RewardKeywords:
        """Return the options with the thinking block that the chat template opens, unless they say so themselves."""
        if self._template_opens is None or options.get("prompt_opens") is not None:
            return options
        return {**options, "prompt_opens": self._template_opens}

    def _warn_about_lookalikes(self, given: Mapping[str, Any]) -> None:
        for column, judged in self._columns.ignored_lookalikes(given):
            self._warn_once(
                f"the judge does not see the dataset's column {column!r}, which looks like its {judged}. To show it, "
                f"pass RubricReward(columns={{{judged!r}: {column!r}}}); if it is something else, "
                f"columns={{{judged!r}: None}}"
            )

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warn(message)

    @property
    def _remedy(self) -> str:
        return (
            f"Check {self._client.base_url}/readyz. If the judge is only slow, raise deadline_s "
            f"({self._deadline_s:g}); if it is away for longer, raise wait_for_judge_s ({self._wait.limit_s:g}). "
            "To train without such responses, set max_unscored=1.0"
        )
