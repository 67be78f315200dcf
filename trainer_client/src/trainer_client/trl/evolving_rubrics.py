"""`EvolvingRubrics`: rubrics that grow with the policy (RLER), by a callback of `RubricGRPOTrainer`.

New criteria are generated from a group's own responses and published as a new version of the prompt's rubric, by which
all ranks judge from the next generation batch on. Rank 0 calls the service; the other ranks wait for the result.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from accelerate.state import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from pydantic import ValidationError

from trainer_client import AsyncClient, Client
from trainer_client.errors import AdjudgeError
from trainer_client.rows.judging import own_client
from trainer_client.trl.callbacks import GenerationCallback, ScoredGeneration
from trainer_client.trl.config import RubricGRPOConfig
from trainer_client.trl.evolution import (
    SEEN_GROUPS,
    EvolutionConfig,
    EvolutionResult,
    GroupHistory,
    UnchangedRubric,
    evolvable_groups,
    evolve,
    merge_histories,
)
from trainer_client.trl.reward import RubricReward

logger = logging.getLogger(__name__)

MODES_WITHOUT_POINTS = frozenset({"stepwise", "likert", "outcome", "ranking"})
"""Modes that ignore criteria of kind `point`, the kind that evolving writes."""


class EvolvingFailed(AdjudgeError):
    """Evolving rubrics failed with `on_failure="error"`. Raised on all ranks."""


class EvolvingRubrics(GenerationCallback):
    """Evolves the rubrics of groups from their own responses, every N steps (RLER; DRO, appendix G).

    It uses the newest group of each rubric seen since the last evolution. An operation of the service with the
    generator `evolving` writes new criteria and lints them. The run's judge then scores the group's responses by them.
    Criteria that tell the responses apart are published in a version after the one that the run is pinned to, and the
    run is pinned to the new version. If anything fails, the rubric stays unchanged; this is counted and logged.

    Only rubrics that are referenced without a version and that judge a single prompt can evolve, since new criteria
    are about the responses to one prompt.

    Args:
        client: the service's address, or a client whose settings are copied. Its key needs the scopes `score`, `read`
            and `rubrics:write`.
        every_n_steps: the number of steps between evolutions.
        groups: the number of rubrics that evolve at a time: those of the groups seen last.
        parameters: the parameters of the generator `evolving`; `adjudge generate --list` shows them.
        deadline_s: the most seconds that training waits for an evolution; three quarters of it are for generation.
        min_spread: the least difference between the judge's scores (0 to 1) of the responses for a new criterion.
        on_failure: `keep` continues with the old rubrics if the service, the judge or the generating model fails;
            `error` stops training with `EvolvingFailed`.

    Raises:
        TypeError: `client` has the wrong type.
        ValueError: a number is out of range, the trainer is not a `RubricGRPOTrainer`, it has no `RubricReward` or one
            whose mode does not use plain criteria, or ranks time out waiting for each other before `deadline_s`.
    """

    def __init__(
        self,
        client: str | Client | AsyncClient,
        *,
        every_n_steps: int,
        groups: int = 8,
        parameters: Mapping[str, Any] | None = None,
        deadline_s: float = 300.0,
        min_spread: float = 0.1,
        on_failure: Literal["keep", "error"] = "keep",
    ) -> None:
        if every_n_steps < 1 or groups < 1 or not 0 < deadline_s < math.inf or not 0 < min_spread <= 1:
            raise ValueError(
                f"every_n_steps is {every_n_steps}, groups {groups}, deadline_s {deadline_s}, min_spread {min_spread}; "
                "the first two must be at least 1, deadline_s above 0 and finite, and min_spread above 0 and at most 1"
            )
        if on_failure not in ("keep", "error"):
            raise ValueError(f"on_failure is {on_failure!r}; use 'keep' or 'error'")
        self._client = own_client(AsyncClient(client) if isinstance(client, str) else client)
        self._every_n_steps, self._groups, self._deadline_s = every_n_steps, groups, deadline_s
        self._parameters, self._min_spread = dict(parameters or {}), min_spread
        self._on_failure = on_failure
        self._history = GroupHistory({}, {})
        self._batches = self._last = 0
        self._warned = False

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reject trainers that would never call this callback, and a deadline longer than ranks wait for each other."""
        if not isinstance(args, RubricGRPOConfig):
            raise ValueError("EvolvingRubrics needs a RubricGRPOTrainer; other trainers do not pass it responses")
        if args.world_size > 1 and self._deadline_s >= args.ddp_timeout:
            raise ValueError(
                f"deadline_s is {self._deadline_s:g}, but ranks wait only {args.ddp_timeout} s for each other; "
                "raise ddp_timeout, or lower deadline_s"
            )

    def on_scored(self, generation: ScoredGeneration) -> Mapping[str, float]:
        """Remember a batch's groups, and evolve their rubrics every `every_n_steps` steps."""
        if not generation.training:
            return {}
        reward = self._check_reward(generation.reward)
        rows = reward.last.rows if reward.last is not None else ()
        self._batches += 1
        groups = evolvable_groups(rows, self._batches, generation.first)
        if not groups and not self._warned and not self._history.groups:
            self._warned = True
            logger.warning(
                "no rubric of this batch can evolve: each is inline or references a version; publish rubrics under a "
                "name, and reference them without a version"
            )
        self._history = self._history.with_groups(groups, self._groups)
        step = generation.step + 1
        if step - self._last < self._every_n_steps:
            return {}
        self._last = step
        self._history = self._gather_history()
        object_list: list[Any] = [self._run_evolution(reward, step) if PartialState().is_main_process else None]
        evolution: EvolutionResult = broadcast_object_list(object_list)[0]
        reward.repin(evolution.pins)
        total = len(self._history.groups)
        self._history = GroupHistory({}, self._history.prompts)
        if evolution.failures and self._on_failure == "error":
            raise EvolvingFailed(_failure_message(evolution.failures))
        counts = Counter(unchanged.reason for unchanged in evolution.unchanged.values())
        return {
            "evolving/groups": float(total),
            "evolving/evolved": float(len(evolution.pins)),
            "evolving/criteria": float(evolution.criteria),
            "evolving/failed": float(len(evolution.failures)),
            "evolving/seconds": evolution.seconds,
            **{f"evolving/unchanged/{reason}": float(count) for reason, count in counts.items()},
        }

    def state(self) -> Mapping[str, Any]:
        """Return the step of the last evolution, and the groups seen since on all ranks. Call it on all ranks."""
        seen = self._gather_history()
        return {
            "last": self._last,
            "batches": self._batches,
            "groups": SEEN_GROUPS.dump_python(list(seen.groups.values()), mode="json", exclude_none=True),
            "prompts": dict(seen.prompts),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint. The main process takes the groups of all ranks.

        Raises:
            ValueError: the state is invalid.
        """
        try:
            groups = SEEN_GROUPS.validate_python(state["groups"] if PartialState().is_main_process else [])
            self._last, self._batches = int(state["last"]), int(state["batches"])
            self._history = GroupHistory({one.reference: one for one in groups}, dict(state["prompts"]))
        except (LookupError, TypeError, ValidationError) as error:
            raise ValueError(f"the checkpoint's state of EvolvingRubrics cannot be read: {error!r}") from error

    def _check_reward(self, reward: RubricReward | None) -> RubricReward:
        if reward is None:
            raise ValueError("EvolvingRubrics evolves the rubrics of a RubricReward, but the trainer has none; add one")
        mode, options = reward.judging_options
        kinds = options.get("kinds")
        if mode in MODES_WITHOUT_POINTS or (kinds is not None and "point" not in kinds):
            setting = f"mode {mode!r}" if mode in MODES_WITHOUT_POINTS else f"kinds = {kinds!r}"
            raise ValueError(
                f"EvolvingRubrics writes criteria of kind 'point', which the RubricReward ignores with {setting}; use "
                "another mode, such as 'graded_mean', or leave EvolvingRubrics out"
            )
        return reward

    def _gather_history(self) -> GroupHistory:
        return merge_histories(gather_object([self._history]), self._groups)

    def _run_evolution(self, reward: RubricReward, step: int) -> EvolutionResult:
        shared = set(self._history.shared)
        groups = [one for reference, one in self._history.groups.items() if reference not in shared]
        mode, options = reward.judging_options
        config = EvolutionConfig(mode, options, self._parameters, self._min_spread, self._deadline_s, step)

        async def work() -> EvolutionResult:
            try:
                return await evolve(self._client, groups, reward.pinned, config)
            finally:
                await self._client.aclose()

        try:
            with ThreadPoolExecutor(1) as pool:  # this thread may have a running event loop, as in a notebook
                evolution = pool.submit(asyncio.run, work()).result()
        except Exception as error:
            logger.exception("step %d: rubrics could not be evolved", step)
            failure = UnchangedRubric("service", f"{type(error).__name__}: {error}")
            evolution = EvolutionResult(unchanged={one.reference: failure for one in groups})
        for reference in shared:
            evolution.unchanged[reference] = UnchangedRubric(
                "shared", "the rubric judges several prompts, but new criteria are about a single prompt"
            )
        _log_evolution(evolution, step)
        return evolution


def _log_evolution(evolution: EvolutionResult, step: int) -> None:
    total = len(evolution.pins) + len(evolution.unchanged)
    logger.info(
        "step %d: %d of %d rubrics evolved by %d criteria", step, len(evolution.pins), total, evolution.criteria
    )
    for reference, unchanged in evolution.unchanged.items():
        level = logging.WARNING if reference in evolution.failures else logging.INFO
        logger.log(
            level, "step %d: rubric %s stays unchanged (%s): %s", step, reference, unchanged.reason, unchanged.detail
        )


def _failure_message(failures: Mapping[str, UnchangedRubric]) -> str:
    reference, unchanged = next(iter(failures.items()))
    return (
        f"{len(failures)} rubrics could not be evolved, including {reference} ({unchanged.reason}): "
        f"{unchanged.detail}. To continue with the old rubrics, set on_failure='keep'"
    )
