"""`/healthz`, `/readyz` and `GET /v1`: is the process alive, can it judge, and what does it know."""

from dataclasses import asdict
from typing import Annotated, get_args

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel

from judge_server.errors import NotReady
from judge_server.web.access import RequiredScope
from judge_server.web.problems import problem_responses
from judge_server.web.service import service_of
from trainer_client import __version__
from trainer_client.wire import PROTOCOLS_FOR, FailurePolicy, JudgingProtocol, RewardMode, VerificationMethod

router = APIRouter(tags=["service"])

SelectedChecks = Annotated[
    tuple[str, ...],
    Query(description="The parts that count, as `checks` names them, or `replica`; all parts unless given."),
]


class Health(BaseModel):
    """The process answers."""

    status: str = "ok"


class Readiness(BaseModel):
    """Every part is ready."""

    checks: dict[str, bool]


class EngineCapabilities(BaseModel):
    """What the judge's engine can do, see `judge_server.ports.Capabilities`."""

    logprobs: bool
    token_choices: bool
    json_schema: bool
    prompt_logprobs: bool
    prefix_in_flight: bool
    seeds: bool


class ServerCapabilities(BaseModel):
    """What this server understands, so that a client can leave out what it does not."""

    version: str
    model: str | None
    modes: list[str]
    protocols: list[str]
    protocols_for: dict[str, list[str]]
    failure_policies: list[str]
    verification_methods: list[str]
    templates: list[str]
    engine: EngineCapabilities | None


@router.get("/healthz", summary="Is the process alive")
async def healthz() -> Health:
    """Says nothing of the judge: use `/readyz` for that."""
    return Health()


@router.get("/readyz", summary="Can it judge", response_model=Readiness, responses=problem_responses(422, 503))
async def readyz(request: Request, only: SelectedChecks = ()) -> Readiness | Response:
    """The rubric store can be read, the judge model is loaded, the verdict cache answers, and the ledger can spool.

    What takes replicas out of use must ask for `?only=replica`, which says no where another replica may do better:
    while a judge of its own is not loaded or does not answer; where judges are elsewhere, until a first one was found,
    and while all speak another protocol. Store, cache and judges elsewhere are the same for all replicas, which go on
    serving what they can without; and rewards do not need the ledger.
    """
    service = service_of(request)
    checks = await service.checks(only)
    if not all(checks.values()):
        waiting = ", ".join(name for name, ok in checks.items() if not ok)
        failure_reason = (
            service.recorder.failure_reason if service.recorder is not None and not checks.get("ledger", True) else None
        )
        reasons = [service.not_ready_reason, f"ledger: {failure_reason}" if failure_reason else ""]
        why = f" ({'; '.join(filter(None, reasons))})" if any(reasons) else ""
        raise NotReady(f"not ready: {waiting}{why}", retry_after_s=2)
    return Readiness(checks=checks)


@router.get(
    "/v1",
    summary="Version and capabilities",
    dependencies=[Depends(RequiredScope("read"))],
    responses=problem_responses(401, 403, 414, 429, 431, 503),
)
async def capabilities(request: Request) -> ServerCapabilities:
    """Lists the reward modes, judging protocols and failure policies of this server, and what its engine can do."""
    judge = service_of(request).judge
    return ServerCapabilities(
        version=__version__,
        model=judge.identity.model if judge else None,
        modes=list(get_args(RewardMode)),
        protocols=list(get_args(JudgingProtocol)),
        protocols_for={mode: list(protocols) for mode, protocols in PROTOCOLS_FOR.items()},
        failure_policies=list(get_args(FailurePolicy)),
        verification_methods=list(get_args(VerificationMethod)),
        templates=judge.templates.names if judge else [],
        engine=EngineCapabilities(**asdict(judge.identity.capabilities)) if judge else None,
    )
