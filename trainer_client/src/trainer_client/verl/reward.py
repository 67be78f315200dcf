"""verl's custom reward function: ask an Adjudge service for the rewards of a batch.

verl's custom reward function: what a response is worth, asked of an Adjudge service.

verl takes a number and nothing else for a reward. Where the judge gave none that number is NaN, which no code mistakes
for a reward: the estimators of `trainer_client.verl.estimators` leave such responses out. Makes no advantage.

From what verl tells of a response to a group of the wire: the columns of `extra_info`, read and checked.

Knows the columns by their names. Sends nothing.
"""

import asyncio
import hashlib
import json
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from trainer_client import AsyncClient, _columns
from trainer_client._columns import RubricOrReference, as_text, to_plain_data
from trainer_client.client.calls import RewardKeywords, RubricLike
from trainer_client.errors import (
    AdjudgeError,
    ConnectionFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    ServerError,
    TimedOut,
)
from trainer_client.wire import FailurePolicy, Group, ResponseReward, RewardMode
from trainer_client.wire.problems import field_errors

__all__ = ["ScoreKeywords", "compute_score", "compute_score_batch"]

_STEP_FIELD = "max_global_steps"


def read_row(solution: str, ground_truth: object, extra_info: Mapping[str, Any] | None) -> Group:
    """Read one response as a group of its own; equal prompts with equal columns get equal ids.

    Args:
        solution: the response, decoded.
        ground_truth: text or a number; None or empty text where there is none.
        extra_info: may hold `prompt` (or verl's own `question`), `rubric`, `grounding` and `reference_answer`. What
            else it holds, verl's own entries among it, is not looked at.

    Raises:
        InvalidRequest: a column is none of what it may be; names the column.
    """
    columns = {} if extra_info is None else extra_info
    prompt = columns.get("prompt")
    prompt = columns.get("question") if prompt is None else prompt
    if prompt is None:
        raise InvalidRequest(
            "verl tells a reward function nothing of the prompt; give extra_info a 'prompt': text, or messages"
        )
    fields: dict[str, Any] = {
        "prompt": to_plain_data(prompt),
        "grounding": columns.get("grounding"),
    }
    try:
        fields["reference_answer"] = as_text("extra_info.reference_answer", columns.get("reference_answer")) or None
        fields["ground_truth"] = as_text("ground_truth", ground_truth) or None
        fields["rubric"] = read_rubric(columns.get("rubric"))
        group = Group.model_validate({"id": "g", "responses": [solution], **fields})
    except ValidationError as error:
        wrong = field_errors(error.errors(include_url=False, include_input=False))[0]
        raise InvalidRequest(f"extra_info: {wrong.field}: {wrong.message}") from error
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    shared = json.dumps(group.model_dump(exclude={"id", "responses"}), sort_keys=True)
    return group.model_copy(update={"id": hashlib.sha256(shared.encode()).hexdigest()[:32]})


def read_rubric(given: object) -> RubricOrReference | None:
    """Read a rubric: a reference, a list of criteria, `{"criteria": […]}`, or JSON text of one of these.

    Raises:
        InvalidRequest: it is none of these.
    """
    try:
        return _columns.parse_rubric(given, drop_nulls=True)
    except ValueError as error:
        raise InvalidRequest(f"rubric: {error}") from error


def policy_version(extra_info: Mapping[str, Any] | None) -> int | None:
    """Give the training step whose weights finished the response, where verl tells it."""
    step = (extra_info or {}).get(_STEP_FIELD)
    return step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None


StepDeltas = Literal["carry", "fold"]
_Clients = dict[tuple[str, str | None, int, float], AsyncClient]

_OUTAGES: dict[type[AdjudgeError], str] = {
    ConnectionFailed: "unreachable",
    TimedOut: "timeout",
    Overloaded: "overloaded",
    NotReady: "not_ready",
    ServerError: "server",
}
"""What is nobody's mistake, by the name it is logged under."""

_RATE_LIMITED = "verl.experimental.reward_loop.reward_manager.limited"

logger = logging.getLogger(__name__)

_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _Clients] = WeakKeyDictionary()
"""verl calls a bare function, which has no other place to keep its connections."""


