"""The client that a trainer calls Adjudge with, for code without an event loop; `AsyncClient` is its twin."""

import random as _random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx2

from trainer_client._answers import AnswerT, error_for_transport, is_ready, read_answer
from trainer_client._criteria import CriterionLike
from trainer_client._requests import (
    Call,
    GroupLike,
    RubricLike,
    client_options,
    publish_call,
    rewards_call,
    rubric_call,
    rubrics_call,
    send_options,
)
from trainer_client._retry import RetryPolicy
from trainer_client.errors import AdjudgeError, ConnectionFailed, TimedOut
from trainer_client.wire import (
    FailurePolicy,
    Protocol,
    RewardAnswer,
    RewardMode,
    RubricSummary,
    RubricVersion,
)


class Client:
    """A connection to one Adjudge service, to be shared by threads and closed when done.

    Args:
        base_url: the service's address, such as `http://judge:8000`.
        run: the training run that requests are charged to.
        timeout_s: seconds to wait for an answer; for rewards at least their deadline and a margin.
        retries: how often a request is tried again after a connection that failed, an overloaded service or
            any other problem that it calls retryable. Every request may be repeated: nothing is judged or
            published twice.
        retry_budget_s: no further try begins later than this many seconds after the first.
        headers: sent with every request.
        transport: an httpx2 transport in place of the network.
        sleep: waits between tries, given seconds.
        clock: gives seconds, for the retry budget.
        random: gives a number in [0, 1), for the jitter of waits.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        base_url: str,
        run: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        retry_budget_s: float = 120.0,
        headers: Mapping[str, str] | None = None,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self.base_url = base_url
        self.run = run
        self._timeout_s = timeout_s
        self._policy = RetryPolicy(retries, retry_budget_s, clock, random)
        self._sleep = sleep
        self._http = httpx2.Client(transport=transport, **client_options(base_url, timeout_s, headers))

    def rewards(
        self,
        groups: Sequence[GroupLike],
        rubric: RubricLike | None = None,
        mode: RewardMode = "weighted_mean",
        *,
        protocol: Protocol | None = None,
        on_failure: FailurePolicy = "null",
        deadline_s: float = 60.0,
        step: int | None = None,
        truncate: bool = False,
        format_weight: float = 0.1,
    ) -> RewardAnswer:
        """Judge groups of responses by a rubric and reward them.

        Args:
            groups: `Group` models or mappings of their fields: `id`, `prompt`, `responses`, …
            rubric: a reference (`name`, `name@3`, `sha256:…`), or the rubric itself; groups may carry their
                own.
            mode: how verdicts become a reward, see `trainer_client.rewards`.
            protocol: how the judge is asked; the mode's own unless given.
            on_failure: what a response is worth on which the judge failed: `null`, `error`, `zero` or `skip`.
            deadline_s: seconds that the service has; what is not judged by then comes back failed.
            step: the training step, for the record.
            truncate: judge responses too long for the judge with their middle left out, rather than fail
                them.
            format_weight: lambda of the `stepwise` base reward.

        Returns:
            Rewards and verdicts, groups and responses in the order given. A reward is None where the judge
            failed.

        Raises:
            InvalidRequest: the request breaks the contract; nothing was sent if the error has no status.
            RubricRefused: the rubric cannot feed the mode.
            UnknownRubric: there is no such rubric.
            JudgingFailed: the judge failed and `on_failure` is `error`.
            AdjudgeError: the service could not be reached or did not answer as it should; see its subclasses.
        """
        return self._send(
            rewards_call(
                run=self.run,
                groups=groups,
                rubric=rubric,
                mode=mode,
                protocol=protocol,
                on_failure=on_failure,
                deadline_s=deadline_s,
                step=step,
                truncate=truncate,
                format_weight=format_weight,
            )
        )

    def publish_rubric(self, name: str, criteria: Sequence[CriterionLike]) -> RubricVersion:
        """Publish criteria as the next version of a rubric; identical content gives the version that has it.

        Raises:
            InvalidRequest: the name or the criteria break the contract.
            AdjudgeError: as for `rewards`.
        """
        return self._send(publish_call(name, criteria))

    def rubric(self, reference: str) -> RubricVersion:
        """Fetch a rubric by `name` (its newest version), `name@3` or `sha256:…`.

        Raises:
            InvalidRequest: the reference is none of these.
            UnknownRubric: there is no such rubric.
            AdjudgeError: as for `rewards`.
        """
        return self._send(rubric_call(reference))

    def rubrics(self, prefix: str = "") -> Iterator[RubricSummary]:
        """Go through the rubrics whose names begin with a prefix, by name, fetching a page at a time.

        Raises:
            AdjudgeError: as for `rewards`.
        """
        after: str | None = None
        while True:
            page = self._send(rubrics_call(prefix, after))
            yield from page.rubrics
            if page.next_cursor is None:
                return
            after = page.next_cursor

    def ready(self) -> bool:
        """Whether the service can judge now; False too where it cannot be reached. Asks once.

        Raises:
            AdjudgeError: what answers is no Adjudge.
        """
        try:
            return is_ready(self._answer(method="GET", url="/readyz", timeout=self._timeout_s))
        except (ConnectionFailed, TimedOut):
            return False

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, call: Call[AnswerT]) -> AnswerT:
        tries = self._policy.start()
        while True:
            try:
                return read_answer(self._answer(**send_options(call, self._timeout_s)), call.answer)
            except AdjudgeError as error:
                wait = tries.wait_after(error)
                if wait is None:
                    raise
            self._sleep(wait)

    def _answer(self, **options: Any) -> httpx2.Response:
        try:
            return self._http.request(**options)
        except httpx2.RequestError as error:
            raise error_for_transport(error, self.base_url) from error
