"""verl's custom reward function: get the rewards of responses from an Adjudge service.

verl requires a number as a reward. If the judge gives none, the reward is NaN, which cannot be mistaken for a reward;
the estimators of `trainer_client.verl.estimators` leave such responses out. The prompt and the judging columns of a
response are read from verl's `extra_info`.
"""

import asyncio
import hashlib
import json
import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from pydantic import ValidationError

from trainer_client import AsyncClient, _inputs
from trainer_client._inputs import RubricOrReference, as_text, to_plain_data
from trainer_client.client.calls import URL_VARIABLE, RubricLike
from trainer_client.client.keywords import RewardKeywords
from trainer_client.errors import AdjudgeError, InvalidRequest, outage_kind
from trainer_client.rewards import UnsuitableRubric
from trainer_client.rewards import component_names as names_of_components
from trainer_client.rows.tables import failure_kinds
from trainer_client.wire import (
    FailurePolicy,
    Group,
    ResponseReward,
    RewardMode,
    RewardOptions,
    RubricContent,
    needs_whole_groups,
)
from trainer_client.wire.problems import field_errors

__all__ = ["ScoreKeywords", "compute_score", "compute_score_batch"]

StepDeltas = Literal["carry", "fold"]

_RATE_LIMITED = "verl.experimental.reward_loop.reward_manager.limited"

logger = logging.getLogger(__name__)


class ScoreKeywords(RewardKeywords, total=False):
    """The entries of `reward_kwargs`.

    Every other one is an option of `Client.rewards`. Penalties are not supported, since verl provides neither a
    response's tokens nor whether it was cut off.

    Attributes:
        url: the service's address; by default the environment variable ADJUDGE_URL.
        run: the training run that the request is charged to.
        rubric: a reference or an inline rubric, for rows without a rubric of their own.
        mode: how verdicts become a reward.
        on_failure: `null` gives NaN if judging fails; `error` raises, see `docs/how-to/train-with-verl.md`.
        deadline_s: seconds that the service has.
        step_deltas: how to use the steps' deltas in the mode `stepwise`: `carry` returns them in `steps`, and the score
            is the base reward; `fold` adds their sum to the score (SRaR's ablation RaR).
        component_names: with the option `components`, the components that get a key; by default those of `rubric`, if
            that is not a reference, or all kinds.
        retries, retry_budget_s: as for `Client`.
    """

    url: str | None
    run: str | None
    rubric: RubricLike | None
    mode: RewardMode
    on_failure: FailurePolicy
    deadline_s: float
    step_deltas: StepDeltas
    component_names: Sequence[str] | None
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
    component_names: Sequence[str] | None = None,
    retries: int = 4,
    retry_budget_s: float = 120.0,
    reward_router_address: object = None,
    reward_model_tokenizer: object = None,
    **options: Unpack[RewardKeywords],
) -> dict[str, Any]:
    """Score one response. The signature is that of verl's reward loop.

    Args:
        data_source, reward_router_address, reward_model_tokenizer: passed by verl; ignored.
        solution_str: the response.
        ground_truth: text or a number, shown to the judge and used by verifying programs; None if there is none.
        extra_info: the row's `prompt` and judged columns; see `read_row`.
        url, run, …, options: see `ScoreKeywords`.

    Returns:
        The same keys for every response: `score`, the reward or NaN; `rubric_reward`, the reward or None; `unscored`,
        1.0 or 0.0; `status`; `failures`, the kinds of failures, separated by commas; `steps`, JSON text of [number,
        start, end, delta] of each step with a delta, in code points of the response; the options `step_rule`,
        `reasoning` and `prompt_opens`, if given; with `components`, `rubric/NAME` for each, NaN where it has no reward,
        and `component_weights`, JSON text of the weight of each; {} if the mode is not linear.

    Raises:
        InvalidRequest, NotFound: the request is invalid.
        AdjudgeError: judging failed with `on_failure="error"`. Not under the manager `rate_limited`: it gets NaN.
    """
    fixed: dict[str, Any] = _step_options(options)
    try:
        _check_supported(mode, options, step_deltas)
        fixed |= _component_fields(component_names, rubric, mode, options)
        answer = await _client(url, run, retries, retry_budget_s).rewards(
            [read_row(solution_str, ground_truth, extra_info)],
            read_rubric(rubric),
            mode,
            on_failure=on_failure,
            deadline_s=deadline_s,
            step=policy_version(extra_info),
            **options,
        )
        [group] = answer.groups
        [response] = group.responses
    except _handled_errors() as error:
        return _failed_result(error, on_failure) | fixed
    given: dict[str, Any] = {WEIGHTS_KEY: json.dumps(group.component_weights)}
    given |= {f"{COMPONENT_KEY}{name}": value for name, value in response.known_components.items()}
    return _score_result(response, step_deltas) | {name: given.get(name, value) for name, value in fixed.items()}


