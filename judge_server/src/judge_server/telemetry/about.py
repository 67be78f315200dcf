"""What a task works on: the ids that its log lines and spans carry, in a context variable.

Whatever a task starts works on the same, and hears of what is told later. Ids only: no texts.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

LOG_CONTEXT_KEYS = ("request_id", "operation_id", "chunk", "project", "run")
"""What is told, in the order in which it is shown."""

_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_LOG_CONTEXT: ContextVar[dict[str, str] | None] = ContextVar("adjudge_log_context", default=None)


def current_log_context() -> Mapping[str, str]:
    """What is known of the work of this task, by the names of `IDS`."""
    return _LOG_CONTEXT.get() or {}


def bind_log_context(**ids: str | None) -> None:
    """Say more of the work of this task and of all who share it; None says nothing. Ignored outside `telling`."""
    about = _LOG_CONTEXT.get()
    if about is not None:
        about.update({name: value for name, value in ids.items() if value is not None})


@contextmanager
def log_context(**ids: str | None) -> Iterator[None]:
    """Work on something of its own in the block, and in the tasks that begin there."""
    before = _LOG_CONTEXT.set({name: value for name, value in ids.items() if value is not None})
    try:
        yield
    finally:
        _LOG_CONTEXT.reset(before)


def safe_id(given: str | None) -> str | None:
    """An id that somebody else made, if it is one that can stand in a log line; else None."""
    return given if given is not None and _SAFE_ID.fullmatch(given) else None
