"""`RubricScorer`: the rewards of responses, for code that is called by another library.

Such code is called from threads, from event loops that come and go, and from worker processes. A scorer therefore sends
its requests from one event loop of its own in each process, and needs no closing. It can be pickled.
"""

import asyncio
import os
import threading
import warnings
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, Unpack

from trainer_client import AsyncClient, Client
from trainer_client._inputs import parse_rubric
from trainer_client.client.calls import RubricLike, service_url
from trainer_client.client.keywords import RewardKeywords
from trainer_client.errors import AdjudgeError, InvalidRequest
from trainer_client.rows.clients import own_client
from trainer_client.rows.judging import ScoringConfig, judge
from trainer_client.rows.pins import RubricPins
from trainer_client.rows.reading import JudgedColumns, RowReader
from trainer_client.rows.tables import failure_kinds
from trainer_client.wire import NEEDS_NO_RUBRIC, FailurePolicy, ResponseReward, RewardMode

ResultT = TypeVar("ResultT")


class NoReward(AdjudgeError):
    """A response has no reward: judging it failed, or the service did not answer in time."""


class IgnoredColumnWarning(UserWarning):
    """A column looks like one that the judge sees, but is not."""


class Scored(NamedTuple):
    """The reward of one response.

    Attributes:
        reward: the reward; None if the judge gave none.
        answer: the service's answer, with every verdict; None if there was none.
        failures: the kinds of failures, such as `timeout` or `unreachable`.
    """

    reward: float | None
    answer: ResponseReward | None
    failures: tuple[str, ...]

    @property
    def scores(self) -> dict[str, float]:
        """The score of each criterion that has one, by its id."""
        verdicts = self.answer.verdicts if self.answer is not None else ()
        return {verdict.criterion: verdict.score for verdict in verdicts if verdict.score is not None}

    @property
    def components(self) -> dict[str, float]:
        """The component rewards by name, where `components` was asked for and no missing verdict could change one."""
        return {} if self.answer is None else self.answer.known_components

    @property
    def explanation(self) -> str:
        """One line for each criterion: its id, its score, and the judge's reasons if it wrote some."""
        lines = []
        for verdict in self.answer.verdicts if self.answer is not None else ():
            score = verdict.status if verdict.score is None else f"{verdict.score:g}"
            lines.append(f"{verdict.criterion}: {score}{f' ({verdict.rationale})' if verdict.rationale else ''}")
        return "\n".join(lines)

    @property
    def metadata(self) -> dict[str, Any]:
        """What an evaluation keeps beside the number, as JSON-compatible data."""
        return {
            "status": self.answer.status if self.answer is not None else "unscored",
            "failures": list(self.failures),
            "verdicts": [verdict.model_dump(mode="json", exclude_unset=True) for verdict in self.answer.verdicts]
            if self.answer is not None
            else [],
        }


