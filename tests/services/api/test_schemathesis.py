"""The whole OpenAPI document against real services: every answer is a documented one.

`make schemathesis` runs more: ADJUDGE_SCHEMATHESIS_EXAMPLES sets the examples for each operation, and
ADJUDGE_SCHEMATHESIS_PHASES the phases.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from judge_server.api.auth import OPEN_PATHS
from judge_server.auth.keys import make_key
from rubric_store import TenantStore, migrations
from tests.services.processes import Service, listening
from trainer_client import Client

EXAMPLES = os.environ.get("ADJUDGE_SCHEMATHESIS_EXAMPLES", "3")
PHASES = os.environ.get("ADJUDGE_SCHEMATHESIS_PHASES", "examples,fuzzing,stateful")
CONFIG = Path(__file__).with_name("schemathesis.toml")


@pytest.fixture
async def key(data_dir: Path) -> str:
    """A key with all permissions, in the store that services here use."""
    await asyncio.to_thread(data_dir.mkdir)
    url = f"sqlite+aiosqlite:///{data_dir / 'adjudge.db'}"
    await asyncio.to_thread(migrations.upgrade, url)
    tenants, made = TenantStore(url), make_key()
    await tenants.add_key("default", made.id, made.digest, scopes=("admin", "metrics"))
    await tenants.close()
    return made.text


@pytest.fixture
def keyed(key: str) -> Iterator[Service]:
    """A service on loopback that requires keys."""
    with listening("serve", "--port", "0", "--engine", "scripted://hash", ADJUDGE_KEYS="required") as running:
        with Client(running.url, api_key=key) as client:
            running.wait_until_ready(client)
        yield running


def ask_everything(service: Service, folder: Path, *options: str) -> None:
    """Run schemathesis; fail with all that it found."""
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"]
    command += [f"{service.url}/openapi.json", "--phases", PHASES, "--max-examples", EXAMPLES, "--no-shrink"]
    command += ["--seed", "1", "--continue-on-failure", "--request-timeout", "60", *options]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"Tested: {58 - 2 * ('--exclude-path-regex' in options)}" in ran.stdout, ran.stdout


@pytest.mark.processes
@pytest.mark.slow
def test_on_loopback_without_keys_every_answer_is_documented(service: Service, tmp_path: Path) -> None:
    with Client(service.url) as client:
        service.wait_until_ready(client)
    awake = ("--exclude-path-regex", "^/v1/judges/.*/(sleep|wake)$")  # requests to a judge that sleeps would wait
    ask_everything(service, tmp_path, "--exclude-checks", "ignored_auth", *awake)  # credentials are ignored here
    assert "Traceback" not in "".join(service.said)


@pytest.mark.processes
def test_with_a_key_every_answer_is_documented(keyed: Service, key: str, tmp_path: Path) -> None:
    ask_everything(keyed, tmp_path, "--header", f"Authorization: Bearer {key}")
    assert "Traceback" not in "".join(keyed.said)


@pytest.mark.processes
@pytest.mark.slow
def test_without_a_key_every_answer_is_documented(keyed: Service, tmp_path: Path) -> None:
    ask_everything(keyed, tmp_path)
    assert "Traceback" not in "".join(keyed.said)


@pytest.mark.processes
def test_without_a_key_only_open_paths_are_readable(keyed: Service, key: str) -> None:
    with httpx2.Client(base_url=keyed.url, timeout=120.0) as http:
        document: dict[str, Any] = http.get("/openapi.json").json()
        asked = 0
        for path, methods in document["paths"].items():
            url = path.format(name="a", alias="b", reference="a@1", id="op-1", run="r")
            for method in methods:
                for header in ({}, {"Authorization": f"Bearer {make_key().text}"}, {"Authorization": "Basic YTpi"}):
                    answer = http.request(method, url, headers=header, json={})
                    assert answer.status_code == (200 if path in OPEN_PATHS else 401), (method, path, answer.text)
                    asked += 1
        assert asked >= 3 * 33
        for path in ("/v1/nowhere", "/v1/rubrics/%2e%2e/%2e%2e/healthz", "/healthz/../v1", "//v1", "/metrics/"):
            assert http.get(path).status_code == 401, path
        assert http.get("/v1", headers={"Authorization": f"Bearer {key}"}).status_code == 200
