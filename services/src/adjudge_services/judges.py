"""The judges of a process by name, with engines in this process or in other processes.

Stored calibrations are applied to them, and follow the aliases that name them.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError

from adjudge_services.settings import CombinedJudgeSettings, Settings
from judge_server.engines import engine_from_url
from judge_server.errors import EngineNotReady
from judge_server.judging.calibration import StoredCalibration, builtin_calibrations
from judge_server.judging.combining import (
    Band,
    CascadeRule,
    CombinationRule,
    PanelRule,
    StoredBand,
    StoredDawidSkene,
    StoredRule,
    WeightedMean,
)
from judge_server.judging.preparation import Preparer
from judge_server.judging.prompts.library import TemplateLibrary
from judge_server.ports import Engine, project_salt
from judge_server.scheduling.executor import JudgeExecutor, LocalExecutor
from judge_server.scoring.cache import cache_from_url
from judge_server.scoring.combined import AnyJudge, CombinedJudge
from judge_server.scoring.judge import Judge
from rubric_store import CalibrationStore
from trainer_client.wire import DEFAULT_JUDGE

if TYPE_CHECKING:
    from judge_server.evaluation.corrected_rates import ErrorSource
    from judge_server.remote.executor import JudgeClient


log = logging.getLogger("adjudge")

CALIBRATION_INTERVAL_S = 10.0
"""Interval between looks at the calibrations that `ADJUDGE_CALIBRATIONS` names; a moved alias takes effect within it.
With several replicas, their answers differ for as long."""

_BY_JUDGE = TypeAdapter(dict[str, str])
_RULE: TypeAdapter[StoredRule] = TypeAdapter(StoredRule)


class CalibrationError(Exception):
    """A stored calibration cannot be applied; the message says why and what to do."""


def references_by_judge(text: str | None) -> dict[str, list[str]]:
    """The references in ADJUDGE_CALIBRATIONS, by judge. Raises `ValueError` if it is invalid."""
    given = (text or "").strip()
    if not given.startswith("{"):
        return {DEFAULT_JUDGE: given.split()} if given else {}
    try:
        return {name: listed.split() for name, listed in _BY_JUDGE.validate_json(given).items()}
    except ValidationError as error:
        raise ValueError(
            f"ADJUDGE_CALIBRATIONS is not a JSON object of judges and references: {error.errors()[0]['msg']}"
        ) from error


async def stored_measurements(store_url: str) -> "list[ErrorSource]":
    """How often judges err, as measured with each stored calibration; those of one name newest first.

    Raises:
        ConnectionError: the database cannot be reached.
    """
    from judge_server.evaluation.corrected_rates import ErrorSource

    store = CalibrationStore(store_url)  # for a moment only, so that no connections stay open
    try:
        versions = await store.versions()
    finally:
        await store.close()
    return [
        ErrorSource(
            f"calibration {one.name}@{one.version}", one.content.get("fingerprint"), 1, one.content.get("measured")
        )
        for one in versions
    ]


class CalibrationLoader:
    """Keeps what is stored about judges as their references name it: calibrations, bands, error rates of panels.

    It reads nothing if there are no references.
    """

    def __init__(
        self,
        store_url: str,
        references: Mapping[str, list[str]],
        judges: Mapping[str, AnyJudge],
    ) -> None:
        self._store_url = store_url
        self._references = references
        self._combined = {
            name: judge for name, judge in judges.items() if isinstance(judge, CombinedJudge) and judge.reference
        }
        self._judges = judges
        self._last_problem = ""

    @classmethod
    def of(cls, settings: Settings, judges: Mapping[str, AnyJudge]) -> "CalibrationLoader":
        """The loader of the settings. Raises `ValueError` if they name a judge that does not exist or is combined."""
        references = references_by_judge(settings.calibrations)
        for name in references:
            if name not in judges:
                raise ValueError(f"ADJUDGE_CALIBRATIONS names the judge {name!r}; the judges are {', '.join(judges)}")
            if isinstance(judges[name], CombinedJudge):
                raise ValueError(
                    f"ADJUDGE_CALIBRATIONS names {name!r}, which is a cascade or panel; calibrate the judges that it "
                    "is made of"
                )
        return cls(settings.store_url, references, judges)

    async def load(self) -> None:
        """Read the calibrations and give them to the judges.

        Raises:
            CalibrationError: a reference names nothing, or the database cannot be reached.
        """
        if not self._references and not self._combined:
            return
        store = CalibrationStore(self._store_url)  # for a moment only, so that no connections stay open
        try:
            for judge, references in self._references.items():
                found = [await _find(store, reference) for reference in references]
                of = self._judges[judge]
                assert isinstance(of, Judge)
                of.stored_calibrations = found
            for combined in self._combined.values():
                combined.stored_rule = await _find_rule(store, combined)
        finally:
            await store.close()

    async def run(self) -> None:
        """Follow moved aliases until cancelled. What cannot be read leaves the calibrations as they are."""
        while self._references or self._combined:
            await asyncio.sleep(CALIBRATION_INTERVAL_S)
            try:
                await self.load()
                self._last_problem = ""
            except CalibrationError as error:
                if str(error) != self._last_problem:
                    self._last_problem = str(error)
                    log.warning("calibrations stay as they are: %s", error)


async def _find(store: CalibrationStore, reference: str) -> StoredCalibration:
    content = await _find_content(store, reference)
    if "kind" in content:
        raise CalibrationError(f"{reference} is the rule of a cascade or panel and no calibration of one judge")
    return StoredCalibration.model_validate(content)


async def _find_rule(store: CalibrationStore, judge: CombinedJudge) -> StoredRule:
    assert judge.reference is not None
    content = await _find_content(store, judge.reference)
    rule = _RULE.validate_python(content) if "kind" in content else None
    kind = StoredBand if judge.kind == "cascade" else StoredDawidSkene
    if not isinstance(rule, kind) or len(rule.judges) != len(judge.names):
        what = "band of a cascade" if kind is StoredBand else f"set of error rates of a panel of {len(judge.names)}"
        raise CalibrationError(f"{judge.reference} is not a {what}; `adjudge calibrations` lists what is stored")
    return rule


async def _find_content(store: CalibrationStore, reference: str) -> dict[str, Any]:
    """Return what is stored under a reference, with its name and version."""
    try:
        version = await store.find(reference)
    except ConnectionError as error:
        raise CalibrationError(f"the calibration {reference} cannot be read: {error}") from error
    if version is None:
        raise CalibrationError(
            f"there is no calibration {reference}; `adjudge calibrations` lists those that are stored"
        )
    return {**version.content, "name": version.name, "version": version.version}


START_RETRY_INTERVAL_S = 2.0
"""Seconds between attempts to start an engine whose endpoint does not answer yet."""

HEALTH_CHECK_INTERVAL_S = 1.0
"""Interval between checks of the engine of this process. If the engine is dead, the process ends."""

WAITING_FOR_ENDPOINT = "the judge is waiting for an endpoint that does not answer yet; see its log"

_JUDGES_BY_NAME = TypeAdapter(dict[str, str | CombinedJudgeSettings])


def local_judges(settings: Settings) -> dict[str, AnyJudge]:
    """Judges with engines in this process, the default one first.

    Raises:
        ValueError: an engine is unknown, or a cascade or panel names an unknown judge.
    """
    given = {DEFAULT_JUDGE: settings.engine_url} | settings.engines
    judges = {
        name: build_judge(build_executor(settings, url), settings)
        for name, url in given.items()
        if isinstance(url, str)
    }
    return with_combined(judges, given)


def build_executor(settings: Settings, url: str | None = None) -> LocalExecutor:
    """The executor of an engine in this process, by default of the default judge. Raises `ValueError`."""
    return LocalExecutor(
        build_engine(settings, url),
        rules=settings.queue_rules,
        resting=settings.resting_state,
        adapters=settings.adapters_dir,
    )


def with_combined(judges: Mapping[str, Judge], given: Mapping[str, str | CombinedJudgeSettings]) -> dict[str, AnyJudge]:
    """Add the cascades and panels among `given` to the judges, in the order given.

    Raises:
        ValueError: one of them names an unknown judge, or one that is itself a cascade or panel.
    """
    found: dict[str, AnyJudge] = {}
    for name, one in given.items():
        if isinstance(one, str):
            found[name] = judges[name]
            continue
        for member in one.members:
            if member not in judges:
                known = "is a cascade or panel itself" if member in given else "does not exist"
                raise ValueError(
                    f"the judge {name!r} is made of {member!r}, which {known}; name judges with an engine of their "
                    f"own: {', '.join(judges)}"
                )
        members = {member: judges[member] for member in one.members}
        kind: Literal["cascade", "panel"] = "cascade" if one.cascade else "panel"
        found[name] = CombinedJudge(members, kind, _rule_of(one), reference=one.reference)
    return found


def _rule_of(given: CombinedJudgeSettings) -> CombinationRule | None:
    """The rule in the settings; None if a stored version has it."""
    if given.reference is not None:
        return None
    if given.band is not None and not isinstance(given.band, str):
        return CascadeRule(Band(*given.band))
    return PanelRule(WeightedMean(given.weights or (1.0,) * len(given.members)))


def remote_judges(settings: Settings) -> dict[str, AnyJudge]:
    """Judges in other processes. Raises `ValueError` as `judge_links` and `with_combined` do."""
    from judge_server.remote.executor import RemoteExecutor  # an HTTP client that only `adjudge api` needs

    calls = settings.queue_rules.calls
    judges = {
        name: build_judge(RemoteExecutor(links, max_calls=calls * len(links)), settings)
        for name, links in judge_links(settings).items()
    }
    return with_combined(judges, named_judges(settings))


def named_judges(settings: Settings) -> dict[str, str | CombinedJudgeSettings]:
    """What ADJUDGE_JUDGES says of each judge: URLs separated by spaces, or a cascade or panel. Raises `ValueError`."""
    text = (settings.judges or "").strip()
    if not text.startswith("{"):
        return {DEFAULT_JUDGE: text}
    try:
        return _JUDGES_BY_NAME.validate_json(text)
    except ValidationError as error:
        raise ValueError(
            f"ADJUDGE_JUDGES is not a JSON object of names and URLs, cascades or panels: {error.errors()[0]['msg']}"
        ) from error


def judge_links(settings: Settings) -> "dict[str, list[JudgeClient]]":
    """Clients of the judge processes in ADJUDGE_JUDGES, by judge. Raises `ValueError` if it is invalid or empty."""
    from judge_server.remote.executor import JudgeClient

    given = named_judges(settings)
    urls = {name: listed.split() for name, listed in given.items() if isinstance(listed, str)}
    if not given.get(DEFAULT_JUDGE):
        raise ValueError(
            "ADJUDGE_JUDGES does not name the default judge; set it to the URLs of judge processes, such as "
            "'http://judge-0:8001 http://judge-1:8001', or run `adjudge serve`, which includes a judge"
        )
    wrong = [url for listed in urls.values() for url in listed if not url.startswith(("http://", "https://"))]
    if wrong:
        raise ValueError(
            f"ADJUDGE_JUDGES: {wrong[0]!r} is not the URL of a judge process; begin it with http:// or https://"
        )
    token = settings.judge_token.get_secret_value() if settings.judge_token else None
    return {name: [JudgeClient(url, token) for url in dict.fromkeys(listed)] for name, listed in urls.items()}


async def load_judge(judge: Judge, on_waiting: Callable[[str], None]) -> None:
    """Load a judge's engine, retrying while its endpoint does not answer yet, and log that it is ready.

    While it waits, it logs the reason and calls `on_waiting`.

    Raises:
        EngineStartError: the engine cannot be loaded, and waiting would not help.
    """
    last_reason = ""
    while True:
        try:
            await judge.start()
        except EngineNotReady as error:
            if str(error) != last_reason:
                last_reason = str(error)
                log.warning("the judge cannot start yet, retrying: %s", last_reason)
                on_waiting(WAITING_FOR_ENDPOINT)
        else:
            log.info("judge ready: %s", judge.identity.model)
            return
        await asyncio.sleep(START_RETRY_INTERVAL_S)


async def wait_for_engine_failure(judges: Collection[Judge]) -> str:
    """Wait until the engine of one of these judges dies; return the reason."""
    while True:
        for judge in judges:
            if why := judge.executor.fatal_error:
                return why
        await asyncio.sleep(HEALTH_CHECK_INTERVAL_S)


def build_judge(executor: JudgeExecutor, settings: Settings) -> Judge:
    """A judge whose calls `executor` answers, with what all judges of a deployment share.

    Projects share no verdicts, unless the settings say that they do.
    """
    return Judge(
        executor,
        cache_from_url(settings.cache_url),
        preparer=Preparer(
            TemplateLibrary(settings.templates_dir),
            builtin_calibrations(),
            settings.min_choice_mass,
            cache_salt=str if settings.share_verdicts else project_salt,
        ),
    )


def build_engine(settings: Settings, url: str | None = None) -> Engine:
    """The engine of a URL, by default the settings', not started. Raises `ValueError` for an unknown engine."""
    key = settings.engine_api_key
    return engine_from_url(url or settings.engine_url, api_key=key.get_secret_value() if key else None)
