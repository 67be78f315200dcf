"""The criteria of rubrics given by reference, fetched once."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trainer_client import AsyncClient
from trainer_client._inputs import RubricOrReference, is_empty_rubric, parse_rubric
from trainer_client.errors import AdjudgeError
from trainer_client.rows.pins import RubricPins
from trainer_client.wire import Criterion, PinnedRubric, RubricVersion

logger = logging.getLogger(__name__)


class RubricCache:
    """Criteria by digest. Digests identify immutable contents, so entries never expire."""

    def __init__(self) -> None:
        self._criteria: dict[str, tuple[Criterion, ...]] = {}
        self._digests: dict[str, str] = {}

    def get(self, digest: str | None) -> tuple[Criterion, ...] | None:
        """Return the criteria, or None if they were not fetched."""
        return self._criteria.get(digest or "")

    async def fetch(self, client: AsyncClient, wanted: Mapping[str, str]) -> None:
        """Fetch criteria that are not cached yet, by a reference for each digest.

        Failures are logged, and the next call tries again.
        """
        for digest, reference in wanted.items():
            if digest not in self._criteria:
                version = await self._version(client, reference)
                if version is not None and version.digest != digest:
                    logger.warning("rubric %s is %s, but the service judged by %s", reference, version.digest, digest)

    async def criteria_for_rows(
        self,
        client: AsyncClient,
        column: Sequence[Any],
        default: RubricOrReference | None,
        pins: RubricPins,
        seconds: float,
    ) -> list[tuple[Criterion, ...]]:
        """Look up the criteria that rows will be judged by, which pins their references.

        `column` holds each row's own rubric, or None for the default, and `seconds` limits each lookup. A row has no
        criteria if it has no rubric, or if the rubric cannot be fetched, which is logged.
        """
        rubrics = [
            None if given is not None and is_empty_rubric(given) else parse_rubric(given, drop_nulls=True) or default
            for given in column
        ]
        for reference in dict.fromkeys(rubric for rubric in rubrics if isinstance(rubric, str)):
            if pins.pinned(reference) not in self._digests:
                await self._look_up(client, reference, pins, seconds)
        return [self._criteria_of(rubric, pins) for rubric in rubrics]

    def _criteria_of(self, rubric: RubricOrReference | None, pins: RubricPins) -> tuple[Criterion, ...]:
        if isinstance(rubric, str):
            return self._criteria.get(self._digests.get(pins.pinned(rubric), ""), ())
        return () if rubric is None else rubric.criteria

    async def _look_up(self, client: AsyncClient, reference: str, pins: RubricPins, seconds: float) -> None:
        version = await self._version(client, pins.pinned(reference), seconds)
        if version is not None:
            used = PinnedRubric(name=version.name, version=version.version, digest=version.digest)
            pins.pin_from_answer(reference, version.digest, [used])
            self._digests[pins.pinned(reference)] = version.digest

    async def _version(self, client: AsyncClient, reference: str, seconds: float | None = None) -> RubricVersion | None:
        """Fetch a version and keep its criteria; None, which is logged, if that fails or takes too long."""
        try:
            async with asyncio.timeout(seconds):
                version = await client.rubric(reference)
        except (AdjudgeError, TimeoutError) as error:
            logger.warning("could not fetch the criteria of %s: %s", reference, str(error) or "no answer in time")
            return None
        self._criteria[version.digest] = version.criteria
        return version
