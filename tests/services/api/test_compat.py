"""Trainers that call a URL, end to end: what their clients send, over a socket, to a real service with keys.

The clients' requests and what is read of the answers are recorded from OpenRLHF 0.11.0 (`openrlhf/utils/agent.py`),
slime 0.3.1 (`slime/rollout/rm_hub/__init__.py`) and ROLL 0.3.0
(`roll/pipeline/rlvr/rewards/remote_reward_system_worker.py`), with the HTTP libraries that they use.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests

from judge_server.auth.keys import make_key
from rubric_store import TenantStore
from tests.fixtures.migrated import NewSQLite
from tests.services.processes import Service, listening
from trainer_client import Client

PROMPT = "<|im_start|>user\nIs 7 prime?<|im_end|>\n<|im_start|>assistant\n"
CRITERIA = [
    {"id": "seven", "description": "Names the 7.", "verification": {"method": "contains", "all_of": ["7"]}},
    {"id": "judged", "description": "Is kind."},
]
LABEL = json.dumps({"prompt": "Is 7 prime?"})
TOO_LONG = "too long for this judge " * 2000
QUERY = "rubric=math/seven@1&run=compat"


@pytest.fixture
def key(data_dir: Path, new_sqlite: NewSQLite) -> str:
    """A key that may score and publish."""
    new_sqlite(data_dir / "adjudge.db")

    async def added() -> str:
        tenants, made = TenantStore(f"sqlite+aiosqlite:///{data_dir / 'adjudge.db'}"), make_key()
        await tenants.add_key("default", made.id, made.digest, scopes=("score", "read", "rubrics:write"))
        await tenants.close()
        return made.text

    return asyncio.run(added())


@pytest.fixture
def service(key: str) -> Iterator[Service]:
    """A service that requires keys; its judge says yes, and fails on responses that are too long."""
    engine = "scripted://yes?context=5000"
    with listening("serve", "--port", "0", "--engine", engine, ADJUDGE_KEYS="required") as running:
        with Client(running.url, api_key=key) as client:
            running.wait_until_ready(client)
            client.publish_rubric("math/seven", CRITERIA)
        yield running


def with_key(url: str, key: str) -> str:
    """Put the key into the URL as its password, which aiohttp and requests send by basic authentication."""
    return url.replace("http://", f"http://key:{key}@")


def post(url: str, total_s: float, **payload: Any) -> Any:
    """Post JSON by aiohttp, and return the answer's; raises `aiohttp.ClientResponseError` for an error."""

    async def posted() -> Any:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=total_s)) as session,
            session.post(url, json=payload) as answer,
        ):
            answer.raise_for_status()
            return await answer.json()

    return asyncio.run(posted())


def post_like_openrlhf(url: str, response: str) -> Any:
    """Post like OpenRLHF; return what it reads: the first reward, score and log."""
    return post(url, 180, query=[f"{PROMPT}{response}"], prompts=[PROMPT], labels=[LABEL])


def post_like_slime(url: str, response: str) -> Any:
    return post(url, 120, prompt=PROMPT, response=response, label=LABEL)


def submit_like_roll(url: str, key: str, response: str, query: str = QUERY, **fields: Any) -> requests.Response:
    task = {
        "priority": 1,
        "project_id": "p",
        "experiment_id": "e",
        "global_step": 3,
        "data_id": "q1",
        "rollout_id": "0b5d7c1e",
        "prompt": "Is 7 prime?",
        "response": response,
        "reward_info": {"ground_truth": "yes"},
        "reward_manager": [],
        "timeout": 300,
    } | fields
    return requests.post(
        f"{url}/v1/compat/roll/submit_task?{query}", headers=headers_of_roll(key), json=task, timeout=20
    )


def headers_of_roll(key: str) -> dict[str, str]:
    return {"Content-Type": "application/json", "XRL-Authorization": f"Bearer {key}", "BusinessType": "online"}


def poll_like_roll(url: str, key: str, task: str) -> Any:
    """Poll until `errcode` is not 1."""
    pause = threading.Event()
    for _ in range(6000):
        answer = requests.get(
            f"{url}/v1/compat/roll/task_result",
            headers=headers_of_roll(key),
            json={"reward_request_id": task},
            timeout=20,
        )
        answer.raise_for_status()
        if answer.json()["errcode"] != 1:
            return answer.json()
        pause.wait(0.01)
    raise AssertionError("the task did not end in time")


@pytest.mark.processes
def test_each_trainer_gets_the_reward_and_no_number_for_a_failure(service: Service, key: str) -> None:
    openrlhf, slime = (with_key(f"{service.url}/v1/compat/{name}?{QUERY}", key) for name in ("openrlhf", "slime"))
    assert post_like_openrlhf(openrlhf, "7") == {"rewards": [1.0], "scores": [1.0], "extra_logs": {"rubric": [1.0]}}
    assert post_like_slime(slime, "no") == 0.5
    for send, url in ((post_like_openrlhf, openrlhf), (post_like_slime, slime)):
        with pytest.raises(aiohttp.ClientResponseError) as failed:
            send(url, TOO_LONG)
        assert failed.value.status == 502
        with pytest.raises(aiohttp.ClientResponseError) as refused:
            send(url.replace(key, make_key().text), "7")
        assert refused.value.status == 401
    pause = threading.Event()
    with Client(service.url, api_key=key) as client:
        while "compat" not in [run.run for run in client.runs()]:  # which the ledger writes within a second or so
            pause.wait(0.01)


@pytest.mark.processes
def test_roll_polls_until_its_task_has_a_reward_or_a_reason(service: Service, key: str) -> None:
    submitted = submit_like_roll(service.url, key, "7").json()
    assert submitted["errcode"] == 0
    done = poll_like_roll(service.url, key, submitted["reward_request_id"])
    assert (done["errcode"], done["reward_score"]) == (0, 1.0)
    assert done["dimention_reward_score"] == {"seven": {"score": 1.0}, "judged": {"score": 1.0}}
    assert poll_like_roll(service.url, key, submitted["reward_request_id"]) == done

    named = submit_like_roll(service.url, key, "7", query=f"{QUERY}&components=kind").json()["reward_request_id"]
    assert poll_like_roll(service.url, key, named)["dimention_reward_score"] == {"point": {"score": 1.0}}

    failed = submit_like_roll(service.url, key, TOO_LONG).json()["reward_request_id"]
    reason = poll_like_roll(service.url, key, failed)["reward_score"]
    assert reason.startswith("no reward: ")
    with pytest.raises((TypeError, ValueError)):
        float(reason)

    lost = poll_like_roll(service.url, key, "roll-" + 32 * "0")
    assert (lost["errcode"], lost["reward_score"]) == (0, None)
    assert submit_like_roll(service.url, make_key().text, "7").status_code == 401
    refused = submit_like_roll(service.url, key, "7", reward_manager=[{"plugin_name": "math"}])
    assert refused.json()["errors"][0]["field"] == "reward_manager"
