"""The playground: an ordinary scoring request of the signed-in key, whose verdicts the page shows as they are made."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import get_args

from starlette.requests import Request
from starlette.responses import Response

from judge_server.api.auth import project_of
from judge_server.api.console.forms import Form
from judge_server.api.console.parameters import text_parameter
from judge_server.api.console.playground.playground_form import RUN, PlaygroundForm, snippets
from judge_server.api.console.playground.playground_view import judged_responses
from judge_server.api.console.rendering import Console
from judge_server.api.console.responses.shown import outcome_of
from judge_server.api.console.routing import PageRouter
from judge_server.api.console.tables import address
from judge_server.api.http.problems import INTERNAL_ERROR_DETAIL
from judge_server.api.http.requests import refuse_unusable_patterns
from judge_server.errors import ServiceError
from judge_server.observability.logs import bind_log_context
from judge_server.rubrics import find_rubric
from judge_server.scoring.scorer import JudgedVerdict, StreamPart
from trainer_client.wire import (
    Criterion,
    FailurePolicy,
    GroupRewards,
    JudgingProtocol,
    RewardMode,
    RewardRequest,
    RewardSummary,
)
from trainer_client.wire.rewards import NEEDS_NO_RUBRIC, PROTOCOLS_FOR

log = logging.getLogger("adjudge")

router = PageRouter()

REFUSAL_WAIT_S = 0.5
"""How long a page waits for a refusal before it begins, so that a refused request has the status of its error."""

_SUGGESTED_RUBRICS = 100


@router.get("/playground", scope="score")
async def playground(console: Console, request: Request) -> Response:
    """The empty form, or one with the rubric that the address names."""
    form = PlaygroundForm(rubric=text_parameter(request, "rubric"))
    return await _page(console, request, form)


@router.get("/playground/response", scope="score")
async def another_response(console: Console, request: Request) -> Response:
    """A field for one more response."""
    return console.page(request, "playground_response.html.jinja", text="")


@router.post("/playground", scope="score")
async def judge(console: Console, request: Request, form: Form) -> Response:
    """Judge what was filled in. A request that is refused gets the form again, with the reason."""
    service, project = console.service, project_of(request)
    filled = PlaygroundForm.read(form)
    try:
        body = await asyncio.to_thread(filled.request, service.rubric_texts)
        bind_log_context(run=body.run)
        await refuse_unusable_patterns(service.checker, project, body.rubric, deadline_s=body.deadline_s)
        criteria = await _criteria(console, request, body)
        choices = await _choices(console, request)
        recorder = service.recorder_for(body, service.recorder)
        record_id = int(time.time() * 1e6).to_bytes(8, "big") + secrets.token_bytes(8)
        stream = service.scorer(body.judge, recorder).follow(
            body, request_id=request.state.request_id, project_id=project, record_id=record_id
        )
        first = asyncio.ensure_future(anext(stream))
        done, _ = await asyncio.wait({first}, timeout=REFUSAL_WAIT_S)
        if done:
            first.result()
    except ServiceError as error:
        return await _page(console, request, filled, error)
    group_href = address("group", run=RUN, request=record_id.hex(), group=body.groups[0].id)
    parts = _html(console, request, body, criteria, first, stream, group_href if recorder is not None else "")
    return console.streamed_page(
        request, "playground.html.jinja", parts, **choices, form=filled, error=None, request_body=body,
        snippets=snippets(body, f"{request.url.scheme}://{request.url.netloc}"), criteria=criteria,
    )  # fmt: skip


async def _html(
    console: Console,
    request: Request,
    body: RewardRequest,
    criteria: Sequence[Criterion] | None,
    first: "asyncio.Future[StreamPart]",
    stream: AsyncGenerator[StreamPart, None],
    group_href: str,
) -> AsyncIterator[str]:
    """The parts of the page as they are known. When the browser goes away, the remaining work is cancelled."""
    began = time.monotonic()
    rewarded: GroupRewards | None = None
    try:
        async with aclosing(stream):
            part: StreamPart | None = await first
            while part is not None:
                after_s = time.monotonic() - began
                match part:
                    case JudgedVerdict():
                        yield console.render(
                            "playground_verdict.html.jinja", number=part.response + 1, verdict=part.verdict,
                            outcome=outcome_of(part.verdict), after_s=after_s,
                        )  # fmt: skip
                    case GroupRewards():
                        rewarded = part
                    case RewardSummary():
                        assert rewarded is not None
                        yield console.render(
                            "playground_results.html.jinja", responses=judged_responses(body, rewarded, criteria),
                            criteria=criteria, summary=part, after_s=after_s, group_href=group_href,
                        )  # fmt: skip
                part = await anext(stream, None)
    except ServiceError as error:
        yield console.render("playground_problem.html.jinja", error=error)
    except Exception:
        log.exception("request %s failed", request.state.request_id)
        yield console.render("playground_problem.html.jinja", error=ServiceError(INTERNAL_ERROR_DETAIL))
    finally:
        first.cancel()
        with suppress(asyncio.CancelledError, ServiceError):
            await asyncio.gather(first, return_exceptions=True)


async def _criteria(console: Console, request: Request, body: RewardRequest) -> Sequence[Criterion] | None:
    """The criteria of the request's rubric; empty for a mode that needs none."""
    if body.reward.mode in NEEDS_NO_RUBRIC or body.reward.mode == "ranking" or body.rubric is None:
        return ()
    if not isinstance(body.rubric, str):
        return body.rubric.criteria
    return (await find_rubric(console.service.rubrics, project_of(request), body.rubric)).criteria


async def _page(
    console: Console, request: Request, form: PlaygroundForm, error: ServiceError | None = None
) -> Response:
    shown = replace(form, responses=[*form.responses, ""]) if error is None and len(form.responses) < 2 else form
    response = console.page(
        request, "playground.html.jinja", error.status if error else 200, **await _choices(console, request),
        form=shown, error=error, request_body=None, snippets=(), criteria=(), stream="",
    )  # fmt: skip
    if error is not None and error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


async def _choices(console: Console, request: Request) -> dict[str, object]:
    """What the form's fields offer."""
    rubrics = console.service.rubrics
    page = await rubrics.list(project_of(request), prefix="", tag=None, text="", after=None, limit=_SUGGESTED_RUBRICS)
    return {
        "rubrics": [one.name for one in page.rubrics if not one.retired],
        "modes": get_args(RewardMode),
        "protocols": get_args(JudgingProtocol),
        "protocols_for": PROTOCOLS_FOR,
        "judges": console.service.names,
        "policies": get_args(FailurePolicy),
    }
