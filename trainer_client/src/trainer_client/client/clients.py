"""`AsyncClient`: what a trainer calls Adjudge with in code that runs in an event loop.

`Client`, for code elsewhere, runs the methods of this class: see `trainer_client.client.sync`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

from trainer_client.client.answers import NDJSON, AsyncRewardStream, PreparedRequest, RewardStreamParser
from trainer_client.client.calls import (
    ANSWER_MARGIN_S,
    GroupLike,
    PairLike,
    RubricLike,
    rewards_request,
    split_options,
    validated,
    verdicts_request,
)
from trainer_client.client.judges import AsyncJudgeMethods
from trainer_client.client.keywords import ComparisonKeywords, RewardKeywords, VerdictKeywords
from trainer_client.client.ledger import AsyncLedgerMethods
from trainer_client.client.matching import comparisons_problem
from trainer_client.client.operations import AsyncOperationMethods
from trainer_client.client.projects import AsyncProjectMethods
from trainer_client.client.rubrics import AsyncRubricMethods
from trainer_client.wire import (
    ComparisonAnswer,
    ComparisonRequest,
    FailurePolicy,
    RewardAnswer,
    RewardMode,
    VerdictAnswer,
)


class AsyncClient(
    AsyncRubricMethods, AsyncLedgerMethods, AsyncOperationMethods, AsyncProjectMethods, AsyncJudgeMethods
):
    """A connection to one Adjudge service. Tasks and event loops can share it; close it in each loop when done.

    Each event loop opens connections of its own, and so does a process that is forked or gets the client pickled. Only
    a `transport` cannot be shared by processes.

    Args:
        base_url: the service's URL, such as `http://judge:8000`. Defaults to the environment variable ADJUDGE_URL.
        run: the training run under which requests are recorded.
        timeout_s: seconds to wait for an answer. For judging requests, at least their deadline plus a margin.
        retries: how often a request is retried if the connection fails, the service is overloaded, or its problem is
            retryable. All requests are safe to repeat: nothing is judged or published twice. The pauses are up to
            7.5 seconds in all, plus those that `Retry-After` asks for. With fewer, a restart of the service causes an
            error.
        retry_budget_s: no retry starts later than this many seconds after the first attempt. With more, a trainer
            hangs when it should fail.
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
            allow_retired: accept a rubric version that is retired; otherwise the request is refused.
            judge: the name of the judge; each judge of the service has one. Default: `default`.
            kinds: the kinds of criteria that count, as if the rubric had no others.
            format_weight: lambda of the `stepwise` base reward, the weight of the format in [0, 1] (SRaR has 0.1).
                Default: 0.1.
            gate_fraction: rho, the share of the criteria that a response must satisfy to pass a `gate`, in [0, 1].
                Default: 0.5.
            length_penalty: `LengthPenalty` or its fields: a penalty on length; needs `tokens` of every response.
            overlong_penalty: `OverlongPenalty` or its fields: a penalty near the generation limit; needs `tokens` of
                every response.
            truncation_factor: the factor, in [0, 1], for the reward of a response that was cut off; needs `stopped` of
                every response.
            use: what of a yes/no verdict enters the reward: `verdict` for hard rewards from scores of 0 and 1;
                `probability` for soft rewards, where the calibrated probability of yes takes the place of the score.
                Default: `verdict`.
            schedule: the pairs of a group that `ranking` compares, each in both orders: `all_pairs`; `swiss`, rounds in
                which each response meets another of about its own standing; `pivot`, every response against the same
                one of the group, which a hash of the texts picks. Default: `all_pairs`.
            rounds: the rounds of a `swiss` schedule; by default log2 of the number of responses, rounded up.
            components: answer each response's component rewards too: of each criterion, or of the criteria of each kind
                or tag.
            weighting: the weights of the criteria: `declared` for those of the rubric; `contrast` to shift weight,
                within each category, to the criteria that tell the responses of a group apart. Default: `declared`.
            rationale: have the judge write its reasons before the verdict, and return them.
            think_tokens: the maximum length of a thinking judge's thoughts, in its tokens. Default: 0.
            reasoning: which part of a response the judge sees: the response without its thinking block (`strip`), all
                of it (`keep`), or only the thinking block (`only`). Default: `strip`.
            prompt_opens: the tag of the thinking block that the policy's chat template opens at the end of the prompt,
                such as `<think>`, or `none` if it opens none.
            grounding_characters: the maximum length of the grounding shown to the judge, in characters.
            template: the name of one of the server's sets of prompt templates; defaults to the server's default set.
            protocol: the judging protocol; by default that of the reward mode, or `binary` without one.
            criteria_per_call: the number of criteria in one judge call, or `all`; by default all for `checklist`, and 1
                for the other protocols.
            votes: the number of verdicts to sample for each criterion. Default: 1.
            temperature: the judge's sampling temperature; defaults to 0, or to 0.7 if `votes` is above 1.
            truncate: judge a response that exceeds the judge's context without its middle, and report how much was left
                out.
            passages: judge a criterion on passages of a text, the sentences that share the most words with it, where
                the response or the grounding has more characters than this; so many characters of each are then shown.
            steps: what the steps of a response are, to which the protocol `stepwise` attributes verdicts: `headings`,
                its `### Step N` headings; `turns`, its messages of role `assistant`, counted from 1 (a text is one
                turn); `paragraphs`, separated by blank lines; `given`, the `steps` of each response of the request.
                Default: `headings`.
            defences: what protects the judge from deceitful responses, besides the fences around them. Default:
                `normalise`, `no_content`.
            contextual_calibration: ask each criterion once more about an empty response to the same prompt, and judge
                by what the response changes: the log-odds of yes with it, less those without it (Zhao et al. 2021).
            on_decoy: what becomes of a suspicious response: `flag` leaves its verdicts as they are; `fail` makes all of
                the judge's verdicts on it fail as `decoy`, so that `on_failure` decides about its reward. Default:
                `flag`.
            uncertain_band: a verdict is uncertain if its calibrated probability is from the first up to the second.
            on_uncertain: what reward a response gets whose reward needs a verdict that is uncertain. Default: `null`.
            dropout: `RubricDropout` or its fields: judge a random share of the criteria of each group, with an unbiased
                reward; only in linear modes.
            priority: `online` if a training step waits; `bulk` work waits until online requests are served. Default:
                `online`.
            gold: `GoldSampling` or its fields: judge a share of the responses by a second judge too, which needs a
                `run`.

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
        given = {
            "run": self.run,
            "groups": groups,
            "rubric": rubric,
            "on_failure": on_failure,
            "deadline_s": deadline_s,
            "step": step,
        }
        return await self.send(rewards_request("rewards", given, mode, options, idempotency_key))

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
        has arrived. Closing the stream, also by leaving its `with` block, cancels the groups that are not done.

        Returns:
            The groups in the order in which they finish. After the last group, `summary` holds the rest of the answer.

        Raises:
            InvalidRequest, TypeError: at once, as for `rewards`.
            ConnectionFailed: during iteration: the answer was cut off. The groups received so far are complete.
            MismatchedAnswer: during iteration: the answer belongs to another request, or lacks a part of its own.
                Do not use the groups that came before.
            AdjudgeError: during iteration, as for `rewards`.
        """
        given = {
            "run": self.run,
            "groups": groups,
            "rubric": rubric,
            "on_failure": on_failure,
            "deadline_s": deadline_s,
            "step": step,
        }
        request = rewards_request("stream_rewards", given, mode, options, idempotency_key)
        parser = RewardStreamParser(self.base_url, request)
        return AsyncRewardStream(self._stream_groups(replace(request, accept=NDJSON), parser), parser)

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
        given = {"run": self.run, "groups": groups, "rubric": rubric, "deadline_s": deadline_s, "step": step}
        return await self.send(verdicts_request(given, options, idempotency_key))

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
        given = {
            "run": self.run,
            "pairs": pairs,
            "rubric": rubric,
            "question": question,
            "deadline_s": deadline_s,
            "step": step,
        }
        asked = validated(ComparisonRequest, {**split_options("compare", options, ComparisonRequest, given), **given})
        request = PreparedRequest(
            "POST",
            "/v1/comparisons",
            ComparisonAnswer,
            asked,
            min_timeout_s=asked.deadline_s + ANSWER_MARGIN_S,
            mismatch=partial(comparisons_problem, asked),
        )
        return await self.send(request)
