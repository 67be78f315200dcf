"""Record the examples of the OpenAPI document: call every route of a running service, and write down its answers.

`python -m tests.services.record_examples [ENGINE]`, in the root folder; the engine is the default judge's.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx2

from judge_server.api.app import example_requests
from judge_server.auth.keys import make_key
from rubric_store import SQLLedger, TenantStore, migrations
from rubric_store.ledger.rows import UseFilter, VerdictKey
from tests.services.processes import listening
from trainer_client import Client

EXAMPLES = Path(str(files("judge_server.api.http"))) / "examples.json"
ENGINE = "llamacpp://qwen2.5-coder-0.5b"

PRIMES = {
    "criteria": [
        {"id": "answer", "kind": "factual", "weight": 3, "description": "States that 7 is prime."},
        {"id": "reason", "kind": "process", "description": "Shows that no smaller number divides 7."},
    ]
}
GROUP = {"id": "q1", "prompt": "Is 7 prime?", "responses": ["Yes: neither 2 nor 3 divides it.", "No, it is odd."]}
RUN = "llama-srar-3"


class Recorder:
    """Calls a service, and stores the answers by operation id and media type."""

    def __init__(self, http: httpx2.Client) -> None:
        self._http = http
        self.examples: dict[str, dict[str, Any]] = {}

    def ask(self, name: str, method: str, path: str, body: Any = None, *, accept: str = "", **headers: str) -> Any:
        """Call a route, and store the answer; of NDJSON, store a line with a group or the first line."""
        headers = {key.replace("_", "-"): value for key, value in headers.items()}
        if accept:
            headers["Accept"] = accept
        answer = self._http.request(method, path, json=body, headers=headers)
        assert answer.is_success, (name, answer.text)
        media_type = answer.headers["Content-Type"].partition(";")[0]
        if media_type == "application/json":
            example = answer.json()
        elif media_type == "application/x-ndjson":
            lines = list(map(json.loads, answer.text.splitlines()))
            example = next((line for line in lines if "group" in line), lines[0])
        elif media_type == "text/event-stream":
            event = answer.text.split("\n\n")[-2].splitlines()
            example = dict(line.split(": ", 1) for line in event if not line.startswith(":"))
        else:
            return answer.text
        self.examples.setdefault(name, {})[media_type] = example
        return example


def example(name: str) -> Any:
    """The request that the document shows for an operation."""
    (shown,) = example_requests()[name].values()
    return shown["value"]


async def with_key(url: str) -> str:
    """Create a key with all permissions."""
    await asyncio.to_thread(migrations.upgrade, url)
    tenants, made = TenantStore(url), make_key()
    scopes = ("admin", "metrics", "projects:write", "judges:write")
    await tenants.add_key("default", made.id, made.digest, scopes=scopes, label="operator")
    await tenants.close()
    return made.text


async def label(url: str) -> None:
    """Label the first recorded verdict of the run."""
    ledger = SQLLedger(url)
    (use, *_) = await ledger.uses(UseFilter("default", RUN, limit=1))
    vote = use.votes[0][0]
    await ledger.set_label("default", VerdictKey(RUN, vote.request, vote.place, vote.slot), "key operator", True)
    await ledger.close()


def record(http: httpx2.Client, url: str) -> dict[str, dict[str, Any]]:
    """Call every route."""
    recorder = Recorder(http)
    ask = recorder.ask
    ask("healthz", "GET", "/healthz")
    ask("readyz", "GET", "/readyz")
    ask("capabilities", "GET", "/v1")
    ask("list_projects", "GET", "/v1/projects")
    ask("create_project", "POST", "/v1/projects", {"id": "team-math", "limits": {"requests_per_minute": 600}})
    ask("read_project", "GET", "/v1/projects/team-math")
    ask("set_project_limits", "PUT", "/v1/projects/team-math/limits", {"weight": 2, "tokens_per_day": 10_000_000})
    made = ask("create_key", "POST", "/v1/keys?project=team-math", {"scopes": ["score"], "label": "trainer"})
    ask("list_keys", "GET", "/v1/keys?project=team-math")
    ask("revoke_key", "DELETE", f"/v1/keys/{made['id']}?project=team-math")
    ask("read_audit_log", "GET", "/v1/audit?project=team-math&limit=2")
    ask("read_project_state", "GET", "/v1/project")
    for weight in (3, 4):
        criteria = [PRIMES["criteria"][0] | {"weight": weight}, PRIMES["criteria"][1]]
        body = {"criteria": criteria, "tags": ["math"], "metadata": {"reviewed_by": "Ada"}}
        ask("publish_version", "POST", "/v1/rubrics/math/primes/versions", body)
    ask("list_versions", "GET", "/v1/rubrics/math/primes/versions")
    ask("list_rubrics", "GET", "/v1/rubrics")
    ask("read_rubric", "GET", "/v1/rubrics/math/primes")
    ask("compare_versions", "GET", "/v1/rubrics/math/primes/diff?from=1&to=2")
    alias = "/v1/rubrics/math/primes/aliases/production"
    ask("move_alias", "PUT", alias, {"version": 1}, If_None_Match="*")
    ask("read_alias", "GET", alias)
    ask("list_aliases", "GET", "/v1/rubrics/math/primes/aliases")
    ask("remove_alias", "DELETE", alias, If_Match='"1"')
    ask("replace_tags", "PUT", "/v1/rubrics/math/primes/tags", {"tags": ["math", "reviewed"]})
    ask("retire_version", "PUT", "/v1/rubrics/math/primes@1/retirement", {"reason": "Rewards guessing; use version 2."})
    ask("restore_version", "DELETE", "/v1/rubrics/math/primes@1/retirement")
    ask("rewards", "POST", "/v1/rewards", example("rewards"))
    ask("rewards", "POST", "/v1/rewards", example("rewards"), accept="application/x-ndjson")
    ask("verdicts", "POST", "/v1/verdicts", example("verdicts"))
    ask("comparisons", "POST", "/v1/comparisons", example("comparisons"))
    ask("score", "POST", "/v1/score", {"model": "math/primes", "text_1": "Is 7 prime?", "text_2": GROUP["responses"]})
    rerank = {"model": "math/primes", "query": "Is 7 prime?", "documents": GROUP["responses"]}
    ask("rerank", "POST", "/v1/rerank", rerank)
    questions = {"prime": {"type": "noul", "instructions": "Does the response say that 7 is prime?"}}
    state = {"prompt": "Is 7 prime?", "response": GROUP["responses"][0]}
    ask("systemone", "POST", "/v1/systemone", {"model": "default", "state": state, "questions": questions})
    ask("openrlhf", "POST", "/v1/compat/openrlhf", example("openrlhf"))
    ask("slime", "POST", "/v1/compat/slime", example("slime"))
    task = ask("submit_roll_task", "POST", "/v1/compat/roll/submit_task", example("submit_roll_task"))
    poll = {"reward_request_id": task["reward_request_id"]}
    while ask("roll_task_result", "GET", "/v1/compat/roll/task_result", poll)["errcode"]:
        time.sleep(0.1)
    while http.get("/v1/ledger").json()["waiting"]:
        time.sleep(0.1)
    ask("ledger_state", "GET", "/v1/ledger")
    ask("recorded_verdicts", "GET", f"/v1/verdicts?run={RUN}&limit=1")
    ask("list_runs", "GET", "/v1/runs?limit=1")
    ask("read_run", "GET", f"/v1/runs/{RUN}")
    ask("read_monitors", "GET", f"/v1/runs/{RUN}/monitors")
    ask("read_corrected_rates", "GET", f"/v1/runs/{RUN}/corrected-rates")
    ask("read_audit", "GET", f"/v1/runs/{RUN}/audit")
    ask("export_run", "GET", f"/v1/runs/{RUN}/export?as=verdicts")
    ask("recompute_rewards", "POST", "/v1/rewards/recompute", {"run": RUN, "weights": {"product": 3}})
    asyncio.run(label(url))
    verdict = http.get(f"/v1/verdicts?run={RUN}&limit=1").json()["verdicts"][0]["id"]
    ask("write_labels", "PUT", "/v1/labels", {"run": RUN, "labels": [{"verdict": verdict, "met": True}]})
    ask("write_measures", "PUT", "/v1/measures", {"run": RUN, "step": 12, "measures": {"rgr/refined": 0.25}})
    ask("download_labels", "GET", f"/v1/labels?run={RUN}")
    submitted = {"kind": "score", "run": "bulk", "rubric": "math/primes", "groups": [GROUP]}
    id_ = ask("submit_operation", "POST", "/v1/operations", submitted)["id"]
    ask("operation_events", "GET", f"/v1/operations/{id_}/events", accept="text/event-stream")
    ask("read_operation", "GET", f"/v1/operations/{id_}")
    ask("list_operations", "GET", "/v1/operations")
    ask("operation_results", "GET", f"/v1/operations/{id_}/results")
    ask("operation_results", "GET", f"/v1/operations/{id_}/results", accept="application/x-ndjson")
    ask("cancel_operation", "DELETE", f"/v1/operations/{id_}")
    ask("retry_operation", "POST", f"/v1/operations/{id_}/retry")
    for verb in ("sleep", "wake"):
        name = "put_judge_to_sleep" if verb == "sleep" else "wake_judge"
        ask(name, "POST", f"/v1/judges/default/{verb}", {"owner": RUN, "lease_s": 900})
    control = {"groups": [GROUP], "rubric": PRIMES}
    change = {"version": "step-200", "step": 200, "control": control}
    ask("load_judge_weights", "PUT", "/v1/judges/default/weights", change)
    ask("read_judge_weights", "GET", "/v1/judges/default/weights")
    recorder.examples["create_key"]["application/json"]["key"] = f"adj_{made['id']}_…"
    return recorder.examples


def main(engine: str) -> None:
    """Record and write the examples."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ADJUDGE_DATA_DIR"] = folder
        url = f"sqlite+aiosqlite:///{Path(folder) / 'adjudge.db'}"
        key = asyncio.run(with_key(url))
        with listening("serve", "--port", "0", "--engine", engine, ADJUDGE_KEYS="required") as service:
            with Client(service.url, api_key=key) as client:
                service.wait_until_ready(client)
            headers = {"Authorization": f"Bearer {key}"}
            with httpx2.Client(base_url=service.url, headers=headers, timeout=600) as http:
                examples = record(http, url)
    EXAMPLES.write_text(json.dumps(examples, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:] or [ENGINE])
