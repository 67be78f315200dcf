"""A count that fades, and the rate it stands for."""

import math
from collections.abc import Callable

_NOTHING = 1e-6
_SHORTEST_S = 1.0


class DecayingRate:
    """Counts what happens, each event counting half as much after every `half_life_s`; `clock` gives seconds."""

    __slots__ = ("_at", "_began", "_clock", "_decay", "_value")

    def __init__(self, half_life_s: float, clock: Callable[[], float]) -> None:
        self._decay = math.log(2) / half_life_s
        self._clock = clock
        self._at = self._began = clock()
        self._value = 0.0

    def add(self, amount: float) -> None:
        """Count so much more, now."""
        left, now = self.value, self._clock()
        if left < _NOTHING:
            self._began = now
        self._value, self._at = left + amount, now

    @property
    def value(self) -> float:
        """What is left of the count now."""
        return self._value * math.exp(-self._decay * (self._clock() - self._at))

    @property
    def per_second(self) -> float:
        """The rate of late; exact for a steady one that has gone on for a second or longer."""
        seconds = max(_SHORTEST_S, self._clock() - self._began)
        return self.value * self._decay / (1.0 - math.exp(-self._decay * seconds))
