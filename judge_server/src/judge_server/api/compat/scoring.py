"""Score a trainer's responses, trying again until the deadline, and fail if one has no reward then.

The trainers of this folder give up sooner than a busy service has room again, or count what they did not get as 0. The
attempts are therefore made here: an attempt repeats no judge call that succeeded.
"""

import asyncio
import secrets

from fastapi import Request

from judge_server.api.auth import project_of
from judge_server.api.http.requests import refuse_unusable_patterns
from judge_server.api.service import Service, service_of
from judge_server.errors import JudgingFailed, ServiceError
from judge_server.ledger.recorder import TRANSIENT_FAILURES
from judge_server.observability.logs import bind_log_context
from judge_server.scoring.planner import JudgedRequest
from trainer_client.wire import ResponseReward, RewardAnswer, RewardRequest, Verdict

FIRST_RETRY_AFTER_S = 1.0
"""The seconds before the second attempt; each further one waits twice as long."""

LONGEST_RETRY_WAIT_S = 15.0
"""The maximum of the seconds between two attempts."""


async def score_responses(request: Request, work: RewardRequest) -> list[ResponseReward]:
    """The scored responses of all groups in order, each with a reward.

    Raises:
        JudgingFailed: a response has no reward when the deadline has passed.
        ServiceError: the request is refused, or was not served before the deadline.
    """
    bind_log_context(run=work.run)
    service, project_id = service_of(request), project_of(request)
    held = _LastRecord()
    try:
        answer = await _score_until_deadline(service, held, work, request.state.request_id, project_id)
    finally:
        if service.recorder is not None and held.judged is not None:
            service.recorder.record(held.judged)
    responses = [response for group in answer.groups for response in group.responses]
    for response in responses:
        if response.reward is None:
            raise JudgingFailed(f"A response has no reward: {_why(response.verdicts)}")
    return responses


async def _score_until_deadline(
    service: Service, held: "_LastRecord", work: RewardRequest, request_id: str, project_id: str
) -> RewardAnswer:
    now = asyncio.get_running_loop().time
    deadline, wait, record_id = now() + work.deadline_s, FIRST_RETRY_AFTER_S, secrets.token_bytes(16)
    while True:
        left = deadline - now()
        attempt = work.model_copy(update={"deadline_s": max(left, 0.001)})
        try:
            own = [group.rubric for group in work.groups]
            await refuse_unusable_patterns(service.checker, project_id, work.rubric, own, deadline_s=attempt.deadline_s)
            scorer = service.scorer(work.judge, held)
            answer = await scorer.score(attempt, request_id=request_id, project_id=project_id, record_id=record_id)
        except ServiceError as error:
            pause = max(wait, float(error.retry_after_s or 0))
            if not error.retryable or now() + pause >= deadline:
                raise
        else:
            pause = wait
            if not _would_another_attempt_help(answer) or now() + pause >= deadline:
                return answer
        await asyncio.sleep(pause)
        wait = min(2 * wait, LONGEST_RETRY_WAIT_S)


class _LastRecord:
    """Holds what the last attempt judged, so that the ledger has a response once, as it was rewarded."""

    judged: JudgedRequest | None = None

    def record(self, judged: JudgedRequest) -> None:
        """Replace what was judged before."""
        self.judged = judged


def _would_another_attempt_help(answer: RewardAnswer) -> bool:
    unscored = [r for group in answer.groups for r in group.responses if r.reward is None]
    failures = [v.failure for response in unscored for v in response.verdicts if v.failure is not None]
    return any(failure.kind in TRANSIENT_FAILURES for failure in failures)


def _why(verdicts: tuple[Verdict, ...]) -> str:
    for verdict in verdicts:
        if verdict.failure is not None:
            return f"judging criterion {verdict.criterion!r} failed ({verdict.failure.kind}): {verdict.failure.detail}"
    uncertain = [verdict.criterion for verdict in verdicts if verdict.status == "uncertain"]
    return f"the verdict on criterion {uncertain[0]!r} is uncertain" if uncertain else "no criterion has a verdict"
