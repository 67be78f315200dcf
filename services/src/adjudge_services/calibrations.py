"""Apply stored calibrations to a process's judges, and follow the aliases that name them."""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from adjudge_services.settings import Settings
from judge_server.judging.calibration import StoredCalibration
from judge_server.judging.combining import StoredBand, StoredDawidSkene, StoredRule
from judge_server.scoring.combined import AnyJudge, CombinedJudge
from judge_server.scoring.judge import Judge
from rubric_store import CalibrationStore, CalibrationVersion
from trainer_client.wire import DEFAULT_JUDGE

if TYPE_CHECKING:  # numpy, which takes long to import
    from judge_server.evaluation.corrected_rates import ErrorSource

log = logging.getLogger("adjudge")

CALIBRATION_INTERVAL_S = 10.0
"""Seconds after which a process has noticed that an alias of a calibration was moved."""

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


def as_calibration(version: CalibrationVersion) -> StoredCalibration:
    """Read a stored version."""
    return StoredCalibration.model_validate({**version.content, "name": version.name, "version": version.version})


def as_rule(version: CalibrationVersion) -> StoredRule | None:
    """Read a stored band or a panel's error rates; None if the version is a calibration."""
    if "kind" not in version.content:
        return None
    content = {**version.content, "name": version.name, "version": version.version}
    return _RULE.validate_python(content)


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
    version = await _find_version(store, reference)
    if as_rule(version) is not None:
        raise CalibrationError(f"{reference} is the rule of a cascade or panel and no calibration of one judge")
    return as_calibration(version)


async def _find_rule(store: CalibrationStore, judge: CombinedJudge) -> StoredRule:
    assert judge.reference is not None
    rule = as_rule(await _find_version(store, judge.reference))
    kind = StoredBand if judge.kind == "cascade" else StoredDawidSkene
    if not isinstance(rule, kind) or len(rule.judges) != len(judge.names):
        what = "band of a cascade" if kind is StoredBand else f"set of error rates of a panel of {len(judge.names)}"
        raise CalibrationError(f"{judge.reference} is not a {what}; `adjudge calibrations` lists what is stored")
    return rule


async def _find_version(store: CalibrationStore, reference: str) -> CalibrationVersion:
    try:
        version = await store.find(reference)
    except ConnectionError as error:
        raise CalibrationError(f"the calibration {reference} cannot be read: {error}") from error
    if version is None:
        raise CalibrationError(
            f"there is no calibration {reference}; `adjudge calibrations` lists those that are stored"
        )
    return version
