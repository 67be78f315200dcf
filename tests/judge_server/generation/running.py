"""Runs of the toy generator over rows, with a scripted model, into a folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from judge_server.generation.generator import Generator
from judge_server.generation.results import RunFolder
from judge_server.generation.writer import Writer
from judge_server.operations.generation_run import GenerationRun, GenerationSettings
from judge_server.ports import RubricSource
from judge_server.scoring.rubrics import PROJECT_ID
from rubric_store import RubricStore, SQLOperations
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.generation.toy import ToyGenerator, ToyParameters, ToyScript
from trainer_client.wire.operations import OperationProgress


class ToyRuns:
    """Runs into a folder, over a rubric store. `problem` is why the last run stopped early, if it did."""

    def __init__(self, folder: Path, new_sqlite: NewSQLite, rubrics: RubricStore) -> None:
        self.folder = folder
        self.rubrics: RubricSource = rubrics
        self.problem: str | None = None
        self._new_sqlite = new_sqlite

    async def run(
        self,
        file: Path,
        script: ToyScript,
        *,
        parameters: Mapping[str, Any] | None = None,
        generator: type[Generator[Any, Any]] = ToyGenerator,
        report: Callable[[OperationProgress], None] = lambda progress: None,
        model: str | None = None,
        engine_options: Mapping[str, Any] | None = None,
        publish: bool = False,
        **settings: Any,
    ) -> OperationProgress:
        """Run to the end; return the final progress."""
        engine = script.engine(**(engine_options or {}))
        identity = await engine.start()
        if model is not None:
            identity = replace(identity, model=model)
        writer = Writer(engine, identity, retry_delay_s=0.0)

        async def find(reference: str) -> Any:
            return await self.rubrics.find(PROJECT_ID, reference)

        made = generator(ToyParameters(**(parameters or {})), find=find)
        wanted = GenerationSettings(made.kind, file, dict(parameters or {}), publish=publish, **settings)
        with RunFolder(self.folder) as folder:
            if not folder.database.exists():
                self._new_sqlite(folder.database)
            store = SQLOperations(f"sqlite+aiosqlite:///{folder.database}")
            try:
                run = GenerationRun(wanted, made, writer, folder, store, self.rubrics, report=report)
                progress, self.problem = await run.run()
            finally:
                await store.close()
        return progress

    async def operations(self) -> list[tuple[str, str]]:
        """The ids and states of the operations in the folder, newest first."""
        store = SQLOperations(f"sqlite+aiosqlite:///{self.folder / 'operations.db'}")
        try:
            return [(one.id, one.state) for one in (await store.list(PROJECT_ID, 100)).operations]
        finally:
            await store.close()


def write(file: Path, content: bytes) -> Path:
    """Write the content to the file; return the file."""
    file.write_bytes(content)
    return file


def kinds(problems: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """The line and kind of each problem."""
    return [(problem["line"], problem["kind"]) for problem in problems]
