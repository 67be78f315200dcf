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
            "adjudge_ledger_verdicts", "Verdicts handed to the ledger, written by it, and lost", labels=["outcome"]
        )
        for outcome, number in (("recorded", state.recorded), ("written", state.written), ("lost", state.lost)):
            verdicts.add_metric([outcome], number)
        yield verdicts
        yield GaugeMetricFamily("adjudge_ledger_waiting", "Verdicts on their way into the ledger", value=state.waiting)
        yield GaugeMetricFamily(
            "adjudge_ledger_spool_bytes", "Bytes of the ledger's spool on disk", value=state.spool_bytes
        )
        yield GaugeMetricFamily(
            "adjudge_ledger_lag_seconds", "Age of what has waited longest for the ledger", value=state.lag_s
        )
        yield GaugeMetricFamily(
            "adjudge_ledger_writable", "1 while the ledger's database can be written, else 0",
            value=state.problem is None,
        )  # fmt: skip
