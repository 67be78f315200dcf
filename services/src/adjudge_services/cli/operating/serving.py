"""`adjudge serve`, `adjudge api`, `adjudge judge` and `adjudge worker`: run a process.

- `serve`: the API and its judges in one process.
- `api`: the API without a model, in front of judges in other processes.
- `judge`: one engine, or a pool of them, and its queue, for the api processes of a deployment.
- `worker`: works on operations from a queue on Redis, by asking a service over HTTP.

Each command imports what its process needs, so that the others do not load it.
"""

from typing import Annotated

import typer

from adjudge_services.cli.lazy import paused_garbage_collection
from adjudge_services.cli.output import exit_with_error

HostOption = Annotated[str | None, typer.Option(help="Address to listen on; off loopback requests need an API key.")]
PortOption = Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
EngineOption = Annotated[str | None, typer.Option(help="Engine URL, for example llamacpp://qwen2.5-coder-0.5b.")]
JUDGE_PORT = 8001


def serve(
    host: HostOption = None,
    port: PortOption = None,
    engine: EngineOption = None,
) -> None:
    """Serve the API and its judge until stopped. Other settings come from ADJUDGE_… variables."""
    with paused_garbage_collection():
        from adjudge_services.http_server import serve_api
        from adjudge_services.judges import local_judges
        from adjudge_services.settings import Settings

    settings = Settings.with_options(host=host, port=port, engine_url=engine)
    serve_api(settings, local_judges, settings.engine_url, process="adjudge")


def api(
    host: HostOption = None,
    port: PortOption = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(help="URL of a judge process; may be repeated for processes with the same model."),
    ] = None,
) -> None:
    """Serve the API in front of `adjudge judge` processes. Any number of api processes may run side by side."""
    with paused_garbage_collection():
        from adjudge_services.http_server import serve_api
        from adjudge_services.judges import remote_judges
        from adjudge_services.settings import Settings

    settings = Settings.with_options(host=host, port=port, judges=" ".join(judge) if judge else None)
    serve_api(settings, remote_judges, "judges in other processes", process="adjudge-api")


def judge(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; off loopback ADJUDGE_JUDGE_TOKEN must be set.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help=f"Port to listen on, by default {JUDGE_PORT}; 0 takes a free one."),
    ] = None,
    engine: EngineOption = None,
) -> None:
    """Serve a judge to `adjudge api` processes until stopped. This is an internal service, not the API."""
    with paused_garbage_collection():
        from adjudge_services.http_server import serve_app
        from adjudge_services.judge_process import build_judge_app
        from adjudge_services.settings import Settings
        from judge_server.api.http.middleware import is_loopback

    settings = Settings.with_options(host=host, port=port, engine_url=engine)
    if "port" not in settings.model_fields_set:
        settings = settings.model_copy(update={"port": JUDGE_PORT})
    if settings.judge_token is None and not is_loopback(settings.host):
        exit_with_error(
            f"refusing to listen on {settings.host} without ADJUDGE_JUDGE_TOKEN: any host there could use the "
            "judge. Set it to the same secret here and for `adjudge api`"
        )
    serve_app(
        settings,
        lambda failed: build_judge_app(settings, on_failure=failed),
        f"Adjudge judge with {settings.engine_url} on",
        process="adjudge-judge",
    )


def worker(
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Chunks to process at a time; each is a request to the service.")
    ] = 4,
    url: Annotated[str | None, typer.Option(help="Address of the service; by default ADJUDGE_URL.")] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port for /healthz, /readyz and /metrics; none by default, 0 takes a free one."
        ),
    ] = None,
) -> None:
    """Process operations until stopped. Settings come from ADJUDGE_… variables, the queue from ADJUDGE_QUEUE_URL.

    A worker has no model. It asks the service at ADJUDGE_URL and stores results in ADJUDGE_DATABASE_URL. On SIGTERM or
    Ctrl-C it finishes the chunks in progress; if it is killed, other workers process them again.
    """
    with paused_garbage_collection():
        from adjudge_services.settings import Settings
        from adjudge_services.worker import run_worker

    settings = Settings.with_options(url=url, worker_port=port)
    if not settings.queue_url.startswith(("redis://", "rediss://")):
        exit_with_error("set ADJUDGE_QUEUE_URL to redis://HOST:PORT/DB; with memory:// the service needs no workers")
    raise typer.Exit(run_worker(settings, concurrency))
