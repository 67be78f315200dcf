"""Which judge a command asks: one that starts in this process, or one of a running service by its name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from pydantic import ValidationError

from adjudge_services.settings import CombinedJudgeSettings, Settings
from adjudge_services.store import prepare_store
from trainer_client import AsyncClient
from trainer_client.wire.problems import field_errors

MEMBERS_OF_CASCADE = ("small", "large")
"""The names of a cascade's judges while it is measured, by which ADJUDGE_CALIBRATIONS names them."""


@asynccontextmanager
async def open_judge(
    judge: str | None, url: str | None, settings: Settings, run: str | None = None
) -> AsyncIterator[tuple[AsyncClient, str | None]]:
    """Open a client of the service that has a judge; also yield the judge's name, None for the service's default judge.

    Args:
        judge: what the user wrote as `--judge`: the name of a judge of the service, or an engine URL, or a cascade or
            panel of URLs as JSON, for which a service starts in this process; None for the default judge.
        url: the service; if a judge is named and there is no URL, that of the settings.
        settings: the settings of a service in this process.
        run: the run under which the ledger records the client's requests.

    Raises:
        ValueError: the judge begins like JSON but is neither a cascade nor a panel.
    """
    if judge is not None and ("://" in judge or judge.startswith("{")):
        url, settings, name = None, with_engine(judge, settings), None
    else:
        url, name = url or (judge and settings.url), judge
    async with open_client(url, settings, run) as client:
        yield client, name


@asynccontextmanager
async def open_client(url: str | None, settings: Settings, run: str | None = None) -> AsyncIterator[AsyncClient]:
    """Open a client of the service at `url`, or start a service in this process and load its model.

    The ledger records the client's requests under `run`.
    """
    if url is not None:
        async with AsyncClient(url, run) as client:
            yield client
        return
    from adjudge_services.wiring import build_app  # the web framework and the engines, which a URL does not need

    await prepare_store(settings)
    unreachable = {"host": "127.0.0.1", "keys": "loopback"}  # by anything outside this process
    app = build_app(settings.model_copy(update=unreachable), wait_for_judge=True, with_operations=False)
    inner = AsyncClient("http://localhost", run, api_key="", transport=httpx2.ASGITransport(app))
    async with app.router.lifespan_context(app), inner as client:
        yield client


def combined_judge(judge: str) -> CombinedJudgeSettings:
    """Read a cascade or panel of engine URLs, written as in the settings. Raises `ValueError` if it is invalid."""
    try:
        given = CombinedJudgeSettings.model_validate_json(judge)
    except ValidationError as error:
        raise ValueError(f"{judge} is not a cascade or panel: {field_errors(error.errors())[0].message}") from None
    named = [member for member in given.members if "://" not in member]
    if named:
        raise ValueError(f"{named[0]!r} is not an engine URL, of which a cascade or panel to measure here is made")
    return given


def judge_label(judge: str) -> str:
    """Return what tables call a judge: its name or URL, or those of a cascade's or panel's judges."""
    if not judge.startswith("{"):
        return judge
    given = combined_judge(judge)
    how = given.band or given.weights or given.dawid_skene or "equal weights"
    written = how if isinstance(how, str) else " to ".join(map(str, how)) if given.cascade else f"weights {how}"
    return f"{'cascade' if given.cascade else 'panel'}({', '.join(given.members)}; {written})"


def with_engine(judge: str, settings: Settings) -> Settings:
    """Return the settings of a service whose default judge is at this engine URL, or is this cascade or panel."""
    if not judge.startswith("{"):
        return settings.model_copy(update={"engine_url": judge, "engines": {}})
    given = combined_judge(judge)
    names = MEMBERS_OF_CASCADE if given.cascade else tuple(f"judge-{n}" for n in range(1, len(given.members) + 1))
    default = given.model_copy(update={"cascade" if given.cascade else "panel": names})
    return settings.model_copy(update={"engines": {"default": default, **dict(zip(names, given.members, strict=True))}})
