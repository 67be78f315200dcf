"""Verdicts in this process's memory: bounded, the least recently read go first."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from judge_server.ports import Finding


class MemoryCache:
    """Keeps up to `max_entries` findings (about 350 bytes each)."""

    def __init__(self, max_entries: int = 100_000) -> None:
        self._findings: OrderedDict[bytes, Finding] = OrderedDict()
        self._max_entries = max_entries

    async def get_many(self, digests: Sequence[bytes]) -> Mapping[bytes, Finding]:
        """The findings known for these digests, which count as just read."""
        found = {}
        for digest in digests:
            finding = self._findings.get(digest)
            if finding is not None:
                self._findings.move_to_end(digest)
                found[digest] = finding
        return found

    async def put_many(self, findings: Mapping[bytes, Finding]) -> None:
        """Store findings; one that is there stands."""
        for digest, finding in findings.items():
            self._findings.setdefault(digest, finding)
        while len(self._findings) > self._max_entries:
            self._findings.popitem(last=False)

    async def ready(self) -> bool:
        """Always."""
        return True

    async def close(self) -> None:
        """Forget everything."""
        self._findings.clear()