class RubricScorer:
    """Scores responses by rubrics.

    Args:
        client: the service's address, or a client whose settings are copied; by default the environment variable
            ADJUDGE_URL. With an address, requests are retried for as long as the deadline allows.
        rubric: a reference, an inline rubric or a list of criteria, for rows without a rubric of their own.
        run: the run under which requests are recorded; by default the client's.
        mode: how verdicts become a reward.
        on_failure: the reward of a response when judging fails. With `null` it has none.
        deadline_s: seconds that the service has to judge a call's responses.
        grace_s: seconds to keep waiting after the deadline.
        columns: the row's own name for a judged column, such as `{"ground_truth": "answer"}`.
        options: see `Client.rewards`.

    Raises:
        InvalidRequest: an option or the rubric is invalid.
        TypeError: an option is unknown.
        ValueError: there is no address, or a column is unknown.
    """

    def __init__(
        self,
        client: str | Client | AsyncClient | None = None,
        rubric: RubricLike | None = None,
        *,
        run: str | None = None,
        mode: RewardMode = "weighted_mean",
        on_failure: FailurePolicy = "null",
        deadline_s: float = 60.0,
        grace_s: float = 5.0,
        columns: Mapping[str, str | None] | None = None,
        **options: Unpack[RewardKeywords],
    ) -> None:
        self._client = own_client(service_url(None) if client is None else client)
        self._client.run = self._client.run or run
        try:
            parsed = parse_rubric(rubric)
        except ValueError as error:
            raise InvalidRequest(f"rubric: {error}") from error
        self._config = ScoringConfig(
            rubric=parsed,
            mode=mode,
            on_failure=on_failure,
            deadline_s=deadline_s,
            grace_s=grace_s,
            options=options,
        )
        self._config.check()
        self._columns = JudgedColumns(columns)
        self._pins = RubricPins()
        self._warned: set[str] = set()

    @property
    def address(self) -> str:
        """The service's address."""
        return self._client.base_url

    async def score(
        self,
        prompts: Sequence[Any],
        responses: Sequence[Any],
        columns: Mapping[str, Sequence[Any]] | None = None,
        *,
        step: int | None = None,
    ) -> list[Scored]:
        """Score N responses; those that share a prompt and all judged columns are judged as one group.

        Args:
            prompts, responses: N texts or lists of messages each.
            columns: N values of each column; the judge sees `rubric`, `grounding`, `reference_answer` and
                `ground_truth`.
            step: the training step to record.

        Returns:
            N results. Failures of the service or the judge leave a response without a reward.

        Raises:
            InvalidRequest, NotFound: a row or the rubric is invalid.
            AdjudgeError: judging failed and `on_failure` is `error`.
        """
        return await asyncio.wrap_future(_submit(self._score(prompts, responses, dict(columns or {}), step)))

    async def score_one(
        self, prompt: Any, response: Any, row: Mapping[str, Any] | None = None, *, step: int | None = None
    ) -> Scored:
        """Score one response; see `score`. A mode or weighting that compares responses is refused."""
        return await asyncio.wrap_future(_submit(self._score_one(prompt, response, row, step)))

    def score_blocking(
        self, prompt: Any, response: Any, row: Mapping[str, Any] | None = None, *, step: int | None = None
    ) -> Scored:
        """Score one response, and block the calling thread until it is scored; see `score`."""
        return _submit(self._score_one(prompt, response, row, step)).result()

    def require(self, scored: Scored) -> float:
        """Return the reward.

        Raises:
            NoReward: there is none.
        """
        if scored.reward is None:
            kinds = ", ".join(f"1 {kind}" for kind in scored.failures or ("missing",))
            raise NoReward(
                f"the response has no reward from {self.address} ({kinds}), and a failure of the judge is not a 0. "
                f"Check {self.address}/readyz; to train on a number where judging fails, set on_failure to 'skip' or "
                "'zero'"
            )
        return scored.reward

    async def _score_one(self, prompt: Any, response: Any, row: Mapping[str, Any] | None, step: int | None) -> Scored:
        if self._config.compares_responses:
            raise InvalidRequest(
                "the mode or weighting compares the responses of a group with each other, and this response is scored "
                "alone; choose another"
            )
        columns = {name: [value] for name, value in (row or {}).items()}
        [scored] = await self._score([prompt], [response], columns, step)
        return scored

    async def _score(
        self, prompts: Sequence[Any], responses: Sequence[Any], columns: Mapping[str, Sequence[Any]], step: int | None
    ) -> list[Scored]:
        self._warn_about_lookalikes(columns)
        config = replace(self._config, step=step)
        reader = RowReader(
            rubric=config.rubric, without_rubric=None if config.mode in NEEDS_NO_RUBRIC else "refuse", step=step
        )
        rows = reader.read(prompts, responses, None, self._columns.rename(columns))
        answers = await judge(self._client, rows, config, self._pins)
        return [
            Scored(None, None, (row.failure,))
            if row.answer is None
            else Scored(row.answer.reward, row.answer, failure_kinds(row.answer))
            for row in answers.rows
        ]

    def _warn_about_lookalikes(self, given: Mapping[str, Any]) -> None:
        for column, judged in self._columns.ignored_lookalikes(given):
            if column not in self._warned:
                self._warned.add(column)
                warnings.warn(
                    f"the judge does not see {column!r}, which looks like its {judged}; to show it, pass "
                    f"columns={{{judged!r}: {column!r}}}, and if it is something else, columns={{{judged!r}: None}}",
                    IgnoredColumnWarning,
                    stacklevel=2,
                )


class _LoopThread:
    """An event loop that runs in a daemon thread of this process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="adjudge-scorer", daemon=True).start()


_loop_thread: _LoopThread | None = None
_lock = threading.Lock()


def _submit(work: Coroutine[Any, Any, ResultT]) -> "Future[ResultT]":
    """Run a coroutine on the event loop of this process, which a forked process does not inherit."""
    global _loop_thread
    with _lock:
        if _loop_thread is None or _loop_thread.process != os.getpid():
            _loop_thread = _LoopThread()
        return asyncio.run_coroutine_threadsafe(work, _loop_thread.loop)


def _forget_loop() -> None:
    global _lock, _loop_thread
    _lock, _loop_thread = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_loop)
