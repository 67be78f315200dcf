"""Threads that run beside a soak until they are stopped."""

import threading
from abc import ABC, abstractmethod


class Background(ABC):
    """Calls `_act` in a thread at intervals until it is stopped. Start it after everything `_act` needs is set."""

    def __init__(self, name: str, interval_s: float) -> None:
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the end of the thread."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._act()

    @abstractmethod
    def _act(self) -> None: ...
