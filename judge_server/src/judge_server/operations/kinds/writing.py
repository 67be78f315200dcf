"""What kinds share that have a model write: the writer, started when it is first needed."""

import asyncio
from collections.abc import Callable

from judge_server.errors import EngineStartError
from judge_server.generation.writer import Writer, WriterUsage
from judge_server.operations.kind import FatalChunkError, ServiceUnavailableError
from judge_server.ports import Engine, OperationProgress
from trainer_client.wire.answers import Usage


class WriterProvider:
    """A model's endpoint, or none. `engine` makes the engine; whoever made this closes it."""

    def __init__(self, engine: Callable[[], Engine] | None) -> None:
        self._make_engine = engine
        self._engine: Engine | None = None
        self._writer: Writer | None = None
        self._starting = asyncio.Lock()

    async def writer(self) -> Writer:
        """The writer, with a usage of its own.

        Raises:
            ChunkFailed: this process has no model to write with.
            ServiceAway: it cannot be reached.
        """
        if self._make_engine is None:
            raise FatalChunkError(
                "the process that took this has no model to write with; set ADJUDGE_WRITER_URL there, such as "
                "openai+http://HOST:PORT, and try the operation again"
            )
        async with self._starting:
            if self._writer is None:
                self._engine = self._engine or self._make_engine()
                try:
                    self._writer = Writer(self._engine, await self._engine.start())
                except EngineStartError as error:
                    await self.close()
                    raise ServiceUnavailableError(str(error)) from error
        return self._writer.with_own_usage()

    async def close(self) -> None:
        """Let go of the model."""
        if self._engine is not None:
            await self._engine.close()
        self._engine = self._writer = None


def to_usage(usage: WriterUsage | OperationProgress) -> Usage:
    """What a writer used, as the usage of an operation."""
    return Usage(
        judge_calls=usage.calls,
        prompt_tokens_computed=usage.tokens_computed,
        prompt_tokens_reused=usage.tokens_reused,
        tokens_written=usage.tokens_written,
    )
