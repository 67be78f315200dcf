"""How the ledger of this process stands, as metrics. Knows no ledger: whoever has one says how it stands."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainer_client.wire.ledger import LedgerState


class LedgerMetrics(Collector):
    """What `GET /v1/ledger` says, read when somebody looks.

    Args:
        state: how the ledger stands at this moment.
    """

    def __init__(self, state: Callable[[], LedgerState]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """The ledger's metrics at this moment."""
        state = self._state()
        verdicts = CounterMetricFamily(
            "adjudge_ledger_verdicts", "Verdicts handed to the ledger, written, refused, and lost", labels=["outcome"]
        )
        for outcome in ("recorded", "written", "refused", "lost"):
            verdicts.add_metric([outcome], getattr(state, outcome))
        yield verdicts
        yield GaugeMetricFamily("adjudge_ledger_waiting", "Verdicts on their way into the ledger", value=state.waiting)
        yield GaugeMetricFamily(
            "adjudge_ledger_spool_bytes", "Bytes of the ledger's spool on disk", value=state.spool_bytes
        )
        yield GaugeMetricFamily(
            "adjudge_ledger_memory_bytes",
            "Bytes that wait in memory because the ledger's spool cannot be written",
            value=state.memory_bytes,
        )
        yield GaugeMetricFamily(
            "adjudge_ledger_refused_files",
            "Files of rows that the ledger refused and that are kept aside",
            value=state.refused_files,
        )
        yield CounterMetricFamily(
            "adjudge_ledger_thread_restarts",
            "Threads of the ledger that ended and were started again",
            value=state.restarts,
        )
        yield GaugeMetricFamily(
            "adjudge_ledger_spool_writable", "1 while the ledger's spool can be written, else 0",
            value=state.spool_problem is None,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "adjudge_ledger_lag_seconds", "Age of what has waited longest for the ledger", value=state.lag_s
        )
        yield GaugeMetricFamily(
            "adjudge_ledger_writable", "1 while the ledger's database can be written, else 0",
            value=state.problem is None,
        )  # fmt: skip
