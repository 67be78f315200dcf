"""The findings of monitors for Prometheus: by run, monitor and severity, for the runs judged in the last hour."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import get_args

from prometheus_client.core import GaugeMetricFamily, Metric

from judge_server.ledger.monitoring.monitors import monitor_runs
from judge_server.ports import RunReader
from trainer_client.wire.rewards import CONTROL_SUFFIX, GOLD_SUFFIX
from trainer_client.wire.runs import MonitorThresholds, Severity

log = logging.getLogger("adjudge")

FINDINGS_TTL_S = 60.0
"""Interval between looks of the monitors at the active runs for `/metrics`, however many clients read it. A look takes
some tens of milliseconds for each run."""

FINDINGS_TIMEOUT_S = 5.0
"""The seconds to wait for the ledger; after that the page omits the findings. If it is longer than Prometheus waits
(10), all metrics are missing while the database hangs."""

ACTIVE_S = 3600.0
"""The seconds since its last request for which a run is monitored on the metrics page. If it is shorter, alerts end
while a trainer saves a checkpoint or evaluates."""

MAX_RUNS = 20
"""The most runs of a project that the metrics page monitors."""


class MonitorMetrics:
    """The findings of monitors, read from the ledger at most once a minute. Call `read` before `collect`."""

    def __init__(
        self,
        ledger: RunReader,
        thresholds: MonitorThresholds,
        project_id: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._ledger, self._thresholds, self._project_id, self._now = ledger, thresholds, project_id, now
        self._findings: dict[tuple[str, str, str], int] = {}
        self._runs: list[str] = []
        self._read_at: datetime | None = None
        self._reading = asyncio.Lock()

    async def read(self) -> None:
        """Apply the monitors to the active runs unless that was done a moment ago; on an error nothing is reported."""
        async with self._reading:
            now = self._now()
            if self._read_at is not None and (now - self._read_at).total_seconds() < FINDINGS_TTL_S:
                return
            self._read_at = now
            self._findings, self._runs = {}, []
            try:
                async with asyncio.timeout(FINDINGS_TIMEOUT_S):
                    await self._apply(now - timedelta(seconds=ACTIVE_S))
            except (ConnectionError, TimeoutError) as error:
                log.warning("runs cannot be monitored now: %s", error or "the ledger does not answer")

    async def _apply(self, since: datetime) -> None:
        latest = (await self._ledger.runs(self._project_id, limit=MAX_RUNS)).runs
        active = [one.run for one in latest if one.run is not None and one.last_at >= since]
        runs = [run for run in active if not run.endswith((GOLD_SUFFIX, CONTROL_SUFFIX))]
        async for run, report in monitor_runs(self._ledger, self._project_id, runs, self._thresholds):
            self._runs.append(run)
            for monitor in report.monitors:
                for severity in get_args(Severity):
                    self._findings[run, monitor, severity] = 0
            for one in report.findings:
                self._findings[run, one.monitor, one.severity] += 1

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        findings = GaugeMetricFamily(
            "adjudge_run_findings",
            "What monitors find in the runs of the default project judged in the last hour, by monitor and severity",
            labels=["run", "monitor", "severity"],
        )
        for labels, number in self._findings.items():
            findings.add_metric(labels, number)
        yield findings
        yield GaugeMetricFamily(
            "adjudge_monitored_runs", "Runs that monitors were applied to for this page", value=len(self._runs)
        )
