"""`adjudge doctor`: check an installation part by part, or an engine.

Each check returns what it saw, or a `CheckWarning` for something that works but should be changed. A check that fails
raises, with what to do.
"""

import asyncio
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.options import JsonOption
from adjudge_services.cli.output import out, print_json


def doctor(
    url: Annotated[
        str | None,
        typer.Argument(
            help="URL of an engine, or of a server of the OpenAI API, to check in place of the installation."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check an installation part by part and say how to fix it. Exits with 1 if any part fails.

    If ADJUDGE_JUDGES is set, those judges are checked; otherwise the engine of this host is loaded and checked.

    With a URL, print what was found out about the engine there and what is done about each gap. Exits with 1 if it
    cannot judge. The key is ADJUDGE_ENGINE_API_KEY.
    """
    from adjudge_services.cli.operating import endpoint
    from adjudge_services.cli.operating.doctor_work import (
        COMMON_CHECKS,
        LOCAL_CHECKS,
        PREREQUISITES,
        REMOTE_CHECKS,
        STYLES,
        CheckWarning,
    )
    from adjudge_services.settings import Settings

    if url is not None:
        endpoint.report(url, as_json)
    settings = Settings()
    wrong: set[str] = set()
    rows: list[tuple[str, str, str]] = []
    for name, check in (COMMON_CHECKS | (REMOTE_CHECKS if settings.judges else LOCAL_CHECKS)).items():
        if wrong & PREREQUISITES.get(name, set()):
            rows.append((name, "not checked", f"needs the {' and the '.join(sorted(PREREQUISITES[name]))}"))
            continue
        try:
            seen = asyncio.run(check(settings))
            result = "warning" if isinstance(seen, CheckWarning) else "ok"
        except Exception as error:  # noqa: BLE001 - whatever is wrong belongs in the table
            seen, result = str(error) or type(error).__name__, "wrong"
            wrong.add(name)
        rows.append((name, result, seen))
    if as_json:
        print_json([{"check": name, "result": result, "seen": seen} for name, result, seen in rows])
    else:
        table = Table("check", "result", title="adjudge doctor", title_justify="left")
        table.add_column("what was seen", overflow="fold")
        for name, result, seen in rows:
            table.add_row(name, f"[{STYLES[result]}]{result}[/]", escape(seen))
        out.print(table)
    raise typer.Exit(1 if wrong else 0)
