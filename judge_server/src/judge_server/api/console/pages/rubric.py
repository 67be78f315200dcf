"""The criteria of the rubric that judged, by its digest."""

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from judge_server.api.auth import project_of
from judge_server.api.console.parameters import text_parameter
from judge_server.api.console.rendering import Console
from judge_server.api.console.responses import read_criteria
from judge_server.api.console.routing import NotFound, PageRouter
from judge_server.ledger.rows import digest_bytes

router = PageRouter()


@router.get("/rubric")
async def rubric(console: Console, request: Request) -> Response:
    """A rubric that was published, or one that the ledger has."""
    project, digest = project_of(request), text_parameter(request, "digest")
    version = await console.service.rubrics.find(project, digest) if digest.startswith("sha256:") else None
    criteria = None if version is None else version.criteria
    if criteria is None:
        with suppress(ValueError):
            key = digest_bytes(digest)
            criteria = read_criteria((await console.service.readable_ledger().texts(project, [key])).get(key))
    if criteria is None:
        raise NotFound("This project has no rubric with this digest, neither published nor in its ledger.")
    return console.page(request, "rubric.html.jinja", digest=digest, version=version, criteria=criteria)
