"""Operations: the list, which follows the work of those that run, and the page of one."""

from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from judge_server.api.auth import project_of
from judge_server.api.console.forms import Form
from judge_server.api.console.operations.evaluations import FIGURES, evaluation_of
from judge_server.api.console.operations.separations import separation_of
from judge_server.api.console.parameters import text_parameter
from judge_server.api.console.rendering import Console, csv_response
from judge_server.api.console.routing import NotFound, PageRouter
from judge_server.api.console.tables import address
from judge_server.errors import InvalidRequest, NotReady
from judge_server.operations.service import Operations
from judge_server.ports import UnknownOperation
from trainer_client.wire.operations import Operation

router = PageRouter()

_LISTED = 100
_MAX_ID = 64

T = TypeVar("T")


@router.get("/operations")
async def operations(console: Console, request: Request) -> Response:
    """The latest operations of the project."""
    found = (await running(console).list(project_of(request))).operations
    going_on = any(not one.ended for one in found)
    return console.page(
        request, "operations.html.jinja", operations=found[:_LISTED], more=max(0, len(found) - _LISTED),
        going_on=going_on,
    )  # fmt: skip


@router.get("/operation")
async def operation(console: Console, request: Request) -> Response:
    """One operation, with its figures if it evaluated a judge or a rubric."""
    found = await _read(console, request)
    return console.page(
        request, "operation.html.jinja", operation=found, evaluation=evaluation_of(found), figures=FIGURES,
        separation=separation_of(found),
    )  # fmt: skip


@router.get("/operation/reliability.csv")
async def reliability_csv(console: Console, request: Request) -> Response:
    """The numbers of the plot of an evaluation."""
    evaluation = evaluation_of(await _read(console, request))
    if evaluation is None:
        raise NotFound("This operation has no evaluation of a judge.")
    return csv_response(evaluation.table, "reliability.csv")


@router.get("/operation/separation.csv")
async def separation_csv(console: Console, request: Request) -> Response:
    """How well each criterion tells good responses from bad ones."""
    found = separation_of(await _read(console, request))
    if found is None:
        raise NotFound("This operation did not compare good and bad responses.")
    return csv_response(found.table, "separation.csv")


@router.post("/operation", scope="score")
async def change(console: Console, request: Request, form: Form) -> Response:
    """Cancel an operation, or continue one that failed or was cancelled."""
    service, project, id_ = running(console), project_of(request), form.text("id")[:_MAX_ID]
    actions = {"cancel": service.cancel, "retry": service.retry}
    if form.text("do") not in actions:
        raise InvalidRequest("do: write cancel or retry")
    await _known(actions[form.text("do")](project, id_))
    return RedirectResponse(address("operation", id=id_), 303)


def running(console: Console) -> Operations:
    """The operations of this process; raises `NotReady` if it has none."""
    if console.service.operations is None:
        raise NotReady("This process has no operations. Open the console of one that was started with a database.")
    return console.service.operations


async def _read(console: Console, request: Request) -> Operation:
    return await _known(running(console).get(project_of(request), text_parameter(request, "id")[:_MAX_ID]))


async def _known(work: Awaitable[T]) -> T:
    try:
        return await work
    except UnknownOperation as error:
        raise NotFound(
            f"{str(error).capitalize()} in this project. The list of operations shows those it has."
        ) from None
