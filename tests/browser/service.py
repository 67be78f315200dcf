"""A service for the browser tests: the demo runs, a run of hostile texts and one judged by steps."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from adjudge_services.cli.scoring.demo_run import DEMO_RUNS, demo_service, fill
from adjudge_services.settings import Settings
from adjudge_services.wiring import build_app
from judge_server.api.app import create_app
from judge_server.api.service import Service
from tests.judge_server import support
from tests.judge_server.support import CRITERIA

HOSTILE = (
    "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\"></pre></span>"
    "\u202egnorw\u202c مرحبا بالعالم \u2066isolate " + "W" * 400
)

STEPS = (
    "### Step 1: try\n7 is odd.\n### Step 2: go on\nNor is it a multiple of 3.\n### Step 3: conclude\nSo \\boxed{yes}",
    "### Step 1: guess\nEvery odd number is prime.\n### Step 2: conclude\nSo \\boxed{yes}",
    "It is \\boxed{no}",
)


def requests() -> Iterator[dict[str, Any]]:
    """Requests besides the demo's: texts that look like markup, and a group judged by steps."""
    hostile = {"id": "g", "prompt": HOSTILE, "grounding": HOSTILE, "responses": [HOSTILE, f"Yes. {HOSTILE}"]}
    rubric = {"criteria": [{"id": "a", "description": HOSTILE}, {"id": "b", "description": "Is short."}]}
    yield {"run": HOSTILE[:60], "step": 0, "rubric": rubric, "groups": [hostile], "judge": "hash"}
    steps = {"id": "steps", "prompt": "Is 7 prime?", "responses": STEPS}
    asked = {"rubric": {"criteria": CRITERIA}, "reward": {"mode": "stepwise"}, "judge": "hash"}
    yield {"run": "by-steps", "step": 3, "groups": [steps], **asked}


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Fill a database with the demo runs and others, and serve it as `adjudge serve` does; yield the address."""
    started, stop, address = threading.Event(), threading.Event(), []

    async def serve() -> None:
        async with demo_service(Settings(data_dir=folder)) as service:
            for run in DEMO_RUNS:
                await fill(service, run, lambda: None)
            await _judge_others(service)
        settings = Settings(data_dir=folder, engine_url="scripted://hash")
        listening = socket.create_server(("127.0.0.1", 0))
        address.append(f"http://127.0.0.1:{listening.getsockname()[1]}")
        app = build_app(settings, wait_for_judge=True)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        started.set()
        await asyncio.to_thread(stop.wait)
        server.should_exit = True
        await serving

    def work() -> None:
        try:
            asyncio.run(serve())
        finally:
            started.set()

    thread = threading.Thread(target=work, name="browsed service")
    thread.start()
    started.wait()
    try:
        yield address[0]
    finally:
        stop.set()
        thread.join()


async def _judge_others(service: Service) -> None:
    service.judges["hash"] = await support.judge()
    service.names = (*service.names, "hash")
    transport = httpx2.ASGITransport(create_app(service))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for request in requests():
            (await http.post("/v1/rewards", json=request)).raise_for_status()
