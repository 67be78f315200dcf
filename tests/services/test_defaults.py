"""The values of `docs/reference/limits.md` match code, chart and compose file, and are consistent with each other."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import rubric_store.database
from adjudge_services import worker as worker_probes
from adjudge_services.cli.operating import doctor
from adjudge_services.http_server import KEEP_ALIVE_S
from adjudge_services.settings import Settings
from adjudge_services.wiring import build_app
from adjudge_services.worker import Worker
from judge_server.api import judge_process, operations
from judge_server.engines.llamacpp import process
from judge_server.engines.openai import http
from judge_server.ledger import RecorderTimes
from judge_server.ledger.monitoring import gold
from judge_server.observability import metrics as operation_metrics
from judge_server.operations import queues, runner, service, worker_tokens
from judge_server.remote import executor
from judge_server.scheduling import call_runner
from judge_server.scheduling.pools import PoolRules
from judge_server.scoring import judge
from rubric_store import database, repository
from rubric_store.ledger import store
from trainer_client import Client
from trainer_client.client import calls, connection
from trainer_client.wire.operations import CHUNK_DEADLINE_S, ScoreOperation
from trainer_client.wire.rewards import RewardRequest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/limits.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(ADJUDGE_\w+|(?:values|compose)\.yaml: [^`]+)` \| ([\d,.]+)", PAGE, re.MULTILINE)
"""Settings, and values of chart and compose file; `tests.docs.reference` writes and checks the other tables."""

VALUES = yaml.safe_load((ROOT / "helm/adjudge/values.yaml").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((ROOT / "docker/compose.yaml").read_text(encoding="utf-8"))["services"]
RULES = yaml.safe_load((ROOT / "helm/adjudge/files/rules.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
PRESTOP_S, SCRAPE_S, SCRAPE_TIMEOUT_S, OF_PROXIES_S = 5.0, 15.0, 10.0, 60.0
POOL = 15
"""The most connections of an SQLAlchemy pool: five kept and ten more."""


def default(of: Any, name: str) -> Any:
    """Return the default of a parameter, or of a message's field."""
    fields = getattr(of, "model_fields", None)
    return fields[name].default if fields else inspect.signature(of).parameters[name].default


def actual(name: str) -> float:
    """Return the value in the settings, the chart or the compose file for a name of the page."""
    if name.startswith("ADJUDGE_"):
        return float(Settings.model_fields[name.removeprefix("ADJUDGE_").lower()].default)
    file, _, path = name.rpartition(": ")
    found = VALUES if file == "values.yaml" else COMPOSE
    for part in path.split("."):
        found = found[part]
    return float(str(found).removesuffix("s"))


@pytest.mark.parametrize(("name", "value"), ROWS, ids=[name for name, _ in ROWS])
def test_a_value_of_the_page_matches_the_code(name: str, value: str) -> None:
    assert actual(name) == float(value.replace(",", ""))


DEADLINE_S = default(RewardRequest, "deadline_s")
LONGEST_DEADLINE_S = next(one.le for one in ScoreOperation.model_fields["deadline_s"].metadata if hasattr(one, "le"))
KEPT_BETWEEN_S = 2.0
"""How long links to judges keep an idle connection, in `judge_server.remote.executor`."""
WORKERS_BUDGET_S = 10.0
"""How long a worker's client retries, in `adjudge_services.wiring.client_factory`."""
DRAIN_S = Settings.model_fields["drain_s"].default
CLOSE_S = DRAIN_S + gold.GOLD_DRAIN_S + RecorderTimes().close_timeout_s
HANG_FOUND_S = default(PoolRules, "misses") * (
    default(PoolRules, "interval_s") + default(PoolRules, "health_timeout_s")
)
HOST_GONE_S = queues._KEEPALIVE["TCP_KEEPIDLE"] + queues._KEEPALIVE["TCP_KEEPINTVL"] * queues._KEEPALIVE["TCP_KEEPCNT"]
STUCK_S = float(re.search(r"oldest_seconds\) > (\d+)", next(r["expr"] for r in RULES if "Stuck" in r["alert"]))[1])  # type: ignore[index]

