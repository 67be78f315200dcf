"""`AsyncClient`: what a trainer calls Adjudge with in code that runs in an event loop.

`Client`, for code elsewhere, is generated from this class and those below it: see `trainer_client.client.sync`.
"""

from collections.abc import Sequence
from typing import Unpack

from trainer_client.client.answers import NDJSON, AsyncRewardStream, RewardStreamParser
from trainer_client.client.calls import (
    ComparisonKeywords,
    GroupLike,
    PairLike,
    RewardKeywords,
    RubricLike,
    VerdictKeywords,
    comparison_request,
    rewards_request,
    verdicts_request,
)
from trainer_client.client.ledger import AsyncLedgerMethods
from trainer_client.client.operations import AsyncOperationMethods
from trainer_client.client.projects import AsyncProjectMethods
from trainer_client.client.rubrics import AsyncRubricMethods
from trainer_client.wire import ComparisonAnswer, FailurePolicy, RewardAnswer, RewardMode, VerdictAnswer


class AsyncClient(AsyncRubricMethods, AsyncLedgerMethods, AsyncOperationMethods, AsyncProjectMethods):
    """A connection to one Adjudge service. Tasks of one event loop can share it; close it when done.

    Processes can be forked: each opens connections of its own. Only a `transport` cannot be shared by them.

    Args:
        base_url: the service's URL, such as `http://judge:8000`. Defaults to the environment variable ADJUDGE_URL.
        run: the training run under which requests are recorded.
        timeout_s: seconds to wait for an answer. For judging requests, at least their deadline plus a margin.
        retries: how often a request is retried if the connection fails, the service is overloaded, or its problem is
            retryable. All requests are safe to repeat: nothing is judged or published twice.
        retry_budget_s: no retry starts later than this many seconds after the first attempt.
        headers: headers for every request; an `Authorization` header replaces that of the key.
        api_key: the API key (`adj_…`), if the service needs one. Defaults to the environment variable ADJUDGE_API_KEY;
            pass an empty string for no key.
        transport: an httpx2 transport to use instead of the network.
        sleep: waits the given seconds between attempts.
        clock: returns seconds, for the retry budget.
        random: returns a number in [0, 1), for the jitter of waits.

    Raises:
        ValueError: an argument is out of range, or there is no URL.
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
        """Judge groups of responses by a rubric and return their rewards.

        Half a surrogate pair in a text, which JSON cannot carry, is sent as U+FFFD. Spans count code points and stay
        right.

        Args:
            groups: `Group` models or mappings of their fields: `id`, `prompt`, `responses`, … A response is text,
                a list of messages, or a mapping `{"text": …, "tokens": …, "stopped": …}`.
            rubric: a reference (`name`, `name@3`, `name@alias`, `sha256:…`), the rubric itself, or a list of its
                criteria. A group can have its own rubric instead.
            mode: how verdicts become a reward, see `trainer_client.rewards`.
            on_failure: the reward of a response when judging fails: `null`, `error`, `zero`, `zero_unparseable` or
                `skip`.
            deadline_s: the time that the service has, in seconds; verdicts that are not ready by then fail.
            step: the training step to record.
            idempotency_key: requests with the same key are processed and recorded once. A key that was used for a
                different request is refused. Not sent by default.

        Options; those left out are not sent, and the service uses its defaults:
            protocol: the judging protocol; defaults to that of the mode.
            criteria_per_call: the number of criteria in one judge call, or `all`.
            rationale: have the judge write its reasons before the verdict, and return them.
            votes: the number of verdicts to sample for each criterion. Requires an option under which the judge
                samples: `rationale`, `think_tokens`, or several criteria per call.
            temperature: the judge's sampling temperature; defaults to 0, or to 0.7 with several votes.
            think_tokens: the maximum length of a thinking judge's thoughts, in its tokens.
            reasoning: which part of a response the judge sees: without its thinking (`strip`), all of it (`keep`), or
                only its thinking (`only`).
            prompt_opens: the tag of the thinking block that the policy's chat template opens at the end of the prompt,
                such as `<think>`, or `none`.
            steps: what the steps of a response are: sections under its headings (`headings`), an agent's turns
                (`turns`), `paragraphs`, or the ranges that each response gives (`given`).
            truncate: judge a response that is too long for the judge without its middle, instead of failing it.
            grounding_characters: the maximum length of the grounding shown to the judge; it is cut at a sentence.
            template: the name of one of the service's sets of prompt templates.
            contextual_calibration: judge relative to the judge's answer about an empty response; by default where the
                judge has a calibration that was fitted so.
            defences: what protects the judge from deceitful responses; by default `normalise` and `no_content`.
            on_decoy: `fail` has a response that meets its decoy criterion fail; by default it is only flagged.
            allow_retired: accept retired rubrics.
            judge: the name of one of the service's judges.
            priority: `online` (the default), or `bulk` for work that can wait for online requests.
            gold: a `GoldSampling` or its fields: another judge sees a share of the responses too, for monitors.
            format_weight: lambda of the `stepwise` base reward, in [0, 1].
            kinds: the kinds of criteria that count; defaults to all.
            gate_fraction: the share of the criteria that a response must satisfy to pass a `gate`, in [0, 1].
            length_penalty: a `LengthPenalty` or its fields; needs `tokens` of every response.
            overlong_penalty: an `OverlongPenalty` or its fields; needs `tokens` of every response.
            truncation_factor: the factor for the reward of a response that was cut off, in [0, 1]; needs `stopped` of
                every response.
            uncertain_band: two calibrated probabilities; a verdict between them is uncertain and has no score.
            on_uncertain: the reward of a response that needs an uncertain verdict: `null` (the default), `error`,
                `zero` or `skip`.
            dropout: a `RubricDropout` or its fields `keep` and `seed`: judge a random share of the criteria of each
                group, with an unbiased reward. Only in linear modes.
            use: `probability` for soft rewards: the calibrated probability of yes takes the place of a verdict's
                score. Only in linear modes and `ranking`; defaults to `verdict`.
            schedule: the pairs that `ranking` compares: `all_pairs` (the default), `swiss` or `pivot`.
            rounds: the rounds of a `swiss` schedule; defaults to log2 of the responses, rounded up.

        Returns:
            Rewards and verdicts, with groups and responses in the order given. A reward is None if judging failed.

        Raises:
            InvalidRequest: the request breaks the contract; nothing was sent if the error has no status.
            RubricRefused: the rubric does not suit the mode.
            RubricRetired: the rubric is retired.
            UnknownRubric: there is no such rubric.
            JudgingFailed: judging failed and `on_failure` is `error`.
            MismatchedAnswer: the answer belongs to another request, or lacks a group, a response or a criterion.
            AdjudgeError: the service cannot be reached, or its answer is invalid; see the subclasses.
            TypeError: there is no such option.
        """
        return await self.send(
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
        """Reward groups like `rewards`, and yield each group as soon as it is done.

        The request is validated at once, and sent when you request the first group. It is retried only until that group
        has arrived. Closing the stream, by `aclose` or by leaving an `async with` block, cancels the groups that are
        not done.

        Returns:
            The groups in the order in which they finish. After the last group, `summary` holds the rest of the answer.

        Raises:
            InvalidRequest, TypeError: at once, as for `rewards`.
            ConnectionFailed: during iteration: the answer was cut off. The groups received so far are complete.
            MismatchedAnswer: during iteration: the answer belongs to another request, or lacks a part of its own.
                Do not use the groups that came before.
            AdjudgeError: during iteration, as for `rewards`.
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
        parser = RewardStreamParser(self.base_url, request)
        return AsyncRewardStream(self._stream_groups(request.with_accept(NDJSON), parser), parser)

    async def verdicts(
        self,
        groups: Sequence[GroupLike],
        rubric: RubricLike | None = None,
        *,
        deadline_s: float = 60.0,
        step: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[VerdictKeywords],
    ) -> VerdictAnswer:
        """Judge groups of responses by a rubric, without computing rewards. Accepts any rubric.

        Arguments, options (those up to `priority`) and errors are the same as for `rewards`. `protocol` defaults to
        `binary`. With `fresh=True`, the judge is asked even where its verdict is known already.

        Returns:
            Verdicts, with groups and responses in the order given. A score is None if judging failed.
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
        return await self.send(request)

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
        """Ask which of two responses to a prompt is better, in both orders. If the orders disagree, it is a tie.

        Args:
            pairs: `Pair` models or mappings of their fields: `id`, `prompt`, `a`, `b`, …
            rubric: an optional rubric that tells the judge what to look at, as for `rewards`.
            question: the question to the judge; defaults to which response is better.
            deadline_s: as for `rewards`.
            step: as for `rewards`.

        The options `rationale`, `think_tokens`, `reasoning`, `grounding_characters`, `template`, `allow_retired`,
        `judge` and `priority` and the errors are the same as for `rewards`.

        Returns:
            Comparisons in the order of the pairs, and the win rate of `a`. A score is None if judging failed.
        """
        return await self.send(
            comparison_request(self.run, pairs, rubric, question, options, deadline_s=deadline_s, step=step)
        )
