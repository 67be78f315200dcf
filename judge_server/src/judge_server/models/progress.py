"""How a download tells its progress, without knowing who watches."""

from typing import Protocol


class DownloadProgress(Protocol):
    """Whoever shows a download: a progress bar, a log, a test."""

    def stage(self, text: str) -> None:
        """A new phase began, in words for the user, such as which source is being read."""

    def note(self, text: str) -> None:
        """Something to know that ends nothing, such as why another source is being tried."""

    def advance(self, done: int, total: int | None) -> None:
        """`done` bytes of the model are here, resumed ones included, of `total` (None: not known)."""


class _Silent:
    def stage(self, text: str) -> None:
        """Say nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def advance(self, done: int, total: int | None) -> None:
        """Say nothing."""


SILENT: DownloadProgress = _Silent()


def format_bytes(size: int) -> str:
    """A size for people: `491 MB`, `1.12 GB` (powers of ten)."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size:,} bytes"
