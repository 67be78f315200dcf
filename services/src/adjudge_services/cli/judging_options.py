"""The options of every command that has a service judge a file: which service, and how hard it is asked."""

from typing import Annotated

import typer

UrlOption = Annotated[
    str | None, typer.Option(help="A running service; without it one runs inside.", envvar="ADJUDGE_URL")
]
EngineOption = Annotated[str | None, typer.Option(help="Engine URL of the inner service.")]
ConcurrencyOption = Annotated[int, typer.Option(min=1, help="Responses in flight.")]
DeadlineOption = Annotated[float, typer.Option(help="Seconds one response may take, its wait included.")]
