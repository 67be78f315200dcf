"""A group: the verdicts on all responses side by side, their texts, and why each has its reward."""

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from judge_server.api.auth import identity_of, project_of
from judge_server.api.console.groups.advantages import heat_of, response_advantages
from judge_server.api.console.groups.group_view import Group, GroupView, read_group
from judge_server.api.console.labels.labelling import GroupLabels
from judge_server.api.console.parameters import int_parameter, run_parameter, text_parameter
from judge_server.api.console.rendering import Console, csv_response
from judge_server.api.console.responses.shown import TEXT_LIMIT, group_address
from judge_server.api.console.routing import NotFound, PageRouter
from judge_server.ledger.rows import storable_text
from trainer_client.wire.ledger_rows import LabelFilter, ResponseFilter

router = PageRouter()

_RESPONSES_A_PAGE = 32


@router.get("/group")
async def group(console: Console, request: Request) -> Response:
    """The page of a group."""
    shown = await _read(console, request)
    view = GroupView(
        shown,
        order=text_parameter(request, "order"),
        rows=text_parameter(request, "rows"),
        pair=(int_parameter(request, "left"), int_parameter(request, "right")),
        whole=request.query_params.get("whole") == "1",
    )
    record = shown.responses[0].record
    csv_href = group_address(record).replace("/group?", "/group.csv?")
    rubric = record.response.rubric
    known = None
    if rubric is not None:
        known = await console.service.rubrics.find(project_of(request), f"sha256:{rubric.hex()}")
    return console.page(
        request, "group.html.jinja", group=shown, view=view, request_row=record.request, run=record.request.run,
        heat=heat_of(shown), advantages=response_advantages(shown), csv_href=csv_href,
        limit=None if view.whole else TEXT_LIMIT, rubric=f"sha256:{rubric.hex()}" if rubric else None,
        rubric_version=known,
        labels=await _labels(console, request, shown),
    )  # fmt: skip


async def _labels(console: Console, request: Request, shown: Group) -> GroupLabels | None:
    """The labels of a group for a key that may label; None for others, and if this process keeps no labels."""
    identity, store = identity_of(request), console.service.labels
    if store is None or "labels:write" not in identity.permissions:
        return None
    rows = [one.record.response for one in shown.responses]
    wanted = LabelFilter(identity.project_id, rows[0].run, tuple(dict.fromkeys(row.request for row in rows)))
    return GroupLabels(await store.labels(wanted), identity.actor)


@router.get("/group.csv")
async def group_csv(console: Console, request: Request) -> Response:
    """The verdicts of a group."""
    shown = await _read(console, request)
    return csv_response(shown.table, "group.csv")


async def _read(console: Console, request: Request) -> Group:
    ledger, project, run = console.service.readable_ledger(), project_of(request), run_parameter(request)
    name, key = text_parameter(request, "group"), b""
    with suppress(ValueError):
        key = bytes.fromhex(text_parameter(request, "request"))
    after = int_parameter(request, "after")
    wanted = ResponseFilter(
        project, storable_text(run), request=key, group_id=storable_text(name), limit=_RESPONSES_A_PAGE,
        after=None if after is None else (key, min(after, 2**31 - 1)),
    )  # fmt: skip
    found = await read_group(ledger, wanted) if len(key) == 16 else None
    if found is None:
        raise NotFound(
            f"This project's ledger has no group {name!r} of this request in run {run!r}. The run's responses link to "
            "its groups."
        )
    return found
