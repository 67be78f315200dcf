"""Findings from the moment they are known until the cache shows them to everybody who reads it.

Without this, a request that read the cache just before another one's verdicts were written there would ask for them
again. Nothing here reads or writes a cache.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from judge_server.ports import JudgeResult


class WriteBehindBuffer:
    """Keeps each finding until it is stored and every read of the cache that began before that has ended."""

    on_pending: Callable[[], None] | None = None
    """Told when there is something new to store after there was nothing."""

    def __init__(self) -> None:
        self._of: dict[bytes, JudgeResult] = {}
        self._new: dict[bytes, JudgeResult] = {}
        self._readers: set[int] = set()
        self._written: deque[tuple[int, Mapping[bytes, JudgeResult]]] = deque()
        self._time = 0

    def __len__(self) -> int:
        return len(self._of)

    def add(self, digest: bytes, result: JudgeResult) -> None:
        """A finding is known; the first one of a digest stands."""
        if digest not in self._of:
            if not self._new and self.on_pending is not None:
                self.on_pending()
            self._of[digest] = self._new[digest] = result

    def get(self, digest: bytes) -> JudgeResult | None:
        """The finding, if it is kept here."""
        return self._of.get(digest)

    @contextmanager
    def read_through(self) -> Iterator[None]:
        """The cache is read in this block, and what it did not show is looked for here before the block ends."""
        self._time += 1
        mine = self._time
        self._readers.add(mine)
        try:
            yield
        finally:
            self._readers.discard(mine)
            self._drop()

    def take_pending(self) -> Mapping[bytes, JudgeResult]:
        """What nobody has begun to store yet; whoever takes it stores it, and says so."""
        new, self._new = self._new, {}
        return new

    def mark_stored(self, results: Mapping[bytes, JudgeResult]) -> None:
        """These were stored, or could not be."""
        self._time += 1
        self._written.append((self._time, results))
        self._drop()

    def _drop(self) -> None:
        oldest = min(self._readers, default=self._time + 1)
        while self._written and self._written[0][0] < oldest:
            for digest in self._written.popleft()[1]:
                self._of.pop(digest, None)
