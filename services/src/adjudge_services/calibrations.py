"""Apply stored calibrations to a process's judges, and follow the aliases that name them."""

import asyncio
import logging
from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from adjudge_services.settings import Settings
from judge_server.judging.calibration import StoredCalibration
from judge_server.scoring.judge import Judge
from rubric_store import CalibrationStore, CalibrationVersion
from trainer_client.wire import DEFAULT_JUDGE

log = logging.getLogger("adjudge")

CALIBRATION_INTERVAL_S = 10.0
"""Seconds after which a process has noticed that an alias of a calibration was moved."""

_BY_JUDGE = TypeAdapter(dict[str, str])


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


class CalibrationLoader:
    """Keeps the calibrations of judges as their references name them. It reads nothing if there are no references."""

    def __init__(self, store_url: str, references: Mapping[str, list[str]], judges: Mapping[str, Judge]) -> None:
        self._store_url = store_url
        self._references = references
        self._judges = judges
        self._last_problem = ""

    @classmethod
    def of(cls, settings: Settings, judges: Mapping[str, Judge]) -> "CalibrationLoader":
        """The loader of the settings. Raises `ValueError` if they name a judge that does not exist."""
        references = references_by_judge(settings.calibrations)
        for name in references:
            if name not in judges:
                raise ValueError(f"ADJUDGE_CALIBRATIONS names the judge {name!r}; the judges are {', '.join(judges)}")
        return cls(settings.store_url, references, judges)

    async def load(self) -> None:
        """Read the calibrations and give them to the judges.

        Raises:
            CalibrationError: a reference names nothing, or the database cannot be reached.
        """
        if not self._references:
            return
        store = CalibrationStore(self._store_url)  # for a moment only, so that no connections stay open
        try:
            for judge, references in self._references.items():
                found = [await _find(store, reference) for reference in references]
                self._judges[judge].stored_calibrations = found
        finally:
            await store.close()

    async def run(self) -> None:
        """Follow moved aliases until cancelled. What cannot be read leaves the calibrations as they are."""
        while self._references:
            await asyncio.sleep(CALIBRATION_INTERVAL_S)
            try:
                await self.load()
                self._last_problem = ""
            except CalibrationError as error:
                if str(error) != self._last_problem:
                    self._last_problem = str(error)
                    log.warning("calibrations stay as they are: %s", error)


async def _find(store: CalibrationStore, reference: str) -> StoredCalibration:
    try:
        version = await store.find(reference)
    except ConnectionError as error:
        raise CalibrationError(f"the calibration {reference} cannot be read: {error}") from error
    if version is None:
        raise CalibrationError(
            f"there is no calibration {reference}; `adjudge calibrations` lists those that are stored"
        )
    return as_calibration(version)
