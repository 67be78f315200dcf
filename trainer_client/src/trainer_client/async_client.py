"""The client that a trainer calls Adjudge with, for code in an event loop; `Client` is its twin and its
reference."""

from collections.abc import Sequence
from typing import Unpack

from trainer_client._async_rubric_methods import AsyncRubricMethods
from trainer_client._ledger_methods import AsyncLedgerMethods
from trainer_client._operation_methods import AsyncOperationMethods
from trainer_client._options import ComparisonKeywords, JudgingKeywords, RewardKeywords
from trainer_client._requests import (
    GroupLike,
    PairLike,
    RubricLike,
    comparison_request,
    rewards_request,
    verdicts_request,
)
from trainer_client._streams import NDJSON, AsyncRewardStream, RewardStreamParser
from trainer_client.wire import ComparisonAnswer, FailurePolicy, RewardAnswer, RewardMode, VerdictAnswer


class AsyncClient(AsyncRubricMethods, AsyncLedgerMethods, AsyncOperationMethods):
    """A connection to one Adjudge service, to be shared by the tasks of one event loop and closed when done.

    Args and errors are those of `Client`, but that `transport` and `sleep` are async.
    """

    async def rewards(
        self,
        groups: Sequence[GroupLike],
        rubric: RubricLike | None = None,
        mode: RewardMode = "weighted_mean",
        *,
        on_failure: FailurePolicy = "null",
        deadline_s: float = 60.0,
        step: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[RewardKeywords],
    ) -> RewardAnswer:
        """Judge groups of responses by a rubric and reward them; see `Client.rewards`."""
        return await self._send(
            rewards_request(
                "rewards",
                self.run,
                groups,
                rubric,
                mode,
                options,
                on_failure=on_failure,
                deadline_s=deadline_s,
                step=step,
                idempotency_key=idempotency_key,
            )
        )

    def stream_rewards(
        self,
        groups: Sequence[GroupLike],
        rubric: RubricLike | None = None,
        mode: RewardMode = "weighted_mean",
        *,
        on_failure: FailurePolicy = "null",
        deadline_s: float = 60.0,
        step: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[RewardKeywords],
    ) -> AsyncRewardStream:
        """Reward groups and give each as soon as it is done; see `Client.stream_rewards`."""
        request = rewards_request(
            "stream_rewards",
            self.run,
            groups,
            rubric,
            mode,
            options,
            on_failure=on_failure,
            deadline_s=deadline_s,
            step=step,
            idempotency_key=idempotency_key,
        )
        parser = RewardStreamParser(self.base_url)
        return AsyncRewardStream(self._stream_groups(request.with_accept(NDJSON), parser), parser)

    async def verdicts(
        self,
        groups: Sequence[GroupLike],
        rubric: RubricLike | None = None,
        *,
        deadline_s: float = 60.0,
        step: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[JudgingKeywords],
    ) -> VerdictAnswer:
        """Judge groups of responses without making a reward; see `Client.verdicts`."""
        request = verdicts_request(
            self.run,
            groups,
            rubric,
            options,
            deadline_s=deadline_s,
            step=step,
            idempotency_key=idempotency_key,
        )
        return await self._send(request)

    async def compare(
        self,
        pairs: Sequence[PairLike],
        rubric: RubricLike | None = None,
        *,
        question: str | None = None,
        deadline_s: float = 60.0,
        step: int | None = None,
        **options: Unpack[ComparisonKeywords],
    ) -> ComparisonAnswer:
        """Ask which of two responses is better; see `Client.compare`."""
        return await self._send(
            comparison_request(self.run, pairs, rubric, question, options, deadline_s=deadline_s, step=step)
        )
