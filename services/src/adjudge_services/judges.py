"""The judges of a process by name: with engines of its own, or in other processes."""

import asyncio
import logging
from collections.abc import Callable, Collection

from pydantic import TypeAdapter, ValidationError

from adjudge_services.settings import Settings
from judge_server.cache import cache_from_url
from judge_server.engines import engine_from_url
from judge_server.errors import EngineNotReady
from judge_server.judging.calibration import builtin_calibrations
from judge_server.ports import Engine
from judge_server.prompts.library import TemplateLibrary
from judge_server.remote import JudgeClient, RemoteExecutor
from judge_server.scheduling.executor import JudgeExecutor, LocalExecutor
from judge_server.scoring.judge import Judge
from trainer_client.wire import DEFAULT_JUDGE

log = logging.getLogger("adjudge")

FenceFunction = Callable[[str], str]

START_RETRY_INTERVAL_S = 2.0
"""Between two tries to start an engine whose endpoint is not there yet."""

HEALTH_CHECK_INTERVAL_S = 1.0
"""Between two looks at whether an engine is dead."""

WAITING_FOR_ENDPOINT = "the judge waits for an endpoint that does not answer yet; its log says more"

_URLS_BY_NAME = TypeAdapter(dict[str, str])


def local_judges(settings: Settings, fence: FenceFunction) -> dict[str, Judge]:
    """Judges with engines in this process, the default one first. Raises `ValueError` for an engine there is not."""
    urls = {DEFAULT_JUDGE: settings.engine_url} | settings.engines
    return {
        name: build_judge(LocalExecutor(build_engine(settings, url), rules=settings.queue_rules), settings, fence)
        for name, url in urls.items()
    }


def remote_judges(settings: Settings, fence: FenceFunction) -> dict[str, Judge]:
    """Judges in other processes. Raises `ValueError` where the settings do not say where."""
    calls = settings.queue_rules.calls
    return {
        name: build_judge(RemoteExecutor(links, max_calls=calls * len(links)), settings, fence)
        for name, links in judge_links(settings).items()
    }


def judge_links(settings: Settings) -> dict[str, list[JudgeClient]]:
    """The judge processes of ADJUDGE_JUDGES, by the name of their judge. Raises `ValueError` where it lists none."""
    given = (settings.judges or "").strip()
    try:
        urls_by_name = _URLS_BY_NAME.validate_json(given) if given.startswith("{") else {DEFAULT_JUDGE: given}
    except ValidationError as error:
        raise ValueError(f"ADJUDGE_JUDGES is no JSON of names and URLs: {error.errors()[0]['msg']}") from error
    urls = {name: url_list.split() for name, url_list in urls_by_name.items()}
    if not urls.get(DEFAULT_JUDGE):
        raise ValueError(
            "ADJUDGE_JUDGES names no judge; set it to the URLs of the judge processes, as in "
            "'http://judge-0:8001 http://judge-1:8001', or run `adjudge serve`, which has a judge of its own"
        )
    wrong = [url for listed in urls.values() for url in listed if not url.startswith(("http://", "https://"))]
    if wrong:
        raise ValueError(f"ADJUDGE_JUDGES: {wrong[0]!r} is no address of a judge process; they begin with http://")
    token = settings.judge_token.get_secret_value() if settings.judge_token else None
    return {name: [JudgeClient(url, token) for url in dict.fromkeys(listed)] for name, listed in urls.items()}


async def load_judge(judge: Judge, on_waiting: Callable[[str], None]) -> None:
    """Load a judge's engine. An endpoint that is not there yet is waited for, `waiting` is told, and the log says why.

    Raises:
        EngineStartError: it cannot be loaded, however long one waits.
    """
    last_reason = ""
    while True:
        try:
            return await judge.start()
        except EngineNotReady as error:
            if str(error) != last_reason:
                last_reason = str(error)
                log.warning("the judge cannot start yet, and goes on trying: %s", last_reason)
                on_waiting(WAITING_FOR_ENDPOINT)
        await asyncio.sleep(START_RETRY_INTERVAL_S)


async def wait_for_engine_failure(judges: Collection[Judge]) -> str:
    """Wait until the engine of one of these is dead, if ever; says why."""
    while True:
        for judge in judges:
            if why := judge.executor.fatal_error:
                return why
        await asyncio.sleep(HEALTH_CHECK_INTERVAL_S)


def build_judge(executor: JudgeExecutor, settings: Settings, fence: FenceFunction) -> Judge:
    """A judge whose calls that desk has answered, with what every judge of a deployment shares."""
    return Judge(
        executor,
        cache_from_url(settings.cache_url),
        fence,
        templates=TemplateLibrary(settings.templates_dir),
        calibrations=builtin_calibrations(),
        min_choice_mass=settings.min_choice_mass,
    )


def build_engine(settings: Settings, url: str | None = None) -> Engine:
    """The engine that an URL names, or the settings, not started. Raises `ValueError` where there is no such engine."""
    key = settings.engine_api_key
    return engine_from_url(url or settings.engine_url, api_key=key.get_secret_value() if key else None)
