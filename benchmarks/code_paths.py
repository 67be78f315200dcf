"""List the modules that run when a request is scored, when a method trains a step, and when an operation is worked on.

These are the files to read to follow each of them: those of which at least one function runs, in the order in which
they are first reached, with the functions that run. Requests go through the whole application, with a scripted judge
and the ledger on SQLite. What runs once for a process is left out: each path is run before it is traced.
What the process does by itself meanwhile, such as looking for operations, is counted.

A training step is traced in the trainer only, with `--training`, which needs torch and TRL.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx2

from adjudge_services.settings import Settings
from adjudge_services.store import prepare_store
from adjudge_services.wiring import build_app
from benchmarks.report import publish
from benchmarks.server import running_service
from judge_server.api.service import Service

PACKAGES = ("trainer_client", "rubric_store", "judge_server", "adjudge_services")

CRITERIA = [
    {"id": "sum", "kind": "suggest", "description": "The sum is 7."},
    {"id": "slip", "kind": "pitfall", "description": "The product is 15."},
    {"id": "answer", "kind": "answer", "description": "It is 14."},
]
RESPONSE = "### Step 1: add\n3 + 4 = 7\n### Step 2: multiply\n7 * 2 = 14, so \\boxed{14}"

Path_ = dict[str, dict[str, None]]
"""The functions that ran, by module, both in order."""


class Tracer:
    """Notes the functions of our modules that run, in every thread, while `tracing`. Create it before any thread."""

    def __init__(self) -> None:
        self._ran: Path_ | None = None
        self.first_calls: dict[tuple[str, str], None] = {}
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    @contextmanager
    def tracing(self) -> Iterator[Path_]:
        """Note what runs inside the block; `first_calls` has each (module, function) in the order of its first call."""
        self._ran = ran = {}
        self.first_calls = {}
        try:
            yield ran
        finally:
            self._ran = None

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if self._ran is None or event != "call":
            return
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in PACKAGES and frame.f_code.co_name != "<module>":
            self._ran.setdefault(module, {})[frame.f_code.co_qualname] = None
            self.first_calls[module, frame.f_code.co_qualname] = None


@asynccontextmanager
async def application(folder: Path) -> AsyncIterator[tuple[httpx2.AsyncClient, Service]]:
    """Start the application of `adjudge serve` in this process; yield a client of it, and its parts."""
    settings = Settings(data_dir=folder, engine_url="scripted://hash", ledger="all")
    await prepare_store(settings)
    app = build_app(settings, wait_for_judge=True)
    async with app.router.lifespan_context(app):
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http:
            yield http, app.state.service


def scoring(number: int) -> dict[str, Any]:
    """Build a step-wise request that no cache knows."""
    group = {"id": "q", "prompt": "(3+4)*2=?", "responses": [f"{RESPONSE} {number}"], "ground_truth": "14"}
    return {
        "run": "paths",
        "step": number,
        "rubric": {"criteria": CRITERIA},
        "reward": {"mode": "stepwise"},
        "groups": [group],
    }


async def score(http: httpx2.AsyncClient, number: int) -> None:
    """Score a request."""
    (await http.post("/v1/rewards", json=scoring(number))).raise_for_status()


async def operate(http: httpx2.AsyncClient, number: int) -> None:
    """Submit an operation that scores the same, follow it to its end and read its results."""
    submitted = await http.post("/v1/operations", json={"kind": "score", **scoring(number)})
    submitted.raise_for_status()
    address = f"/v1/operations/{submitted.json()['id']}"
    async with http.stream("GET", f"{address}/events") as events:
        last = [line async for line in events.aiter_lines() if line.startswith("data:")][-1]
    if '"done"' not in last:
        raise RuntimeError(f"the operation failed: {last}")
    (await http.get(f"{address}/results")).raise_for_status()


async def is_recorded(service: Service) -> None:
    """Wait until the ledger has caught up."""
    recorder = service.recorder
    while recorder is not None and recorder.state().waiting:  # noqa: ASYNC110 - threads write
        await asyncio.sleep(0.05)


async def trace_service(tracer: Tracer) -> dict[str, Path_]:
    """Trace a scoring request and an operation."""
    found: dict[str, Path_] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with application(Path(folder)) as (http, service):
            for first, (name, run) in enumerate((("scoring request", score), ("operation", operate))):
                await run(http, 10 * first)
                await is_recorded(service)
                with tracer.tracing() as found[name]:
                    await run(http, 10 * first + 1)
                    await is_recorded(service)
    return found


def trace_training(tracer: Tracer, names: Sequence[str] = ()) -> dict[str, Path_]:
    """Trace the second step of a run of these methods, or of all, against a service in a process of its own."""
    from tests.trainer_client.trl.training import RIGHT, SLIP, dataset, trainer
    from transformers import TrainerCallback

    from trainer_client.trl.methods import METHODS

    class SecondStep(TrainerCallback):
        def __init__(self, found: Path_) -> None:
            self._block = tracer.tracing()
            self._found = found

        def on_step_begin(self, _arguments: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step == 1:
                self._ran = self._block.__enter__()

        def on_step_end(self, _arguments: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step == 2:
                self._block.__exit__(None, None, None)
                self._found |= self._ran

    found: dict[str, Path_] = {}
    factual = [{**criterion, "kind": "factual"} for criterion in CRITERIA if criterion["kind"] != "pitfall"]
    with running_service("scripted://hash") as (url, _), tempfile.TemporaryDirectory() as folder:
        for method in names or METHODS:
            ran: Path_ = {}
            criteria = CRITERIA if method in ("srar", "rar") else factual
            data = dataset(criteria, prompts=4, reference_answer=["14"] * 4)
            training = trainer(Path(folder), url, texts=[RIGHT, SLIP], data=data, method=method, max_steps=2)
            training.add_callback(SecondStep(ran))
            training.train()
            found[f"step of {method}"] = ran
    return found


def main() -> None:
    """Trace the paths from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--training", action="store_true", help="trace a training step of each method too")
    parser.add_argument("--functions", action="store_true", help="print the functions of each module")
    arguments = parser.parse_args()
    tracer = Tracer()
    found = asyncio.run(trace_service(tracer))
    if arguments.training:
        found |= trace_training(tracer)
    for name, ran in found.items():
        print(f"\n{name}: {len(ran)} modules")
        for module, functions in ran.items():
            print(f"  {module}" + (f": {', '.join(functions)}" if arguments.functions else ""))
    request = found["scoring request"]
    rows = [
        {
            "path": name,
            "modules": len(ran),
            "beyond those of a request": len(ran.keys() - request.keys()),
            "functions": sum(map(len, ran.values())),
        }
        for name, ran in found.items()
    ]
    modules = {name: list(ran) for name, ran in found.items()}
    publish("code_paths", "Modules that run", rows, detail=json.loads(json.dumps(modules)))


if __name__ == "__main__":
    main()