def _handled_errors() -> tuple[type[BaseException], ...]:
    """The errors that may not reach verl: all of them, if its reward manager makes them a score of 0."""
    return (Exception, asyncio.CancelledError) if _manager_zeroes_errors() else (AdjudgeError,)


def _check_supported(mode: RewardMode, options: RewardKeywords, step_deltas: StepDeltas) -> None:
    """Refuse what verl cannot do."""
    if step_deltas not in ("carry", "fold"):
        raise InvalidRequest(f"step_deltas is {step_deltas!r}; use 'carry' or 'fold'")
    if needs_whole_groups(mode, options.get("weighting")):
        raise InvalidRequest(
            "the mode or weighting compares the responses of a group with each other, and verl has them scored one "
            "at a time; choose another"
        )


def _failed_result(error: BaseException, on_failure: FailurePolicy) -> dict[str, Any]:
    """Return the result of a response that could not be scored, or raise its error again if training must see it."""
    outage = outage_kind(error) if isinstance(error, AdjudgeError) else None
    if not _manager_zeroes_errors() and (outage is None or on_failure == "error"):
        raise error
    if outage is not None:
        return _result(None, "unscored", [outage])
    kind = "timeout" if isinstance(error, asyncio.CancelledError) else "error"
    logger.error("the response has no reward (verl's reward manager would have scored it 0): %s", error or kind)
    return _result(None, "unscored", [kind])


def compute_score_batch(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[object],
    extra_infos: Sequence[Mapping[str, Any] | None],
    *,
    concurrency: int = 64,
    **keywords: Unpack[ScoreKeywords],
) -> list[dict[str, Any]]:
    """Score N responses. The signature is that of the reward manager `batch` of earlier versions of verl.

    Args:
        data_sources, solution_strs, ground_truths, extra_infos: N of each, see `compute_score`.
        concurrency: the number of responses to score at a time; each has its own `deadline_s`.
        keywords: the keywords of `compute_score`.

    Returns:
        The results of `compute_score` for the N responses, in order.

    Raises:
        AdjudgeError: as `compute_score`.
        ValueError: the arguments differ in length.
    """
    rows = list(zip(data_sources, solution_strs, ground_truths, extra_infos, strict=True))

    async def score_all() -> list[dict[str, Any]]:
        semaphore = asyncio.Semaphore(concurrency)

        async def score(row: tuple[str, str, object, Mapping[str, Any] | None]) -> dict[str, Any]:
            async with semaphore:
                return await compute_score(*row, **keywords)

        tasks = [asyncio.create_task(score(row)) for row in rows]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await close_clients()

    return asyncio.run(score_all())


def _manager_zeroes_errors() -> bool:
    """Whether verl's reward manager `rate_limited` is in use, which turns errors and timeouts into a score of 0."""
    manager = getattr(sys.modules.get(_RATE_LIMITED), "RateLimitedRewardManager", None)
    return bool(getattr(manager, "_class_initialized", False))


_clients: dict[tuple[str, str | None, int, float], AsyncClient] = {}
"""The clients by their settings. Module state, since verl calls a plain function."""


def _client(url: str | None, run: str | None, retries: int, retry_budget_s: float) -> AsyncClient:
    if url is None and not (url := os.environ.get(URL_VARIABLE, "").strip()):
        raise InvalidRequest(
            "the service's address is missing; set it, for example "
            f"+reward.custom_reward_function.reward_kwargs.url=http://judge:8000, or set {URL_VARIABLE}"
        )
    key = (url, run, retries, retry_budget_s)
    if key not in _clients:
        try:
            _clients[key] = AsyncClient(url, run, retries=retries, retry_budget_s=retry_budget_s)
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
    return _clients[key]


async def close_clients() -> None:
    """Close the connections of the running event loop."""
    for client in _clients.values():
        await client.aclose()


def _score_result(response: ResponseReward, step_deltas: StepDeltas) -> dict[str, Any]:
    steps = [(step.number, step.start, step.end, step.delta) for step in response.steps if step.delta is not None]
    reward = response.reward
    if reward is not None and step_deltas == "fold":
        reward, steps = math.fsum([reward, *(delta for *_, delta in steps)]), []
    return _result(reward, response.status, failure_kinds(response), steps)


