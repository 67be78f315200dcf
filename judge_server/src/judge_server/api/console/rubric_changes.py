"""The list of rubrics, and their editor, import and archiving."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from judge_server.api.auth import project_of
from judge_server.api.console.forms import Form, UploadedFile, int_parameter, text_parameter
from judge_server.api.console.rendering import Console, PageRouter, address
from judge_server.api.console.rubrics import Comparison, are_large, compare
from judge_server.api.http.requests import refuse_unusable_criteria
from judge_server.errors import InvalidRequest, TooLarge
from judge_server.ports import LintFinding, NamedRubric, RubricFile
from judge_server.ports.stores import RubricDocument
from judge_server.scheduling.time_sharing import LARGE_CHARACTERS, run_in_thread, run_inline_or_in_thread
from judge_server.scoring import rubrics as changes
from judge_server.scoring.rubrics import find_rubric
from trainer_client.wire import RubricContent, RubricVersion, parse_reference
from trainer_client.wire.rubrics import Reason

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


@router.post("/rubrics/import", scope="rubrics:write", with_file=True)
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

    def work() -> tuple[RubricFile, Sequence[object]]:
        read = texts.read(file.content, file.name)
        return read, read.changes

    read, not_kept = await run_in_thread(work)
    found = read.rubrics
    if len(found) > _MAX_IMPORTED:
        many = f"the file has {len(found):,} rubrics, more than {_MAX_IMPORTED}"
        raise InvalidRequest(f"file: {many}; publish it with: adjudge rubrics import FILE")
    text = "" if read.problems else _text_of(file)
    if len(found) == 1 and not confirmed:
        newest = await console.service.rubrics.find(project_of(request), found[0].name)
        return await editor(console, request, found[0].name, text, newest)
    if confirmed and not read.problems:
        added = [(await publish_document(console, request, one.name, one.document))[1] for one in found]
        counts = {"published": sum(added), "unchanged": len(added) - sum(added)}
        return RedirectResponse(address("rubrics", **counts), 303)
    return await run_inline_or_in_thread(
        len(file.content) > LARGE_CHARACTERS, console.page, request, "rubric_import.html.jinja",
        422 if read.problems else 200, file_name=file.name, read=read, not_kept=not_kept, content=text,
    )  # fmt: skip


def _text_of(file: UploadedFile) -> str:
    try:
        return file.content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest("file: this is no text; publish it with: adjudge rubrics import FILE") from None


MAX_TEXT_BYTES = 256 * 1024
"""The size of a rubric's text in the editor, and of a file that a page imports."""

