"""`GET /v1/verdicts` and `GET /v1/ledger`: what was judged, and how recording stands."""

from contextlib import suppress
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request

from judge_server.errors import NotReady
from judge_server.recording.reading import decode_cursor, recorded_page
from judge_server.recording.rows import digest_bytes, storable_text
from judge_server.rubrics import find_rubric
from judge_server.web.access import RequiredScope, project_of
from judge_server.web.problems import invalid_request, problem_responses
from judge_server.web.service import Service, service_of
from trainer_client.wire import FieldError, parse_reference
from trainer_client.wire.ledger import LedgerState, RecordedPage
from trainer_client.wire.ledger_rows import UseFilter

router = APIRouter(prefix="/v1", tags=["ledger"], dependencies=[Depends(RequiredScope("read"))])


@router.get(
    "/verdicts",
    summary="Read the verdicts of a run from the ledger",
    response_model=RecordedPage,
    responses=problem_responses(404, 422, 503),
)
async def recorded_verdicts(
    request: Request,
    run: Annotated[str, Query(description="The run; empty for what was judged under no run's name.", max_length=256)],
    step: Annotated[int | None, Query(ge=0, le=2**63 - 1)] = None,
    rubric: Annotated[str | None, Query(description="`name`, `name@3`, `name@alias` or `sha256:…`")] = None,
    criterion: Annotated[str | None, Query(description="A criterion's id.", max_length=128)] = None,
    status: Annotated[Literal["ok", "failed"] | None, Query(description="Of the verdict.")] = None,
    texts: Annotated[bool, Query(description="With prompts, responses and groundings, where they are kept.")] = False,
    after: Annotated[str | None, Query(description="The `next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> RecordedPage:
    """Oldest first. What was judged a second ago may not be there yet; `GET /v1/ledger` says how much is on its way."""
    service = service_of(request)
    ledger = service.readable_ledger()
    try:
        place = None if after is None else decode_cursor(after)
    except ValueError as error:
        raise invalid_request((FieldError(field="after", message=str(error)),)) from None
    digest = None if rubric is None else digest_bytes(await digest_of_reference(service, project_of(request), rubric))
    failed = None if status is None else status == "failed"
    wanted = UseFilter(project_of(request), storable_text(run), step, digest, criterion, failed, place, limit)
    try:
        return await recorded_page(ledger, wanted, texts=texts)
    except ConnectionError as error:
        raise NotReady(f"The ledger cannot be read now: {error}", retry_after_s=5) from error


@router.get("/ledger", summary="How recording stands", response_model=LedgerState)
async def ledger_state(request: Request) -> LedgerState:
    """Of this process, since it started. Rewards are served whatever it says."""
    recorder = service_of(request).recorder
    return LedgerState(keeps="nothing") if recorder is None else recorder.state()


async def digest_of_reference(service: Service, project_id: str, rubric: str) -> str:
    """The digest a reference stands for; a digest need not be in the store, for rubrics come with requests too."""
    with suppress(ValueError):
        if (digest := parse_reference(rubric).digest) is not None:
            return digest
    return (await find_rubric(service.rubrics, project_id, rubric)).digest