class ScoreKeywords(RewardKeywords, total=False):
    """What `reward_kwargs` may hold; `compute_score` says what it means."""

    url: str | None
    run: str | None
    rubric: RubricLike | None
    mode: RewardMode
    on_failure: FailurePolicy
    deadline_s: float
    step_deltas: StepDeltas
    retries: int
    retry_budget_s: float


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object = None,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    run: str | None = None,
    rubric: RubricLike | None = None,
    mode: RewardMode = "weighted_mean",
    on_failure: FailurePolicy = "null",
    deadline_s: float = 60.0,
    step_deltas: StepDeltas = "carry",
    retries: int = 4,
    retry_budget_s: float = 120.0,
    reward_router_address: object = None,
    reward_model_tokenizer: object = None,
    **options: Unpack[RewardKeywords],
) -> dict[str, Any]:
    """Score one response, as verl's reward loop asks for it.

    Args:
        data_source: not looked at.
        solution_str: the response.
        ground_truth: text or a number, shown to the judge and used by programs that verify; None where there is none.
        extra_info: the row's `prompt`, `rubric`, `grounding` and `reference_answer`; all but the first may be missing.
        url: the service's address; needed.
        run: the training run that the request is charged to.
        rubric: a reference or the rubric itself, for rows that name none.
        mode: how verdicts become a reward.
        on_failure: `null` gives NaN where the judge failed; with `error` this raises, see `docs/verl.md`.
        deadline_s: seconds that the service has.
        step_deltas: what becomes of the steps' deltas in the mode `stepwise`: `carry` tells of them in `steps` and
            leaves the score the base reward; `fold` adds their sum to it (SRaR's ablation RaR).
        retries: as for `Client`.
        retry_budget_s: as for `Client`.
        reward_router_address: verl's own; not looked at.
        reward_model_tokenizer: verl's own; not looked at.
        options: see `Client.rewards`. No penalty is among them: verl tells neither a response's tokens nor whether it
            was cut off.

    Returns:
        The same keys for every response: `score`, the reward, NaN where there is none; `rubric_reward`, the same, None
        where there is none; `unscored`, 1.0 or 0.0; `status`; `failures`, their kinds with commas between them;
        `steps`, JSON text of [number, start, end, delta] of each step with a delta, in code points of the response.

    Raises:
        InvalidRequest, NotFound: the user's mistake.
        AdjudgeError: a failure, where `on_failure` is `error`. Under verl's reward manager `rate_limited`, which turns
            every exception into a score of 0, nothing is raised: the score is NaN.
    """
    suppressed_errors: tuple[type[BaseException], ...] = (
        (Exception, asyncio.CancelledError) if _manager_zeroes_errors() else ()
    )
    try:
        if url is None:
            raise InvalidRequest(
                "where is the service? Add +reward.custom_reward_function.reward_kwargs.url=http://judge:8000"
            )
        if step_deltas not in ("carry", "fold"):
            raise InvalidRequest(f"step_deltas is {step_deltas!r}; use 'carry' or 'fold'")
        answer = await _client(url, run, retries, retry_budget_s).rewards(
            [read_row(solution_str, ground_truth, extra_info)],
            read_rubric(rubric),
            mode,
            on_failure=on_failure,
            deadline_s=deadline_s,
            step=policy_version(extra_info),
            **options,
        )
        responses = [response for group in answer.groups for response in group.responses]
        if len(responses) != 1:
            raise ServerError(f"the service answered with {len(responses)} responses where one was asked for")
    except tuple(_OUTAGES) as error:
        if on_failure == "error" and not suppressed_errors:
            raise
        return _result(None, "unscored", [next(kind for known, kind in _OUTAGES.items() if isinstance(error, known))])
    except suppressed_errors as error:
        kind = "timeout" if isinstance(error, asyncio.CancelledError) else "error"
        logger.error("the response has no reward, since verl's reward manager would score it 0: %s", error or kind)
        return _result(None, "unscored", [kind])
    return _score_result(responses[0], step_deltas)


def compute_score_batch(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[object],
    extra_infos: Sequence[Mapping[str, Any] | None],
    *,
    concurrency: int = 64,
    **keywords: Unpack[ScoreKeywords],
) -> list[dict[str, Any]]:
    """Score N responses, as the reward manager `batch` of earlier versions of verl asks for it.

    Args:
        data_sources, solution_strs, ground_truths, extra_infos: N of each, see `compute_score`.
        concurrency: how many are asked for at a time; each has its own `deadline_s`.
        keywords: those of `compute_score`.

    Returns:
        N times what `compute_score` returns, in the same order.

    Raises:
        AdjudgeError: as `compute_score`.
        ValueError: there are not N of something.
    """
    rows = list(zip(data_sources, solution_strs, ground_truths, extra_infos, strict=True))

    async def score_all() -> list[dict[str, Any]]:
        free = asyncio.Semaphore(concurrency)

        async def score(row: tuple[str, str, object, Mapping[str, Any] | None]) -> dict[str, Any]:
            async with free:
                return await compute_score(*row, **keywords)

        tasks = [asyncio.create_task(score(row)) for row in rows]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for client in _clients.pop(asyncio.get_running_loop(), {}).values():
                await client.aclose()

    return asyncio.run(score_all())


def _manager_zeroes_errors() -> bool:
    """Whether verl's reward manager `rate_limited` is at work here, which makes 0 of what raises or takes too long."""
    manager = getattr(sys.modules.get(_RATE_LIMITED), "RateLimitedRewardManager", None)
    return bool(getattr(manager, "_class_initialized", False))


def _client(url: str, run: str | None, retries: int, retry_budget_s: float) -> AsyncClient:
    """Give the client of the loop that runs, the same one for the same settings."""
    clients = _clients.setdefault(asyncio.get_running_loop(), {})
    key = (url, run, retries, retry_budget_s)
    if key not in clients:
        try:
            clients[key] = AsyncClient(url, run, retries=retries, retry_budget_s=retry_budget_s)
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
    return clients[key]


def _score_result(response: ResponseReward, step_deltas: StepDeltas) -> dict[str, Any]:
    steps = [(step.number, step.start, step.end, step.delta) for step in response.steps if step.delta is not None]
    failed = [verdict.failure for verdict in response.verdicts if verdict.status == "failed"]
    kinds = dict.fromkeys(failure.kind if failure else "engine" for failure in failed)
    reward = response.reward
    if reward is not None and step_deltas == "fold":
        reward, steps = math.fsum([reward, *(delta for *_, delta in steps)]), []
    return _result(reward, response.status, list(kinds), steps)


def _result(
    reward: float | None, status: str, failures: Sequence[str], steps: Sequence[tuple[int, int, int, float]] = ()
) -> dict[str, Any]:
    known = reward is not None and math.isfinite(reward)
    return {
        "score": reward if known else math.nan,
        "rubric_reward": reward if known else None,
        "unscored": float(not known),
        "status": status,
        "failures": ",".join(failures),
        "steps": json.dumps(steps) if known else "[]",
    }
