"""How many requests a project may send in a minute, counted for one process or for all of them."""

from typing import Protocol


class RateLimiter(Protocol):
    """Counts requests by project. A minute's worth may come at once, and then as many as the minute has room for."""

    async def wait_for(self, project_id: str, per_minute: int) -> float:
        """Count a request, and give 0; where it is one too many, count nothing and give the seconds to come back after.

        Never raises: who cannot count lets by what another way of counting does.
        """

    async def close(self) -> None:
        """Release what counting took."""
