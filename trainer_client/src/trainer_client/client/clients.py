"""`Client` and `AsyncClient`: what a trainer calls Adjudge with.

The client that a trainer calls Adjudge with, for code without an event loop; `AsyncClient` is its twin.

The client that a trainer calls Adjudge with, for code in an event loop; `Client` is its twin and its
reference.
"""

from collections.abc import Sequence
from typing import Unpack

from trainer_client.client.answers import NDJSON, AsyncRewardStream, RewardStream, RewardStreamParser
from trainer_client.client.calls import (
    ComparisonKeywords,
    GroupLike,
    JudgingKeywords,
    PairLike,
    RewardKeywords,
    RubricLike,
    comparison_request,
    rewards_request,
    verdicts_request,
)
from trainer_client.client.ledger import AsyncLedgerMethods, LedgerMethods
from trainer_client.client.operations import AsyncOperationMethods, OperationMethods
from trainer_client.client.rubrics import AsyncRubricMethods, RubricMethods
from trainer_client.wire import ComparisonAnswer, FailurePolicy, RewardAnswer, RewardMode, VerdictAnswer


class Client(RubricMethods, LedgerMethods, OperationMethods):
    """A connection to one Adjudge service, to be shared by threads and closed when done.

    Args:
        base_url: the service's address, such as `http://judge:8000`.
        run: the training run that requests are charged to.
        timeout_s: seconds to wait for an answer; for what is judged at least its deadline and a margin.
        retries: how often a request is tried again after a connection that failed, an overloaded service or
            any other problem that it calls retryable. Every request may be repeated: nothing is judged or
            published twice.
        retry_budget_s: no further try begins later than this many seconds after the first.
        headers: sent with every request; an `Authorization` among them goes in place of the key's.
        api_key: the key of a service that needs one (`adj_…`); the environment's ADJUDGE_API_KEY unless given, and
            none at all where it is empty.
        transport: an httpx2 transport in place of the network.
        sleep: waits between tries, given seconds.
        clock: gives seconds, for the retry budget.
        random: gives a number in [0, 1), for the jitter of waits.

    Raises:
        ValueError: an argument is out of range.
    """

    def rewards(
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
        """Judge groups of responses by a rubric and reward them.

        Half a surrogate pair, which JSON cannot carry, is sent as U+FFFD wherever it stands in a prompt, a response
        or what the judge sees beside them; spans count code points and stay right.

        Args:
            groups: `Group` models or mappings of their fields: `id`, `prompt`, `responses`, … A response is text,
                a list of messages, or a mapping `{"text": …, "tokens": …, "stopped": …}`.
            rubric: a reference (`name`, `name@3`, `sha256:…`), or the rubric itself; groups may carry their
                own.
            mode: how verdicts become a reward, see `trainer_client.rewards`.
            on_failure: what a response is worth on which the judge failed: `null`, `error`, `zero`, `zero_unparseable`
                or `skip`.
            deadline_s: seconds that the service has; what is not judged by then comes back failed.
            step: the training step, for the record.
            idempotency_key: requests with the same key are one, and recorded once; a key that came with another
                request is refused. None is sent unless given.

        Options, of which only those given are sent, for the service has its own defaults:
            protocol: how the judge is asked; the mode's own unless given.
            criteria_per_call: how many criteria share a call, or `all`.
            rationale: have the judge write its reasons before the verdict, and return them.
            votes: how many verdicts are sampled for each criterion, where the judge samples something: with
                `rationale`, `think_tokens` or several criteria per call.
            temperature: of the judge; 0 unless there are several votes, then 0.7.
            think_tokens: what a thinking judge may think before it answers, in its tokens.
            reasoning: what of a response's own thinking the judge sees: `strip` (none), `keep` (all) or `only`.
            truncate: judge responses too long for the judge with their middle left out, rather than fail
                them.
            grounding_characters: show at most this much of a grounding, ended at a sentence.
            template: the name of a set of prompt templates that the service has.
            allow_retired: take rubrics that are taken out of use, rather than refuse them.
            judge: which of the service's judges judges; the default one unless given.
            priority: `online` unless given, or `bulk` for what may wait while others' training steps are judged.
            format_weight: lambda of the `stepwise` base reward.
            kinds: the kinds of criteria that count; all unless given.
            gate_fraction: the share of the criteria that a response must satisfy to pass a `gate`.
            length_penalty: a `LengthPenalty` or its fields; needs every response's `tokens`.
            overlong_penalty: an `OverlongPenalty` or its fields; the same.
            truncation_factor: what the reward of a response that was cut off is multiplied by; needs every
                response's `stopped`.

        Returns:
            Rewards and verdicts, groups and responses in the order given. A reward is None where the judge
            failed.

        Raises:
            InvalidRequest: the request breaks the contract; nothing was sent if the error has no status.
            RubricRefused: the rubric cannot feed the mode.
            RubricRetired: the rubric is taken out of use.
            UnknownRubric: there is no such rubric.
            JudgingFailed: the judge failed and `on_failure` is `error`.
            AdjudgeError: the service could not be reached or did not answer as it should; see its subclasses.
            TypeError: there is no such option.
        """
        return self._send(
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
    ) -> RewardStream:
        """Reward groups as `rewards` does, and give each as soon as it is done.

        The request is checked at once and sent when the first group is asked for. It is tried again until that
        came, and no more after. Closing the stream, by `close` or a `with` block, stops what is not done.

        Returns:
            The groups in the order they finish; its `summary` is the rest of the answer, once all have come.

        Raises:
            InvalidRequest, TypeError: at once, as for `rewards`.
            ConnectionFailed: while going through the groups: the answer was cut off. Those that came are whole.
            AdjudgeError: while going through the groups, as for `rewards`.
        """
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
        return RewardStream(self._stream_groups(request.with_accept(NDJSON), parser), parser)

    def verdicts(
        self,
        groups: Sequence[GroupLike],
        rubric: RubricLike | None = None,
        *,
        deadline_s: float = 60.0,
        step: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[JudgingKeywords],
    ) -> VerdictAnswer:
        """Judge groups of responses by a rubric, without making a reward; any rubric will do.

        Arguments, options (those up to `priority`) and errors are those of `rewards`. The protocol is `binary`
        unless given.

        Returns:
            Verdicts, groups and responses in the order given. A score is None where the judge failed.
        """
        request = verdicts_request(
            self.run,
            groups,
            rubric,
            options,
            deadline_s=deadline_s,
            step=step,
            idempotency_key=idempotency_key,
        )
        return self._send(request)

    def compare(
        self,
        pairs: Sequence[PairLike],
        rubric: RubricLike | None = None,
        *,
        question: str | None = None,
        deadline_s: float = 60.0,
        step: int | None = None,
        **options: Unpack[ComparisonKeywords],
    ) -> ComparisonAnswer:
        """Ask which of two responses to a prompt is better, in both orders; where those disagree it is a tie.

        Args:
            pairs: `Pair` models or mappings of their fields: `id`, `prompt`, `a`, `b`, …
            rubric: what the judge is to look at, as for `rewards`; it needs none.
            question: what the judge is asked; which response is better, unless given.
            deadline_s: as for `rewards`.
            step: as for `rewards`.

        The options `rationale`, `think_tokens`, `reasoning`, `grounding_characters`, `template`, `allow_retired` and
        `priority` and the errors are those of `rewards`.

        Returns:
            Comparisons in the order of the pairs, and how often `a` won. A score is None where the judge failed.
        """
        return self._send(
            comparison_request(self.run, pairs, rubric, question, options, deadline_s=deadline_s, step=step)
        )


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