COMPONENT_KEY, WEIGHTS_KEY = "rubric/", "component_weights"
"""What the keys of component rewards begin with, and the key of their weights."""


def _component_fields(
    names: Sequence[str] | None, rubric: object, mode: RewardMode, options: Mapping[str, Any]
) -> dict[str, float | str]:
    """The fields of component rewards, without values. verl needs the same ones for every response."""
    if options.get("components") is None:
        return {}
    if isinstance(names, str):
        raise InvalidRequest(f"component_names is {names!r}; give a list, such as component_names=[{names}]")
    if names is None:
        content = read_rubric(rubric)
        fields = {name: value for name, value in options.items() if name in RewardOptions.model_fields}
        try:
            asked = RewardOptions.model_validate(fields | {"mode": mode})
            names = names_of_components(content.criteria if isinstance(content, RubricContent) else None, asked)
        except ValidationError as error:
            problem = field_errors(error.errors(include_url=False, include_input=False))[0]
            raise InvalidRequest(f"reward_kwargs: {problem.message}") from error
        except UnsuitableRubric as error:
            raise InvalidRequest(f"rubric: {error}") from error
    if not names:
        raise InvalidRequest(
            "the components are not known before rubrics are read, and verl needs the same keys for every response; "
            "name them, for example +reward.custom_reward_function.reward_kwargs.component_names=[clarity,safety]"
        )
    return {f"{COMPONENT_KEY}{name}": math.nan for name in names} | {WEIGHTS_KEY: "{}"}


def _step_options(options: Mapping[str, Any]) -> dict[str, str]:
    given = {"step_rule": options.get("steps", "headings"), "reasoning": options.get("reasoning", "strip")}
    opens = options.get("prompt_opens")
    return given if opens is None else given | {"prompt_opens": opens}


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


MESSAGES_FIELD = "response_messages"
"""The entry of an agent loop's `extra_fields` with the messages of the response, without those of the prompt."""

_STEP_FIELD = "max_global_steps"


def read_row(solution: str, ground_truth: object, extra_info: Mapping[str, Any] | None) -> Group:
    """Convert a response to a group of one. Equal prompts with equal columns get equal ids.

    Args:
        solution: the decoded response.
        ground_truth: text or a number; None or empty text if there is none.
        extra_info: may hold `prompt` (or verl's own `question`), `rubric`, `grounding`, `reference_answer` and, from an
            agent loop's `extra_fields`, `response_messages`, which are judged in place of the decoded response. Other
            entries, such as verl's own, are ignored.

    Raises:
        InvalidRequest: a column is invalid; names the column.
    """
    columns = {} if extra_info is None else extra_info
    prompt = columns.get("prompt")
    prompt = columns.get("question") if prompt is None else prompt
    if prompt is None:
        raise InvalidRequest(
            "the prompt is missing, which verl does not pass to reward functions; add it to extra_info as 'prompt', as "
            "text or messages"
        )
    fields: dict[str, Any] = {
        "prompt": to_plain_data(prompt),
        "grounding": columns.get("grounding"),
    }
    try:
        fields["reference_answer"] = as_text("extra_info.reference_answer", columns.get("reference_answer")) or None
        fields["ground_truth"] = as_text("ground_truth", ground_truth) or None
        fields["rubric"] = read_rubric(columns.get("rubric"))
        messages = columns.get(MESSAGES_FIELD)
        response = solution if messages is None else to_plain_data(messages)
        group = Group.model_validate({"id": "g", "responses": [response], **fields})
    except ValidationError as error:
        problem = field_errors(error.errors(include_url=False, include_input=False))[0]
        raise InvalidRequest(f"extra_info: {problem.field}: {problem.message}") from error
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    shared = json.dumps(group.model_dump(exclude={"id", "responses"}), sort_keys=True)
    return group.model_copy(update={"id": hashlib.sha256(shared.encode()).hexdigest()[:32]})


def read_rubric(given: object) -> RubricOrReference | None:
    """Read a rubric: a reference, a list of criteria, `{"criteria": […]}`, or JSON text of one of these.

    Raises:
        InvalidRequest: the value is not a rubric.
    """
    try:
        return _inputs.parse_rubric(given, drop_nulls=True)
    except ValueError as error:
        raise InvalidRequest(f"rubric: {error}") from error


def policy_version(extra_info: Mapping[str, Any] | None) -> int | None:
    """Return the training step whose weights finished the response, or None if verl does not provide it."""
    step = (extra_info or {}).get(_STEP_FIELD)
    return step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None