INEQUALITIES = {
    "a renewal that hangs leaves time for another": (
        runner.LEASE_S / 3 + database.STATEMENT_TIMEOUT_S + runner.STORE_RETRY_DELAY_S,
        Settings.model_fields["chunk_lease_s"].default,
    ),
    "a message is hidden for longer than any chunk takes": (
        LONGEST_DEADLINE_S + calls.ANSWER_MARGIN_S + WORKERS_BUDGET_S,
        queues.VISIBILITY_TIMEOUT_S,
    ),
    "a client outwaits what comes after the deadline": (
        repository.READ_TIMEOUT_S + executor.DEADLINE_GRACE_S + judge.STORE_TIMEOUT_S,
        calls.ANSWER_MARGIN_S,
    ),
    "a judge that hangs is found in time to ask another": (HANG_FOUND_S + executor.RETRY_WINDOW_S, DEADLINE_S),
    "a host that is gone is found before a deadline": (connection.DEAD_PEER_TIMEOUT_S, DEADLINE_S),
    "calls are held for less than a deadline": (call_runner.MAX_HOLD_S, DEADLINE_S),
    "a judge that is back is asked before the retry window ends": (
        default(PoolRules, "pause_s") + default(PoolRules, "interval_s"),
        executor.RETRY_WINDOW_S,
    ),
    "links hang up before the service does": (max(KEPT_BETWEEN_S, http._IDLE_S), KEEP_ALIVE_S),
    "proxies hang up before the service does": (OF_PROXIES_S, KEEP_ALIVE_S),
    "a heartbeat comes before a client gives up": (operations.SSE_HEARTBEAT_INTERVAL_S, default(Client, "timeout_s")),
    "a look at the broker counts until the next one is done": (
        service.DISPATCH_INTERVAL_S + 2 * queues.BROKER_CONNECT_TIMEOUT_S + queues.BROKER_SOCKET_TIMEOUT_S,
        queues.RESPONDING_WINDOW_S,
    ),
    "a worker is stalled only after TCP had its chance": (
        HOST_GONE_S + queues.BROKER_CONNECT_TIMEOUT_S + queues.BROKER_SOCKET_TIMEOUT_S,
        queues.STALLED_AFTER_S,
    ),
    "operations are counted before Prometheus gives up": (operation_metrics.COUNTS_TIMEOUT_S, SCRAPE_TIMEOUT_S),
    "operations are counted for every look of Prometheus": (operation_metrics.COUNTS_TTL_S, SCRAPE_S),
    "what is asked last is answered": (DEADLINE_S, DRAIN_S),
    "the api drains in the chart": (PRESTOP_S + CLOSE_S, VALUES["api"]["drainSeconds"]),
    "the api drains in compose": (CLOSE_S, actual("compose.yaml: api.stop_grace_period")),
    "a judge drains in the chart": (DRAIN_S, VALUES["judge"]["drainSeconds"]),
    "a judge drains in compose": (DRAIN_S, actual("compose.yaml: judge-cpu.stop_grace_period")),
    "a pass outlives its worker's tries": (
        WORKERS_BUDGET_S + executor.CONNECT_TIMEOUT_S,
        worker_tokens.TOKEN_LIFETIME_S,
    ),
    "an api may send what it let in": (Settings.model_fields["max_body_bytes"].default, judge_process.MAX_BODY_BYTES),
    "the alert waits for a chunk and a pause": (CHUNK_DEADLINE_S + runner.MAX_CHUNK_RETRY_DELAY_S, STUCK_S),
    "what was lost is announced again before anybody is called": (
        service.LOST_AFTER_S + service.DISPATCH_INTERVAL_S,
        STUCK_S,
    ),
    "a judge may load for as long as llama.cpp does": (
        process.START_TIMEOUT_S,
        VALUES["judge"]["startSeconds"],
    ),
}


@pytest.mark.parametrize("rule", INEQUALITIES)
def test_values_are_consistent(rule: str) -> None:
    less, more = INEQUALITIES[rule]
    assert less < more


def test_the_doctor_and_the_alert_have_the_same_threshold() -> None:
    assert doctor.MAX_CHUNK_WAIT_S == STUCK_S


@pytest.mark.parametrize("component", ["api", "judge", "worker"])
def test_probes_outlast_their_checks_and_restart_a_hanging_process_after_a_minute(component: str) -> None:
    text = (ROOT / f"helm/adjudge/templates/{component}.yaml").read_text(encoding="utf-8")
    probes = {
        name: yaml.safe_load(body) for name, body in re.findall(r"(liveness|readiness)Probe: (\{.*\})$", text, re.M)
    }
    assert probes["liveness"]["periodSeconds"] * probes["liveness"]["failureThreshold"] == 60
    if component == "worker":
        assert probes["readiness"]["timeoutSeconds"] > worker_probes.CHECK_TIMEOUT_S


def test_the_small_servers_have_enough_connections_for_an_api_and_a_worker_at_full_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pools: list[str] = []
    for module, name in ((rubric_store.database, "create_async_engine"), (store, "create_engine")):
        make = getattr(module, name)

        def counting(*given: Any, make: Any = make, **options: Any) -> Any:
            assert not {"pool_size", "max_overflow", "poolclass"} & options.keys()
            pools.append("one more")
            return make(*given, **options)

        monkeypatch.setattr(module, name, counting)
    settings = Settings(
        database_url="postgresql+psycopg://u:p@127.0.0.1:1/x",
        data_dir=tmp_path,
        engine_url="scripted://yes",
        queue_url="redis://127.0.0.1:1/0",
    )
    build_app(settings)
    api = len(pools) + 1  # operations create theirs when the application starts
    Worker(settings, None, 1)  # type: ignore[arg-type]  # it does nothing yet
    worker = len(pools) + 1 - api
    assert (api * POOL, worker * POOL) == (75, 45), "docs/reference/limits.md names these numbers"
    for text in (
        "\n".join(COMPOSE["postgres"]["command"]),
        (ROOT / "helm/adjudge/templates/dev-stores.yaml").read_text(),
    ):
        (most,) = re.findall(r"max_connections=(\d+)", text)
        assert (api + worker) * POOL < int(most)
