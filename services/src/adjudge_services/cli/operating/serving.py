"""`adjudge serve`, `adjudge api`, `adjudge judge` and `adjudge worker`: run a process.

- `serve`: the API and its judges in one process.
- `api`: the API without a model, in front of judges in other processes.
- `judge`: one engine, or a pool of them, and its queue, for the api processes of a deployment.
- `worker`: works on operations from a queue on Redis, by asking a service over HTTP.

Each command imports what its process needs, so that the others do not load it.
"""

import typer

from adjudge_services.cli.operating.commands import JUDGE_PORT
from adjudge_services.cli.options import paused_garbage_collection
from adjudge_services.cli.output import exit_with_error
from adjudge_services.settings import Settings


def serve(host: str | None, port: int | None, engine: str | None) -> None:
    """Run `adjudge serve`."""
    with paused_garbage_collection():
        from adjudge_services.http_server import serve_api
        from adjudge_services.judges import local_judges

    settings = Settings.with_options(host=host, port=port, engine_url=engine)
    serve_api(settings, local_judges, settings.engine_url, process="adjudge")


def api(host: str | None, port: int | None, judge: list[str] | None) -> None:
    """Run `adjudge api`."""
    with paused_garbage_collection():
        from adjudge_services.http_server import serve_api
        from adjudge_services.judges import remote_judges

    settings = Settings.with_options(host=host, port=port, judges=" ".join(judge) if judge else None)
    serve_api(settings, remote_judges, "judges in other processes", process="adjudge-api")


def judge(host: str | None, port: int | None, engine: str | None) -> None:
    """Run `adjudge judge`."""
    with paused_garbage_collection():
        from adjudge_services.http_server import serve_app
        from adjudge_services.judge_process import build_judge_app
        from judge_server.api.auth import is_loopback

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


def worker(concurrency: int, url: str | None, port: int | None) -> None:
    """Run `adjudge worker`."""
    with paused_garbage_collection():
        from adjudge_services.worker import run_worker

    settings = Settings.with_options(url=url, worker_port=port)
    if not settings.queue_url.startswith(("redis://", "rediss://")):
        exit_with_error("set ADJUDGE_QUEUE_URL to redis://HOST:PORT/DB; with memory:// the service needs no workers")
    raise typer.Exit(run_worker(settings, concurrency))
