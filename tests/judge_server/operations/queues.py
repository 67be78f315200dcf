"""A scripted queue of chunks."""

from collections import deque
from collections.abc import Sequence

from rubric_store.operations.rows import ChunkRef


class ScriptedQueue:
    """Returns each given number of waiting chunks in turn, or raises the given error; keeps the chunks put."""

    def __init__(self, *waiting: int | BaseException) -> None:
        self._waiting = deque(waiting)
        self.got: list[ChunkRef] = []

    async def waiting(self) -> int:
        answer = self._waiting.popleft()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def put(self, refs: Sequence[ChunkRef]) -> None:
        self.got += refs
