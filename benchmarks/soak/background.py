"""Threads that run beside a soak until they are stopped."""

import threading
from abc import ABC, abstractmethod


class Background(ABC):
    """Runs `_run` in a thread, which ends once `_stopped` is set. Start it after everything `_run` needs is set."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the end of the thread."""
        self._stopped.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None: ...