_REASON: TypeAdapter[str] = TypeAdapter(Reason)
_EXAMPLE = """criteria:
  - id: answer
    kind: factual
    weight: 3
    description: The final answer is 80 km/h.
  - id: method
    kind: process
    description: Divides the distance by the time.
"""


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be published: problems that prevent it, the difference to the version it is made from, and lint.

    `not_kept` is what the text says and the rubric does not hold. `same` is true if the criteria are those of that
    version.
    """

    problems: Sequence[object] = ()
    rubric: NamedRubric | None = None
    not_kept: Sequence[object] = ()
    comparison: Comparison | None = None
    findings: Sequence[LintFinding] = ()
    same: bool = False


@router.get("/rubric/edit", scope="rubrics:write")
async def edit(console: Console, request: Request) -> Response:
    """The editor: for the next version of a rubric, or for a new one."""
    reference = text_parameter(request, "reference")
    if not reference:
        return await editor(console, request, "", _EXAMPLE, None)
    version = await find_rubric(console.service.rubrics, project_of(request), reference)
    content = RubricContent.model_construct(criteria=version.criteria)
    text = await run_in_thread(console.service.readable_texts().write, content)
    return await editor(console, request, version.name, text, version)


@router.post("/rubric/preview", scope="rubrics:write")
async def preview(console: Console, request: Request, form: Form) -> Response:
    """The editor again, with what publishing its text would change."""
    return await editor(console, request, form.text("name"), form.text("text"), await _parent(console, request, form))


@router.post("/rubric/publish", scope="rubrics:write")
async def publish(console: Console, request: Request, form: Form) -> Response:
    """Publish the text, and show the version; the editor again if it cannot be published."""
    name, text, parent = form.text("name").strip(), form.text("text"), await _parent(console, request, form)
    shown = await _preview(console, text, parent)
    problems = list(shown.problems)
    if shown.rubric is not None:
        try:
            number = parent.version if parent is not None and parent.name == name else None
            version, added = await publish_document(console, request, name, shown.rubric.document, number)
        except InvalidRequest as error:
            problems = [f"{one.field}: {one.message}" for one in error.errors] or [error.detail]
        else:
            done = "published" if added else "unchanged"
            return RedirectResponse(address("rubric", reference=version.reference, done=done), 303)
    return await _editor_page(console, request, name, text, parent, Preview(problems), 422)


async def publish_document(
    console: Console, request: Request, name: str, document: RubricDocument, parent: int | None = None
) -> tuple[RubricVersion, bool]:
    """Publish a rubric as `POST /v1/rubrics/NAME/versions` does; returns the version, and whether it was added.

    Raises:
        InvalidRequest: the name or a pattern is invalid, or the parent does not exist.
    """
    project, content = project_of(request), document.content
    await refuse_unusable_criteria(console.service.checker, project, content)
    try:
        return await console.service.rubrics.publish(
            project, name, content, metadata=document.metadata, tags=document.tags, lineage=document.lineage,
            parent=parent,
        )  # fmt: skip
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


async def editor(console: Console, request: Request, name: str, text: str, parent: RubricVersion | None) -> Response:
    """The editor with a text, and what publishing it would change."""
    return await _editor_page(console, request, name, text, parent, await _preview(console, text, parent))


async def _editor_page(
    console: Console,
    request: Request,
    name: str,
    text: str,
    parent: RubricVersion | None,
    shown: Preview,
    status: int = 200,
) -> Response:
    criteria = shown.rubric.document.content.criteria if shown.rubric is not None else ()
    criteria += parent.criteria if parent is not None else ()
    return await run_inline_or_in_thread(
        are_large(criteria) or len(text) > LARGE_CHARACTERS, console.page, request, "rubric_edit.html.jinja", status,
        name=name, text=text, parent=parent, preview=shown,
    )  # fmt: skip


async def _preview(console: Console, text: str, parent: RubricVersion | None) -> Preview:
    if len(text) > MAX_TEXT_BYTES:
        raise TooLarge(f"the text has more than {MAX_TEXT_BYTES:,} characters; use adjudge rubrics publish NAME FILE")
    texts = console.service.readable_texts()

    def work() -> Preview:
        read = texts.read(text.encode(), "rubric.yaml")
        if len(read.rubrics) != 1:
            several = f"the text has {len(read.rubrics):,} rubrics, and a version is one; import them as a file"
            return Preview(read.problems or [several])
        (rubric,) = read.rubrics
        content = rubric.document.content
        findings = texts.lint(content.criteria)
        if parent is None:
            return Preview((), rubric, read.changes, None, findings)
        return Preview((), rubric, read.changes, compare(parent, content), findings, content.digest == parent.digest)

    return await run_in_thread(work)


async def _parent(console: Console, request: Request, form: Form) -> RubricVersion | None:
    """The version that the text was made from; None for a new rubric."""
    reference = form.text("parent")
    return await find_rubric(console.service.rubrics, project_of(request), reference) if reference else None


# -- aliases and retirement


@router.post("/rubric/alias", scope="rubrics:write")
async def alias(console: Console, request: Request, form: Form) -> Response:
    """Point an alias to a version, or remove it; refused if it was moved since the page was made."""
    rubrics, project = console.service.rubrics, project_of(request)
    (name, version), alias_name = _pinned(form), form.text("alias").strip()
    at = form.text("expected")
    expected = int(at) if at.isascii() and at.isdecimal() and len(at) < 10 else None
    if form.text("remove"):
        await changes.remove_alias(rubrics, project, name, alias_name, expected=expected or 0)
        return _done(name, version, "removed")
    await changes.move_alias(rubrics, project, name, alias_name, version, expected=expected)
    return _done(name, version, "alias")


@router.post("/rubric/retirement", scope="rubrics:write")
async def retirement(console: Console, request: Request, form: Form) -> Response:
    """Retire a version with a reason, or restore it."""
    name, version = _pinned(form)
    reason = None
    if not form.text("restore"):
        try:
            reason = _REASON.validate_python(form.text("reason"))
        except ValidationError:
            raise InvalidRequest("reason: say in at most 2,000 characters why, and what to use instead") from None
    await changes.retire(console.service.rubrics, project_of(request), f"{name}@{version}", reason)
    return _done(name, version, "restored" if reason is None else "retired")


def _pinned(form: Form) -> tuple[str, int]:
    """The name and the number of the version that a form is about."""
    try:
        reference = parse_reference(form.text("reference"))
    except ValueError as error:
        raise InvalidRequest(f"reference: {error}") from None
    if reference.name is None or reference.version is None:
        raise InvalidRequest("reference: name a version, such as math/primes@3")
    return reference.name, reference.version


def _done(name: str, version: int, what: str) -> Response:
    return RedirectResponse(address("rubric", reference=f"{name}@{version}", done=what), 303)
