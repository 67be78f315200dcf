"""`GET /v1/runs` and `GET /v1/runs/{run}`: the training runs of the ledger, and the figures of one."""

from collections.abc import Awaitable
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from fastapi import Path as PathParameter
from pydantic import ValidationError

from judge_server.errors import NotReady
from judge_server.recomputing import UnknownRun
from judge_server.recording.rows import digest_bytes, storable_text
from judge_server.web.access import RequiredScope, project_of
from judge_server.web.ledger import digest_of_reference
from judge_server.web.problems import invalid_request, problem_responses
from judge_server.web.service import service_of
from trainer_client.wire import FieldError
from trainer_client.wire.ledger_rows import RunReportQuery
from trainer_client.wire.runs import RunPage, RunReport

router = APIRouter(prefix="/v1/runs", tags=["ledger"], dependencies=[Depends(RequiredScope("read"))])

After = Annotated[str | None, Query(description="The `next_cursor` of the page before.", max_length=2000)]
Step = Annotated[int | None, Query(ge=0, le=2**63 - 1)]
T = TypeVar("T")


@router.get(
    "", summary="List the training runs of the ledger", response_model=RunPage, responses=problem_responses(422, 503)
)
async def list_runs(request: Request, after: After = None, limit: Annotated[int, Query(ge=1, le=500)] = 50) -> RunPage:
    """The run that was judged for last comes first.

    What was judged a second ago may not be there yet; `GET /v1/ledger` says how much is on its way.
    """
    ledger = service_of(request).readable_ledger()
    return await _read(ledger.runs(project_of(request), after=after, limit=limit))


@router.get(
    "/{run:path}",
    summary="Read the figures of a run, by step and by criterion",
    response_model=RunReport,
    responses=problem_responses(404, 422, 503),
)
async def read_run(
    request: Request,
    run: Annotated[
        str,
        PathParameter(
            description="The run's name, which may hold slashes; empty for what was judged under no run's name.",
            examples=["llama-srar-3"],
            max_length=256,
        ),
    ],
    first_step: Step = None,
    last_step: Step = None,
    order: Annotated[Literal["oldest", "newest"], Query(description="Which step comes first.")] = "oldest",
    rubric: Annotated[
        str | None, Query(description="Only criteria as judged by `name`, `name@3`, `name@alias` or `sha256:…`.")
    ] = None,
    criterion: Annotated[
        list[str] | None, Query(description="Only these criteria, by id; may be given several times.", max_length=200)
    ] = None,
    criteria: Annotated[
        int, Query(description="At most this many criteria: those with the most verdicts.", ge=0, le=200)
    ] = 50,
    after: After = None,
    limit: Annotated[int, Query(description="Steps a page.", ge=1, le=500)] = 100,
) -> RunReport:
    """The figures of the whole run, and a page of its steps, each with the pass rate and mean score of its criteria.

    `rubric`, `criterion` and `criteria` narrow which criteria are told of; the other figures stay those of all that
    was judged. Everything is read from sums that are kept while the ledger is written, so a long run is read as fast
    as a short one.
    """
    service = service_of(request)
    ledger, project_id = service.readable_ledger(), project_of(request)
    if first_step is not None and last_step is not None and first_step > last_step:
        raise invalid_request((FieldError(field="last_step", message=f"is before first_step, which is {first_step}"),))
    view = RunReportQuery(
        project_id,
        storable_text(run),
        first_step,
        last_step,
        order == "newest",
        None if rubric is None else digest_bytes(await digest_of_reference(service, project_id, rubric)),
        tuple(map(storable_text, criterion or ())),
        criteria,
        after,
        limit,
    )
    found = await _read(ledger.run(view))
    if found is None:
        raise UnknownRun(
            f"The ledger has nothing of run {run!r}. GET /v1/runs lists the runs there are; what was judged a moment "
            "ago may still be on its way"
        )
    return found


async def _read(reading: Awaitable[T]) -> T:
    try:
        return await reading
    except ConnectionError as error:
        raise NotReady(f"The ledger cannot be read now: {error}", retry_after_s=5) from error
    except ValidationError:
        raise
    except ValueError as error:
        raise invalid_request((FieldError(field="after", message=str(error)),)) from None
