"""Which version of each rubric a run is judged by: the one that its first answer named, until told otherwise."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trainer_client.wire import PinnedRubric

logger = logging.getLogger(__name__)


class RubricPins:
    """References without a version, each with the one that it stands for in this run.

    `name` and `name@alias` are pinned to `name@version`; `name@3` and `sha256:…` name a content already.
    """

    def __init__(self, pins: Mapping[str, str] | None = None) -> None:
        self._pins = dict(pins or {})
        self._previous: dict[str, str] = {}

    def pinned(self, reference: str) -> str:
        """Give what to ask for: the pinned reference, or the reference itself where it has no pin."""
        return self._pins.get(reference, reference)

    def pin_from_answer(self, reference: str, digest: str | None, used: Sequence[PinnedRubric]) -> None:
        """Pin a reference to what an answer says it stood for, and say so where it stood for something else.

        Args:
            reference: as the user wrote it.
            digest: of the content that judged, where the answer tells.
            used: the rubrics of the answer.
        """
        name, _, version = self.pinned(reference).partition("@")
        same = [rubric for rubric in used if rubric.name == name and rubric.version is not None]
        versions = {rubric.version for rubric in same if digest in (None, rubric.digest)}
        if not versions:
            return
        if not version.isdecimal():
            self._pin(reference, f"{name}@{max(v for v in versions if v is not None)}")
        elif int(version) not in versions:
            says = ", ".join(f"{name}@{v}" for v in sorted(v for v in versions if v is not None))
            logger.warning("rubric %s was asked for, and the service judged by %s", self.pinned(reference), says)

    def merge_ranks(self, ranks: Sequence[Mapping[str, str]]) -> None:
        """Take the pins that all ranks are to have: of each reference, that of the lowest rank that has one."""
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
        """Pin references to other versions than before; to be called alike on all ranks."""
        for reference, pin in pins.items():
            logger.info("rubric %s: was %s, is now %s", reference, self.pinned(reference), pin)
            self._previous.pop(reference, None)
            self._pins[reference] = pin

    def clear(self) -> None:
        """Let the next answer pin every reference anew."""
        self._previous |= self._pins
        self._pins = {}

    def state(self) -> dict[str, str]:
        """The pins by reference."""
        return dict(self._pins)

    def load(self, state: Any) -> None:
        """Take these pins in place of all there are.

        Raises:
            ValueError: they are no mapping of references to references.
        """
        if not isinstance(state, Mapping) or not all(isinstance(text, str) for item in state.items() for text in item):
            raise ValueError(f"pins are a mapping of references to pinned references, and this is {state!r}")
        self._pins, self._previous = dict(state), {}

    def _pin(self, reference: str, pin: str) -> None:
        existing = self._pins.setdefault(reference, pin)
        if existing != pin:
            logger.warning("rubric %s is pinned to %s, and an answer names %s", reference, existing, pin)
        if previous := self._previous.pop(reference, None):
            logger.info("rubric %s: was %s, is now %s", reference, previous, existing)
