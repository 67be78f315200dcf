"""The list of rubrics, and the import of a file."""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from judge_server.api.auth import project_of
from judge_server.api.console.forms import Form, UploadedFile
from judge_server.api.console.parameters import int_parameter, text_parameter
from judge_server.api.console.rendering import Console
from judge_server.api.console.routing import PageRouter
from judge_server.api.console.rubrics.rubric_changes import MAX_TEXT_BYTES, editor, publish_document
from judge_server.api.console.tables import address
from judge_server.errors import InvalidRequest, TooLarge
from judge_server.ports import NamedRubric

router = PageRouter()

_RUBRICS_A_PAGE = 50
_MAX_IMPORTED = 500


@router.get("/rubrics")
async def rubrics(console: Console, request: Request) -> Response:
    """The rubrics of the project by name, found by the beginning of the name, a tag, or words in their criteria."""
    prefix, tag, text = [text_parameter(request, name) for name in ("prefix", "tag", "q")]
    after = text_parameter(request, "after") or None
    try:
        page = await console.service.rubrics.list(
            project_of(request), prefix=prefix, tag=tag or None, text=text, after=after, limit=_RUBRICS_A_PAGE
        )
    except ValueError:
        raise InvalidRequest("after: the cursor is invalid; go back to the first page of rubrics") from None
    next_href = address("rubrics", prefix=prefix, tag=tag, q=text, after=page.next_cursor) if page.next_cursor else ""
    return console.page(
        request, "rubrics.html.jinja", rubrics=page.rubrics, prefix=prefix, tag=tag, q=text, after=after,
        next_href=next_href, published=int_parameter(request, "published"),
        unchanged=int_parameter(request, "unchanged") or 0,
    )  # fmt: skip


@router.post("/rubrics/import", scope="rubrics:write")
async def import_file(console: Console, request: Request, form: Form) -> Response:
    """Read a file. One rubric opens in the editor; several are listed, and published when the list is confirmed."""
    confirmed = form.text("content")
    file = UploadedFile(form.text("file_name"), confirmed.encode()) if confirmed else form.file("file")
    if file is None:
        raise InvalidRequest("file: choose a file of rubrics, or drop one on the field")
    if len(file.content) > MAX_TEXT_BYTES:
        raise TooLarge(
            f"the file has more than {MAX_TEXT_BYTES >> 10} KiB; publish it with: adjudge rubrics import FILE"
        )
    texts = console.service.readable_texts()
    problems: list[str] = []
    found: Sequence[NamedRubric] = ()
    try:
        found = await asyncio.to_thread(texts.read, file.content, file.name)
    except ValueError as error:
        problems = str(error).splitlines()
    if len(found) > _MAX_IMPORTED:
        problems = [f"the file has {len(found):,} rubrics, more than {_MAX_IMPORTED}; use adjudge rubrics import FILE"]
    if len(found) == 1 and not confirmed:
        name = found[0].name
        newest = await console.service.rubrics.find(project_of(request), name)
        return await editor(console, request, name, file.content.decode("utf-8-sig"), newest)
    if confirmed and not problems:
        added = [(await publish_document(console, request, one.name, one.document))[1] for one in found]
        counts = {"published": sum(added), "unchanged": len(added) - sum(added)}
        return RedirectResponse(address("rubrics", **counts), 303)
    text = "" if problems else file.content.decode("utf-8-sig")
    return console.page(
        request, "rubric_import.html.jinja", 422 if problems else 200, file_name=file.name, problems=problems,
        rubrics=found, content=text,
    )  # fmt: skip
