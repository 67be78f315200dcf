"""`adjudge judge`: one engine, or a pool of them, and its queue, for the apis of a deployment."""

from typing import Annotated

import typer

from adjudge_services.cli.listening import serve_app
from adjudge_services.cli.output import exit_with_error
from adjudge_services.judge_process import build_judge_app
from adjudge_services.settings import Settings
from judge_server.web.hosts import is_loopback

PORT = 8001


def judge(
    host: Annotated[
        str | None, typer.Option(help="Address to serve_app on; needs ADJUDGE_JUDGE_TOKEN off loopback.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help=f"Port to serve_app on; {PORT} unless set, 0 takes a free one.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Engine URL, for example llamacpp://qwen2.5-coder-0.5b.")] = None,
) -> None:
    """Judge for `adjudge api` processes, until stopped. Not the API: it is for inside a deployment."""
    settings = Settings.with_options(host=host, port=port, engine_url=engine)
    if "port" not in settings.model_fields_set:
        settings = settings.model_copy(update={"port": PORT})
    if settings.judge_token is None and not is_loopback(settings.host):
        exit_with_error(
            f"refusing to listen on {settings.host} without ADJUDGE_JUDGE_TOKEN, since anybody there could use the "
            "judge; set it to the same secret here and for `adjudge api`"
        )
    serve_app(
        settings,
        lambda failed: build_judge_app(settings, on_failure=failed),
        f"Adjudge judge with {settings.engine_url} on",
        process="adjudge-judge",
    )
