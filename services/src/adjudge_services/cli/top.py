"""`adjudge top`: a service's metrics in the terminal, live."""

import os
import time
from typing import Annotated

import httpx2
import typer
from rich.console import Group
from rich.live import Live

from adjudge_services.cli.output import exit_with_error, out
from adjudge_services.cli.top_figures import MetricsSnapshot
from adjudge_services.cli.top_view import view

_TIMEOUT_S = 5.0


def top(
    url: Annotated[str, typer.Argument(help="The service's address.", envvar="ADJUDGE_URL")] = "http://127.0.0.1:8000",
    once: Annotated[
        bool, typer.Option("--once", help="Show what was counted since the service began, and end.")
    ] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between looks.")] = 2.0,
) -> None:
    """Show a service's queue, rates and runs until Ctrl-C. Rates are of the time between two looks.

    Where the service's metrics need a key, it is taken from ADJUDGE_API_KEY.
    """
    key = os.environ.get("ADJUDGE_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx2.Client(base_url=url, timeout=_TIMEOUT_S, headers=headers) as client:
        figures = _fetch_or_exit(client, url)
        if once:
            out.print(view(figures, figures, None))
            return
        with Live(view(figures, figures, None), console=out, auto_refresh=False) as live:
            try:
                _follow(client, url, live, figures, interval)
            except KeyboardInterrupt:
                return


def _follow(client: httpx2.Client, url: str, live: Live, before: MetricsSnapshot, interval: float) -> None:
    seen = time.monotonic()
    while True:
        _pause(interval)
        try:
            now, at = _fetch(client), time.monotonic()
        except (httpx2.HTTPError, ValueError) as error:
            live.update(Group(f"{url} does not answer ({error or type(error).__name__}); looking again"), refresh=True)
            continue
        live.update(view(now, now.delta_since(before), at - seen), refresh=True)
        before, seen = now, at


def _pause(seconds: float) -> None:
    time.sleep(seconds)


def _fetch_or_exit(client: httpx2.Client, url: str) -> MetricsSnapshot:
    try:
        return _fetch(client)
    except (httpx2.HTTPError, ValueError) as error:
        exit_with_error(
            f"{url}/metrics cannot be read: {error or type(error).__name__}. Name the service: adjudge top URL"
        )


def _fetch(client: httpx2.Client) -> MetricsSnapshot:
    answer = client.get("/metrics")
    answer.raise_for_status()
    return MetricsSnapshot.read(answer.text)
