"""What is known of the members of pools: endpoints behind a judge, judges behind an api."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from judge_server.pools import MemberView
from trainer_client.wire import DEFAULT_JUDGE


class PoolMetrics:
    """The members of each judge's pool at this moment, by the judge's name."""

    def __init__(self, members_of: Mapping[str, list[MemberView]]) -> None:
        self._members_of = members_of

    def collect(self) -> Iterator[Metric]:
        """Whether each is there, and the calls it has."""
        up = GaugeMetricFamily(
            "adjudge_pool_member_up", "Whether calls are given to a member of a pool", labels=["judge", "member"]
        )
        load = GaugeMetricFamily(
            "adjudge_pool_member_calls", "Judge calls that a member of a pool has", labels=["judge", "member"]
        )
        for judge, members in self._members_of.items():
            label = "" if judge == DEFAULT_JUDGE else judge
            for member in members:
                up.add_metric([label, member.name], float(member.state in ("closed", "half_open")))
                load.add_metric([label, member.name], member.load)
        if any(self._members_of.values()):
            yield up
            yield load
