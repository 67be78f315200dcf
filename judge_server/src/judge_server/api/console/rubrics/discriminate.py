"""Does a rubric tell good responses from bad ones? The form that starts the measurement, and earlier results."""

from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from judge_server.api.auth import project_of
from judge_server.api.console.forms import Form
from judge_server.api.console.operations.operations import running
from judge_server.api.console.operations.separations import is_of_rubric, separation_of
from judge_server.api.console.parameters import text_parameter
from judge_server.api.console.rendering import Console
from judge_server.api.console.routing import PageRouter
from judge_server.api.console.tables import address
from judge_server.rubrics import find_rubric
from trainer_client.wire import DEFAULT_JUDGE, RewardMode
from trainer_client.wire.rewards import NEEDS_NO_RUBRIC

router = PageRouter()

_EARLIER = 10
_MODES = tuple(mode for mode in get_args(RewardMode) if mode not in NEEDS_NO_RUBRIC)


@router.get("/rubric/discriminate", scope="score")
async def form(console: Console, request: Request) -> Response:
    """The form, and what was measured of this rubric before."""
    return await _page(console, request, text_parameter(request, "reference"))


@router.post("/rubric/discriminate", scope="score")
async def start(console: Console, request: Request, form: Form) -> Response:
    """Start the measurement and go to its page; the form again if the responses cannot be used."""
    project, reference = project_of(request), form.text("reference")
    version = await find_rubric(console.service.rubrics, project, reference)
    file = form.file("file")
    text = form.text("pairs") if file is None else file.content.decode("utf-8-sig", "replace")
    mode, judge = form.text("mode") or _MODES[0], form.text("judge") or DEFAULT_JUDGE
    filled = {"pairs": form.text("pairs"), "mode": mode, "judge": judge}
    if not text.strip():
        return await _page(console, request, reference, filled, "Paste responses, or choose a file of them.")
    asked: dict[str, Any] = {
        "groups": text, "rubric": version.reference, "reward": {"mode": mode}, "judge": judge,
        "run": f"discriminate {version.reference}"[:256], "allow_retired": True,
    }  # fmt: skip
    try:
        made = await running(console).submit(project, "discriminate_rubrics", asked)
    except ValueError as error:
        return await _page(console, request, reference, filled, str(error))
    return RedirectResponse(address("operation", id=made.id), 303)


async def _page(
    console: Console, request: Request, reference: str, filled: dict[str, str] | None = None, problem: str = ""
) -> Response:
    project = project_of(request)
    version = await find_rubric(console.service.rubrics, project, reference)
    own = [one for one in (await running(console).list(project)).operations if is_of_rubric(one, version.name)]
    return console.page(
        request, "discriminate.html.jinja", 422 if problem else 200, version=version, problem=problem, modes=_MODES,
        filled=filled or {"pairs": "", "mode": _MODES[0], "judge": DEFAULT_JUDGE}, judges=console.service.names,
        earlier=[(one, separation_of(one)) for one in own[:_EARLIER]],
    )  # fmt: skip
