"""`adjudge serve`: api and judge in one process."""

from typing import Annotated

import typer

from adjudge_services.cli.listening import serve_api
from adjudge_services.judges import local_judges
from adjudge_services.settings import Settings


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; needs a key off loopback.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine URL, for example llamacpp://qwen2.5-coder-0.5b.")] = None,
) -> None:
    """Serve the API, with its judge, until stopped. Settings come from ADJUDGE_… variables."""
    settings = Settings.with_options(host=host, port=port, engine_url=engine)
    serve_api(settings, local_judges, settings.engine_url, process="adjudge")
