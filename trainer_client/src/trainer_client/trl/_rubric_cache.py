"""The criteria behind the digests that answers name, each fetched once."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trainer_client import AsyncClient
from trainer_client._columns import RubricOrReference, is_empty_rubric, parse_rubric
from trainer_client.errors import AdjudgeError
from trainer_client.trl._pins import RubricPins
from trainer_client.wire import Criterion, PinnedRubric

logger = logging.getLogger(__name__)


class RubricCache:
    """Criteria by digest. Digests name immutable contents, so that nothing here grows old."""

    def __init__(self) -> None:
        self._criteria: dict[str, tuple[Criterion, ...]] = {}
        self._digests: dict[str, str] = {}

    def get(self, digest: str | None) -> tuple[Criterion, ...] | None:
        """Give the criteria, or None where they were not fetched."""
        return self._criteria.get(digest or "")

    async def fetch(self, client: AsyncClient, wanted: Mapping[str, str]) -> None:
        """Fetch what is not there yet; where that fails it is said, and tried again by the next call.

        Args:
            client: of the service that judged.
            wanted: a reference for each digest.
        """
        for digest, reference in wanted.items():
            if digest in self._criteria:
                continue
            try:
                found = await client.rubric(reference)
            except AdjudgeError as error:
                logger.warning("the criteria of %s could not be fetched: %s", reference, error)
                continue
            if found.digest == digest:
                self._criteria[digest] = found.criteria
            else:
                logger.warning("rubric %s is %s, and the service judged by %s", reference, found.digest, digest)

    async def criteria_for_rows(
        self,
        client: AsyncClient,
        column: Sequence[Any],
        default: RubricOrReference | None,
        pins: RubricPins,
        seconds: float,
    ) -> list[tuple[Criterion, ...]]:
        """Give the criteria that rows will be judged by, before they are; a reference is pinned by this.

        Args:
            client: of the service that will judge.
            column: each row's own rubric, or None.
            default: the rubric of rows without one.
            pins: of the run.
            seconds: how long each reference may take.

        Returns:
            The criteria of each row; none where it has no rubric, or where that cannot be fetched, which is said.
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
        try:
            async with asyncio.timeout(seconds):
                found = await client.rubric(pins.pinned(reference))
        except (AdjudgeError, TimeoutError) as error:
            logger.warning("the criteria of %s could not be fetched: %s", reference, error or "no answer in time")
            return
        pins.pin_from_answer(
            reference, found.digest, [PinnedRubric(name=found.name, version=found.version, digest=found.digest)]
        )
        self._criteria[found.digest] = found.criteria
        self._digests[pins.pinned(reference)] = found.digest
