"""Publish the figures of a benchmark: a table on the terminal and a JSON file, with the machine and the commit."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FOLDER = Path(".cache/bench")
WIDTH = 160
_FRAME = 3
"""Characters around a cell: a space on each side, and a line."""


def machine() -> str:
    """Describe the processor, the cores that this process may use, and the memory."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GB"


def commit() -> str:
    """Return the measured commit, marked if the tree has uncommitted changes."""
    run = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"


def progress_log(console: Console) -> Callable[[str], None]:
    """Return a function that prints a line on the console, with the seconds since this call."""
    begin = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - begin:7.1f} s  {text}", highlight=False)

    return say


def publish(
    name: str,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    notes: Sequence[str] = (),
    *,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Print the rows as a table and write them, with machine, commit and time, to `.cache/bench/NAME.json`.

    `detail` is additional data for the file. A table of more than `WIDTH` characters is printed in parts, which all
    begin with the first column.
    """
    console = Console(width=WIDTH)
    console.print(f"[bold]{title}[/]", highlight=False)
    for columns in _parts(rows, WIDTH):
        table = Table()
        for column in columns:
            table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
        for row in rows:
            table.add_row(*(_cell(row[column]) for column in columns))
        console.print(table)
    for note in notes:
        console.print(note, highlight=False)
    console.print(f"{machine()}; commit {commit()}", highlight=False)
    FOLDER.mkdir(parents=True, exist_ok=True)
    document = {
        "benchmark": name,
        "machine": machine(),
        "commit": commit(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": list(rows),
        "notes": list(notes),
        **({} if detail is None else {"detail": detail}),
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _parts(rows: Sequence[Mapping[str, Any]], width: int) -> list[list[str]]:
    """Distribute the columns over as few tables as fit the width."""
    first, *others = rows[0]
    taken = {column: _FRAME + max(len(column), *(len(_cell(row[column])) for row in rows)) for column in rows[0]}
    parts, used = [[first]], 1 + taken[first]
    for column in others:
        if used + taken[column] > width and len(parts[-1]) > 1:
            parts.append([first])
            used = 1 + taken[first]
        parts[-1].append(column)
        used += taken[column]
    return parts


def _cell(value: Any) -> str:
    return (
        "–"
        if value is None
        else f"{value:,.3g}"
        if isinstance(value, float) and abs(value) < 100
        else f"{value:,.0f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )
