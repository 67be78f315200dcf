"""The chart's pods run: migrated first, ready by their own probes, judging a response, replaced under load.

A release of the value set `cpu-dev`, with its stores and a small judge, played by podman. It is skipped, with a reason,
where podman, the images or the model's file are missing.
"""

import base64
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from judge_server.models.catalogue import CATALOGUE
from judge_server.models.files import model_path, models_dir
from tests.deploy.containers.kube_pods import POSTGRES_IMAGE, REGISTRY, VALKEY_IMAGE, Cluster, missing
from trainer_client import Client
from trainer_client.wire.operations import ScoreOperation

pytestmark = [pytest.mark.containers]

(MODEL,) = [model for model in CATALOGUE if model.name == "qwen2.5-coder-0.5b"]
RUBRIC = {"criteria": [{"id": "a", "description": "The response says that two and two are four."}]}
USER = 10001


def group(name: str) -> dict[str, object]:
    """A group of one response; its text differs by name, so that no verdict is cached."""
    return {"id": name, "prompt": "What are two and two?", "responses": [f"{name}: two and two are four."]}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where podman's configuration, manifests and volumes lie; the pods' user must be able to enter it."""
    made = Path(tempfile.mkdtemp(prefix="adjudge-pods-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def release(folder: Path) -> Iterator[tuple[Cluster, str]]:
    """A release that became healthy with nothing but its Secret, and the bootstrap key that the chart generated."""
    if lacking := missing(folder):
        pytest.skip(f"NO PODS WERE RUN: missing here: {lacking}")
    weights = model_path(MODEL, models_dir())
    if not weights.exists():
        pytest.skip(f"NO PODS WERE RUN: missing here: {weights.name}; run: adjudge models pull {MODEL.name}")
    chosen = {
        "images.registry": REGISTRY,
        "devStores.postgresImage": POSTGRES_IMAGE,
        "devStores.valkeyImage": VALKEY_IMAGE,
        "judge.model": MODEL.name,
    }
    cluster = Cluster(folder, "cpu-dev", *(word for key in chosen for word in ("--set", f"{key}={chosen[key]}")))
    try:
        password = secrets.token_hex(8)
        redis = f"redis://:{password}@adjudge-redis:6379"
        given = {
            "database-url": f"postgresql://adjudge:{password}@adjudge-postgres:5432/adjudge",
            "cache-url": f"{redis}/0",
            "queue-url": f"{redis}/1",
            "fence-secret": secrets.token_hex(32),
            "judge-token": secrets.token_hex(32),
            "postgres-password": password,
            "redis-password": password,
        }
        cluster.add_secret("adjudge", given)
        key = base64.b64decode(cluster.create_secrets_of_the_chart()["bootstrap-key"]).decode()
        for store in ("postgres", "redis"):
            cluster.start("StatefulSet", f"adjudge-{store}", f"adjudge-{store}-0", f"adjudge-{store}")
            cluster.wait_until_ready(f"adjudge-{store}-0", "StatefulSet", f"adjudge-{store}")
        cluster.start("Job", "adjudge-migrate-1", "migrate")
        cluster.wait_until_ended("migrate")
        models = cluster.make_volume("adjudge-judge-models", USER) / "adjudge/models"
        models.mkdir(parents=True)
        shutil.copy(weights, models)
        for path in (models.parent, models, models / weights.name):
            os.chown(path, USER, USER)
        cluster.start("StatefulSet", "adjudge-judge", "adjudge-judge-0", "adjudge-judge-0.adjudge-judge")
        cluster.start("Deployment", "adjudge-api", "adjudge-api-a", "adjudge-api")
        cluster.start("Deployment", "adjudge-worker", "adjudge-worker-a")
        cluster.wait_until_ready("adjudge-judge-0", "StatefulSet", "adjudge-judge")
        cluster.wait_until_ready("adjudge-api-a", "Deployment", "adjudge-api")
        cluster.wait_until_ready("adjudge-worker-a", "Deployment", "adjudge-worker")
        yield cluster, key
    finally:
        cluster.close()


def test_a_release_judges_a_response_and_runs_an_operation(release: tuple[Cluster, str]) -> None:
    cluster, key = release
    with Client(f"http://{cluster.address('adjudge-api-a')}:8000", api_key=key, run="pods") as client:
        (response,) = client.rewards([group("first")], RUBRIC).groups[0].responses
        assert response.reward is not None
        operation = client.submit(ScoreOperation.model_validate({"rubric": RUBRIC, "groups": [group("second")]}))
        until = time.monotonic() + 120
        while (found := client.operation(operation.id)).state not in ("done", "failed", "cancelled"):
            assert time.monotonic() < until, found
            time.sleep(1)
        assert found.state == "done"
        assert len(list(client.operation_results(operation.id))) == 1


def test_an_api_pod_is_replaced_without_a_failed_request(release: tuple[Cluster, str]) -> None:
    cluster, key = release
    serving = [cluster.address("adjudge-api-a")]  # as a Service knows them: ready, and not told to stop
    done, failed, stop = [0], [], threading.Event()

    def score() -> None:
        while not stop.is_set():
            with Client(f"http://{serving[-1]}:8000", api_key=key, run="pods", retries=0) as client:
                try:
                    (response,) = client.rewards([group(f"load-{done[0]}")], RUBRIC).groups[0].responses
                    assert response.reward is not None
                except Exception as error:  # noqa: BLE001 - each failure is what the test is about
                    failed.append(repr(error))
                done[0] += 1

    scoring = threading.Thread(target=score)
    scoring.start()
    try:
        address = cluster.start("Deployment", "adjudge-api", "adjudge-api-b", "adjudge-api")
        cluster.wait_until_ready("adjudge-api-b", "Deployment", "adjudge-api")
        serving.append(address)
        before = done[0]
        cluster.stop("adjudge-api-a")
        while done[0] < before + 3:
            time.sleep(0.2)
    finally:
        stop.set()
        scoring.join()
    assert failed == []
    assert done[0] >= 3
