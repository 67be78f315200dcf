"""A rubric: its versions, the criteria of one, and how often each is passed; and two versions side by side."""

import asyncio
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from judge_server.api.auth import project_of
from judge_server.api.console.parameters import choice_parameter, text_parameter
from judge_server.api.console.rendering import Console, csv_response
from judge_server.api.console.responses.shown import read_criteria
from judge_server.api.console.routing import NotFound, PageRouter
from judge_server.api.console.rubrics.rubric_view import PassRates, compare, pass_rates, version_tree
from judge_server.api.console.tables import address
from judge_server.ledger.rows import digest_bytes
from judge_server.rubrics import find_rubric, history
from trainer_client.wire import Criterion, RubricHistory, RubricVersion

router = PageRouter()

_VERSIONS = 100
_RATED_VERSIONS = 8
_RATED_RUNS = 8
_DONE = {
    "published": "This version is published.",
    "unchanged": "These criteria had been published before, so no version was added.",
    "alias": "The alias points to this version.",
    "removed": "The alias is removed.",
    "retired": "This version is retired.",
    "restored": "This version is in use again.",
}


@router.get("/rubric")
async def rubric(console: Console, request: Request) -> Response:
    """A published version, by reference or digest; or the criteria of a rubric that the ledger has."""
    project, digest = project_of(request), text_parameter(request, "digest")
    if reference := text_parameter(request, "reference"):
        return await _version(console, request, await find_rubric(console.service.rubrics, project, reference))
    known = await console.service.rubrics.find(project, digest) if digest.startswith("sha256:") else None
    if known is not None:
        return await _version(console, request, known)
    criteria: tuple[Criterion, ...] | None = None
    with suppress(ValueError):
        key = digest_bytes(digest)
        criteria = read_criteria((await console.service.readable_ledger().texts(project, [key])).get(key))
    if criteria is None:
        raise NotFound("This project has no rubric with this digest, neither published nor in its ledger.")
    return console.page(request, "rubric.html.jinja", digest=digest, version=None, criteria=criteria)


async def _version(console: Console, request: Request, version: RubricVersion) -> Response:
    service = console.service
    known = await history(service.rubrics, project_of(request), version.name, limit=_VERSIONS)
    texts = service.rubric_texts
    done = choice_parameter(request, "done", tuple(_DONE))
    aliases = await service.rubrics.aliases(project_of(request), version.name)
    return console.page(
        request, "rubric.html.jinja", digest=version.digest, version=version, criteria=version.criteria, history=known,
        tree=version_tree(known.versions), rates=await _rates(console, request, version, known),
        findings=None if texts is None else await asyncio.to_thread(texts.lint, version.criteria),
        aliases=aliases.aliases, done=_DONE[done] if done else "",
        csv_href=address("rubric/rates.csv", reference=version.reference), measurable=service.operations is not None,
    )  # fmt: skip


async def _rates(console: Console, request: Request, version: RubricVersion, known: RubricHistory) -> PassRates | None:
    """The pass rates of the newest versions and of this one; None without a ledger."""
    if console.service.ledger is None:
        return None
    newest = known.versions[:_RATED_VERSIONS]
    rated = [*newest, *(one for one in known.versions[_RATED_VERSIONS:] if one.version == version.version)]
    digests = [digest_bytes(one.digest) for one in rated]
    used = await console.service.ledger.rubric_use(project_of(request), digests, _RATED_RUNS)
    return pass_rates(rated, used, [criterion.id for criterion in version.criteria])


@router.get("/rubric/rates.csv")
async def rates_csv(console: Console, request: Request) -> Response:
    """The pass rates of a rubric by criterion and version."""
    project, reference = project_of(request), text_parameter(request, "reference")
    version = await find_rubric(console.service.rubrics, project, reference)
    known = await history(console.service.rubrics, project, version.name, limit=_VERSIONS)
    rates = await _rates(console, request, version, known)
    if rates is None:
        raise NotFound("This process has no ledger, so it knows no pass rates.")
    return csv_response(rates.table, "rates.csv")


@router.get("/rubric/compare")
async def comparison(console: Console, request: Request) -> Response:
    """Two versions of a rubric side by side, each given as a number or an alias."""
    project, name = project_of(request), text_parameter(request, "name")
    known = await history(console.service.rubrics, project, name, limit=_VERSIONS)
    newest = known.versions[0]
    to = text_parameter(request, "to") or str(newest.version)
    after = await find_rubric(console.service.rubrics, project, f"{name}@{to}")
    before = await find_rubric(
        console.service.rubrics, project, f"{name}@{text_parameter(request, 'from') or after.parent or after.version}"
    )
    compared = await asyncio.to_thread(compare, before, after)
    return console.page(
        request, "rubric_compare.html.jinja", name=name, versions=known.versions, before=before, after=after,
        comparison=compared,
    )  # fmt: skip
