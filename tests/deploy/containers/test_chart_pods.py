"""The chart's pods run: migrated first, ready by their own probes, judging a response, replaced under load.

The value set `cpu-dev` and the chart without values run unchanged, except for a smaller judge. The others need a GPU
and external stores: they run with llama.cpp or, behind the pool, a scripted engine, and with the chart's small stores.
"""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from judge_server.models.catalogue import CATALOGUE
from judge_server.models.files import model_path, models_dir
from tests.deploy.chart import TRIAL
from tests.deploy.containers.kube_pods import Cluster
from tests.deploy.containers.podman import needs_containers
from trainer_client import Client
from trainer_client.wire.operations import ScoreOperation

(MODEL,) = [model for model in CATALOGUE if model.name == "qwen2.5-coder-0.5b"]
WEIGHTS = model_path(MODEL, models_dir())
pytestmark = [
    needs_containers,
    pytest.mark.containers,
    pytest.mark.slow,
    pytest.mark.skipif(not WEIGHTS.exists(), reason=f"no {WEIGHTS.name}; run: adjudge models pull {MODEL.name}"),
]

ON_CPU = {"judge.kind": "cpu", "judge.model": MODEL.name, "judge.options": ""}
SCRIPTED = {"judge.extraEnv[0].name": "ADJUDGE_ENGINE_URL", "judge.extraEnv[0].value": "scripted://yes"}
WITHOUT_A_GPU = {TRIAL: ON_CPU, "gpu-single": ON_CPU, "gpu-pool": SCRIPTED, "production": ON_CPU}
RUBRIC = {"criteria": [{"id": "a", "description": "The response says that two and two are four."}]}
USER = 10001
SERVERS = ["adjudge-judge-0", "adjudge-api-a", "adjudge-worker-a"]
STORES = ["adjudge-postgres-0", "adjudge-redis-0"]


def group(name: str) -> dict[str, object]:
    """Return a group of one response; its text differs by name, so that no verdict is cached."""
    return {"id": name, "prompt": "What are two and two?", "responses": [f"{name}: two and two are four."]}


@contextmanager
def migrated(values: str, **chosen: str) -> Iterator[tuple[Cluster, str]]:
    """Yield a release whose migrate Job has completed, before any server is started, and its bootstrap key."""
    folder = Path(tempfile.mkdtemp(prefix="adjudge-pods-"))
    folder.chmod(0o755)  # the pods' user must be able to enter it
    cluster = Cluster(folder, values, **chosen)
    try:
        key = cluster.create_secrets()
        cluster.start_stores()
        cluster.migrate()
        yield cluster, key
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


def start_servers(cluster: Cluster) -> None:
    """Start a judge with a model already in place, an api and a worker, and wait until all are ready."""
    folder = cluster.make_volume("adjudge-judge-models", USER) / "adjudge/models"
    folder.mkdir(parents=True)
    shutil.copy(WEIGHTS, folder)
    for path in (folder.parent, folder, folder / WEIGHTS.name):
        os.chown(path, USER, USER)
    cluster.start("StatefulSet", "adjudge-judge", "adjudge-judge-0", "adjudge-judge-0.adjudge-judge")
    cluster.start("Deployment", "adjudge-api", "adjudge-api-a", "adjudge-api")
    cluster.start("Deployment", "adjudge-worker", "adjudge-worker-a")
    for pod in SERVERS:
        cluster.wait_until_ready(pod)


@pytest.fixture(scope="module")
def release(images: dict[str, str]) -> Iterator[tuple[Cluster, str]]:
    """A release that became healthy unaided, and the bootstrap key that the chart generated."""
    assert images
    with migrated("cpu-dev", **{"judge.model": MODEL.name}) as (cluster, key):
        start_servers(cluster)
        yield cluster, key


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


def test_network_policies_open_the_ports_that_pods_listen_on_and_connect_to(release: tuple[Cluster, str]) -> None:
    cluster, key = release
    with Client(f"http://{cluster.address('adjudge-api-a')}:8000", api_key=key, run="pods") as client:
        client.rewards([group("connected")], RUBRIC)
        connected = {pod: cluster.connected(pod) for pod in SERVERS + STORES}
    for pod in SERVERS + STORES:
        assert cluster.listening(pod) == cluster.allowed_ports(pod, "ingress"), pod
        assert connected[pod] <= cluster.allowed_ports(pod, "egress"), pod
    assert connected["adjudge-api-a"] >= {5432, 6379, 8001}
    assert connected["adjudge-worker-a"] >= {6379}


def test_an_api_pod_is_replaced_without_a_failed_request(release: tuple[Cluster, str]) -> None:
    cluster, key = release
    serving = [cluster.address("adjudge-api-a")]  # the targets of a Service: ready and not stopping
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
        cluster.wait_until_ready("adjudge-api-b")
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


@pytest.mark.parametrize("values", WITHOUT_A_GPU)
def test_the_other_value_sets_become_ready_and_accept_the_given_key(images: dict[str, str], values: str) -> None:
    assert images
    with migrated(values, **WITHOUT_A_GPU[values]) as (cluster, key):
        start_servers(cluster)
        with Client(f"http://{cluster.address('adjudge-api-a')}:8000", api_key=key, run="pods") as client:
            (response,) = client.rewards([group(values)], RUBRIC).groups[0].responses
        assert response.reward is not None
        for pod in SERVERS:
            assert cluster.listening(pod) == cluster.allowed_ports(pod, "ingress"), pod
