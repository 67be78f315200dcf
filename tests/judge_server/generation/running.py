"""Running the toy generator over rows, with a scripted model and a store in memory."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from judge_server.generation.generator import Generator
from judge_server.generation.run import GeneratorRun, GeneratorRunSettings, Publisher, RunCounts
from judge_server.generation.run_folder import RunFolder
from judge_server.generation.writer import Writer
from tests.judge_server.generation.toy import ToyGenerator, ToyParameters, ToyScript


class Store:
    """A `Publisher` that keeps what it is given; a name's versions are those with different digests."""

    def __init__(self) -> None:
        self.versions: dict[str, list[str]] = {}
        self.calls = 0

    async def __call__(self, record: dict[str, Any]) -> tuple[str, bool]:
        self.calls += 1
        digests = self.versions.setdefault(record["name"], [])
        added = record["digest"] not in digests
        if added:
            digests.append(record["digest"])
        return f"{record['name']}@{digests.index(record['digest']) + 1}", added


async def run_toy(
    folder: Path,
    file: Path,
    script: ToyScript,
    *,
    publish: Publisher | None = None,
    settings: GeneratorRunSettings | None = None,
    parameters: Mapping[str, Any] | None = None,
    generator: type[Generator[Any, Any]] = ToyGenerator,
    report: Callable[[RunCounts], None] = lambda run_counts: None,
    engine_options: Mapping[str, Any] | None = None,
) -> RunCounts:
    """One run; the tally when it has ended."""
    engine = script.engine(**(engine_options or {}))
    writer = Writer(engine, await engine.start(), retry_delay_s=0.0)
    made = generator(ToyParameters(**(parameters or {})))
    with RunFolder(folder) as opened:
        run = GeneratorRun(
            made, writer, opened, file, settings=settings or GeneratorRunSettings(), publish=publish, report=report
        )
        await run.run()
    return run.run_counts


def write(file: Path, content: bytes) -> Path:
    """The file, with this in it."""
    file.write_bytes(content)
    return file


def kinds(problems: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """Where and of what kind the problems are."""
    return [(problem["line"], problem["kind"]) for problem in problems]
