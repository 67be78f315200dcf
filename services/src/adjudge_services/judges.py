"""The judges of a process by name: with engines of its own, or in other processes."""

import asyncio
import logging
from collections.abc import Callable, Collection

from pydantic import TypeAdapter, ValidationError

from adjudge_services.settings import Settings
from judge_server.cache import cache_from_url
from judge_server.engines import engine_from_url
from judge_server.errors import EngineAway
from judge_server.judging.calibration import shipped_calibrations
from judge_server.judging.desk import Desk
from judge_server.judging.engine_desk import EngineDesk
from judge_server.judging.judge import Judge
from judge_server.ports import Engine
from judge_server.prompts.library import TemplateLibrary
from judge_server.remote import JudgeLink, RemoteDesk
from trainer_client.wire import DEFAULT_JUDGE

log = logging.getLogger("adjudge")

Fencing = Callable[[str], str]

AWAY_PAUSE_S = 2.0
"""Between two tries to start an engine whose endpoint is not there yet."""

WATCH_S = 1.0
"""Between two looks at whether an engine is dead."""

WAITING = "the judge waits for an endpoint that does not answer yet; its log says more"

_URLS_BY_NAME = TypeAdapter(dict[str, str])


def own_judges(settings: Settings, fence: Fencing) -> dict[str, Judge]:
    """Judges with engines in this process, the default one first. Raises `ValueError` for an engine there is not."""
    urls = {DEFAULT_JUDGE: settings.engine_url} | settings.engines
    return {
        name: judge_at(EngineDesk(engine_of(settings, url), rules=settings.queue_rules), settings, fence)
        for name, url in urls.items()
    }


def remote_judges(settings: Settings, fence: Fencing) -> dict[str, Judge]:
    """Judges in other processes. Raises `ValueError` where the settings do not say where."""
    calls = settings.queue_rules.calls
    return {
        name: judge_at(RemoteDesk(links, most_calls=calls * len(links)), settings, fence)
        for name, links in links_to_judges(settings).items()
    }


def links_to_judges(settings: Settings) -> dict[str, list[JudgeLink]]:
    """The judge processes of ADJUDGE_JUDGES, by the name of their judge. Raises `ValueError` where it lists none."""
    given = (settings.judges or "").strip()
    try:
        urls_by_name = _URLS_BY_NAME.validate_json(given) if given.startswith("{") else {DEFAULT_JUDGE: given}
    except ValidationError as error:
        raise ValueError(f"ADJUDGE_JUDGES is no JSON of names and URLs: {error.errors()[0]['msg']}") from error
    urls = {name: together.split() for name, together in urls_by_name.items()}
    if not urls.get(DEFAULT_JUDGE):
        raise ValueError(
            "ADJUDGE_JUDGES names no judge; set it to the URLs of the judge processes, as in "
            "'http://judge-0:8001 http://judge-1:8001', or run `adjudge serve`, which has a judge of its own"
        )
    wrong = [url for listed in urls.values() for url in listed if not url.startswith(("http://", "https://"))]
    if wrong:
        raise ValueError(f"ADJUDGE_JUDGES: {wrong[0]!r} is no address of a judge process; they begin with http://")
    token = settings.judge_token.get_secret_value() if settings.judge_token else None
    return {name: [JudgeLink(url, token) for url in dict.fromkeys(listed)] for name, listed in urls.items()}


async def load(judge: Judge, waiting: Callable[[str], None]) -> None:
    """Load a judge's engine. An endpoint that is not there yet is waited for, `waiting` is told, and the log says why.

    Raises:
        EngineStartError: it cannot be loaded, however long one waits.
    """
    told = ""
    while True:
        try:
            return await judge.start()
        except EngineAway as error:
            if str(error) != told:
                told = str(error)
                log.warning("the judge cannot start yet, and goes on trying: %s", told)
                waiting(WAITING)
        await asyncio.sleep(AWAY_PAUSE_S)


async def death(judges: Collection[Judge]) -> str:
    """Wait until the engine of one of these is dead, if ever; says why."""
    while True:
        for judge in judges:
            if why := judge.desk.dead:
                return why
        await asyncio.sleep(WATCH_S)


def judge_at(desk: Desk, settings: Settings, fence: Fencing) -> Judge:
    """A judge whose calls that desk has answered, with what every judge of a deployment shares."""
    return Judge(
        desk,
        cache_from_url(settings.cache_url),
        fence,
        templates=TemplateLibrary(settings.templates_dir),
        calibrations=shipped_calibrations(),
        min_choice_mass=settings.min_choice_mass,
    )


def engine_of(settings: Settings, url: str | None = None) -> Engine:
    """The engine that an URL names, or the settings, not started. Raises `ValueError` where there is no such engine."""
    key = settings.engine_api_key
    return engine_from_url(url or settings.engine_url, api_key=key.get_secret_value() if key else None)
