"""What each `Idempotency-Key` stands for, so that a request sent twice is done once."""

from typing import Protocol

from trainer_client.wire.idempotency import KeyClaim, StoredAnswer


class IdempotencyKeys(Protocol):
    """Keeps keys for a day, each project's apart. Methods raise `ConnectionError` where that cannot be done now."""

    async def claim(self, project_id: str, key: str, asked: bytes, *, hold_s: float = 0.0) -> KeyClaim:
        """Show a key, with the digest of what is asked; who is to do it has `hold_s` seconds for that.

        Raises:
            ValueError: the key stands for another request.
        """

    async def store_answer(self, project_id: str, key: str, answer: StoredAnswer) -> None:
        """Keep what a claimed key was answered with."""

    async def release(self, project_id: str, key: str) -> None:
        """Forget a claimed key that nothing was made under."""
