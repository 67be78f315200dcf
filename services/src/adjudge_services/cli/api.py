"""`adjudge api`: the API without a model, in front of judges in other processes."""

from typing import Annotated

import typer

from adjudge_services.cli.listening import serve_api
from adjudge_services.judges import remote_judges
from adjudge_services.settings import Settings


def api(
    host: Annotated[str | None, typer.Option(help="Address to listen on; needs a key off loopback.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    judge: Annotated[
        list[str] | None, typer.Option(help="URL of a judge process; once for each that judges with the same model.")
    ] = None,
) -> None:
    """Serve the API in front of judges that `adjudge judge` runs. Any number of these may stand side by side."""
    settings = Settings.with_options(host=host, port=port, judges=" ".join(judge) if judge else None)
    serve_api(settings, remote_judges, "judges in other processes", process="adjudge-api")
