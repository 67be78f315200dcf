"""`RubricPins`: the version of each rubric that a run is judged by, which the first answer names."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trainer_client.wire import PinnedRubric

logger = logging.getLogger(__name__)


class RubricPins:
    """The pinned version of each reference without a version.

    `name` and `name@alias` are pinned to `name@version`; `name@3` and `sha256:…` already identify their content.
    """

    def __init__(self, pins: Mapping[str, str] | None = None) -> None:
        self._pins = dict(pins or {})
        self._previous: dict[str, str] = {}

    def pinned(self, reference: str) -> str:
        """Return the pinned reference, or the reference itself if it has no pin."""
        return self._pins.get(reference, reference)

    def pin_from_answer(self, reference: str, digest: str | None, used: Sequence[PinnedRubric]) -> None:
        """Pin a reference, as the user wrote it, to the version that an answer names, unless it is pinned already.

        `digest` is that of the content that judged, if the answer has it, and `used` are the rubrics of the answer.
        """
        name, _, version = self.pinned(reference).partition("@")
        same = [rubric for rubric in used if rubric.name == name and rubric.version is not None]
        versions = {rubric.version for rubric in same if digest in (None, rubric.digest)}
        if versions and not version.isdecimal():
            self._pin(reference, f"{name}@{max(v for v in versions if v is not None)}")

    def merge_ranks(self, ranks: Sequence[Mapping[str, str]]) -> None:
        """Agree on the pins of all ranks: the lowest rank with a pin of a reference decides it."""
        agreed: dict[str, str] = {}
        for pins in ranks:
            for reference, pin in pins.items():
                agreed.setdefault(reference, pin)
        for reference, pin in agreed.items():
            if self.pinned(reference) not in (reference, pin):
                logger.warning("rubric %s: ranks disagree, %s becomes %s", reference, self.pinned(reference), pin)
                self._pins[reference] = pin
            self._pin(reference, pin)

    def repin(self, pins: Mapping[str, str]) -> None:
        """Change the pins of references. Call it with the same pins on all ranks."""
        for reference, pin in pins.items():
            logger.info("rubric %s: was %s, is now %s", reference, self.pinned(reference), pin)
            self._previous.pop(reference, None)
            self._pins[reference] = pin

    def clear(self) -> None:
        """Remove all pins, so that the next answer pins every reference again."""
        self._previous |= self._pins
        self._pins = {}

    def state(self) -> dict[str, str]:
        """The pins by reference."""
        return dict(self._pins)

    def load(self, state: Any) -> None:
        """Replace all pins. Raises ValueError if the state is no mapping of references to pinned references."""
        if not isinstance(state, Mapping) or not all(isinstance(text, str) for item in state.items() for text in item):
            raise ValueError(f"pins must be a mapping of references to pinned references, not {state!r}")
        self._pins, self._previous = dict(state), {}

    def _pin(self, reference: str, pin: str) -> None:
        existing = self._pins.setdefault(reference, pin)
        if existing != pin:
            logger.warning("rubric %s is pinned to %s, but an answer names %s", reference, existing, pin)
        if previous := self._previous.pop(reference, None):
            logger.info("rubric %s: was %s, is now %s", reference, previous, existing)
