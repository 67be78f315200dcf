"""A queue of chunks that does as it is told."""

from collections import deque
from collections.abc import Sequence

from trainer_client.wire.operations import ChunkRef


class ScriptedQueue:
    """Says how many wait, or raises it, in turn; keeps what is put."""

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
