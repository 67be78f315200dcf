"""What a run leaves behind when it ends: statistics, a plot of them, and the rubrics of each split in a file.

All of it is made anew from the journals each time, whole or not at all.
"""

import json
from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from judge_server.generation.folder import RunFolder
from judge_server.generation.plots import MatplotlibMissing, plot_statistics
from judge_server.generation.splits import Split
from judge_server.generation.statistics import CorpusStatistics, corpus_statistics

STATISTICS, PLOT, SPLITS = "statistics.json", "statistics.svg", "splits"


def write_results(folder: RunFolder, keys: Set[str], *, title: str) -> CorpusStatistics:
    """Write the results of a run over the inputs of these keys; no plot where matplotlib is not installed."""
    statistics = corpus_statistics(
        (record for record in folder.rubrics() if record["key"] in keys),
        [reason for key, reason in folder.discarded.items() if key in keys],
    )
    _replace(folder.path / STATISTICS, [statistics.model_dump_json(indent=2)])
    with suppress(MatplotlibMissing):
        plot_statistics(statistics, folder.path / PLOT, title=title)
    (folder.path / SPLITS).mkdir(exist_ok=True)
    for split in get_args(Split):
        lines = (_line(r) for r in folder.rubrics() if r["split"] == split and r["key"] in keys)
        _replace(folder.path / SPLITS / f"{split}.jsonl", lines)
    return statistics


def read_statistics(path: Path) -> CorpusStatistics | None:
    """The statistics of the last run that ended in a folder; None if none did."""
    file = path / STATISTICS
    return CorpusStatistics.model_validate_json(file.read_bytes()) if file.exists() else None


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)


def _replace(file: Path, lines: Iterable[str]) -> None:
    made = file.with_name(f"{file.name}.new")
    with made.open("w", encoding="utf-8", errors="backslashreplace") as out:
        out.writelines(f"{line}\n" for line in lines)
    made.replace(file)
