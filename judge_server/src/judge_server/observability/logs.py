"""Log formats, the context that every line of a task carries, and redaction of errors.

Records are written as lines of text or as JSON, with the ids of the work they belong to. The ids are in a context
variable, which tasks share with the tasks they start, including ids bound later. It holds ids only, never texts.

Exceptions are logged without their messages, because messages quote data: a validator quotes its input, a database the
parameters of a statement, a server the request it rejects. Only messages known to quote nothing are shown.
"""

import json
import logging
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from opentelemetry import trace

LOG_CONTEXT_KEYS = ("request_id", "operation_id", "chunk", "project", "run")
"""The names of the ids, in the order in which they are shown."""

EXTRA_FIELDS = "adjudge_fields"
"""The attribute of a record with fields that only JSON shows: `extra={EXTRA_FIELDS: {…}}`."""

_MAX_FRAMES = 50
_IDS_IN_MESSAGES = ("request_id", "operation_id")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_DIRECT_CAUSE = "The above exception was the direct cause of the following exception:"
_DURING_HANDLING = "During handling of the above exception, another exception occurred:"
_LOG_CONTEXT: ContextVar[dict[str, str] | None] = ContextVar("adjudge_log_context", default=None)


def current_log_context() -> Mapping[str, str]:
    """The ids of the work of this task, named as in `LOG_CONTEXT_KEYS`."""
    return _LOG_CONTEXT.get() or {}


def bind_log_context(**ids: str | None) -> None:
    """Add ids to the context of this task and of all tasks that share it, ignoring None.

    Outside `log_context` this does nothing.
    """
    context = _LOG_CONTEXT.get()
    if context is not None:
        context.update({name: value for name, value in ids.items() if value is not None})


@contextmanager
def log_context(**ids: str | None) -> Iterator[None]:
    """Start a new context in the block and in tasks that start there."""
    token = _LOG_CONTEXT.set({name: value for name, value in ids.items() if value is not None})
    try:
        yield
    finally:
        _LOG_CONTEXT.reset(token)


def safe_id(external_id: str | None) -> str | None:
    """An id from outside this process if it is safe to log; otherwise None."""
    return external_id if external_id is not None and _SAFE_ID.fullmatch(external_id) else None


def describe_error(error: BaseException) -> str:
    """Describe an error without quoting data: its type, and the system's message or the database's error code."""
    kind = _qualified_name(error)
    origin = getattr(error, "orig", None)  # SQLAlchemy wraps the driver's error
    if isinstance(origin, BaseException):
        return f"{kind} of {describe_error(origin)}"
    code = getattr(error, "sqlstate", None)
    if isinstance(code, str):
        return f"{kind} {code}"
    if isinstance(error, OSError) and error.strerror:
        return f"{kind}: {error.strerror}"
    if type(error) is ConnectionError:  # raised by `rubric_store.database` and the broker, with a safe message
        return f"{kind}: {error}"
    return kind


def redacted_traceback(error: BaseException) -> str:
    """A traceback with the exceptions' types but without their messages."""
    return "\n".join(_lines(error, set())).rstrip("\n")


def first_words(message: str) -> str:
    """The beginning of a message from asyncio, without the arguments and exceptions that follow."""
    return message.partition("\n")[0].partition("(")[0].rstrip()


def _lines(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _lines(before, seen)
        yield _DIRECT_CAUSE if error.__cause__ is before else _DURING_HANDLING
    frames: Any = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
    yield "Traceback, without messages (most recent call last):"
    yield from ("".join(traceback.format_list(frames)).rstrip("\n"),) if frames else ()
    yield describe_error(error)
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            if id(member) not in seen:
                yield "Exception in the group:"
                yield from _lines(member, seen)


def _qualified_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class ContextFormatter(logging.Formatter):
    """The common base of both formats: the message, the ids, and the exception.

    With `texts`, exceptions are shown with their messages.
    """

    def __init__(self, *, texts: bool = False) -> None:
        super().__init__()
        self._texts = texts

    def message(self, record: logging.LogRecord) -> str:
        """The message of a record."""
        text = record.getMessage()
        return first_words(text) if record.name == "asyncio" and not self._texts else text

    def exception(self, record: logging.LogRecord) -> str | None:
        """The traceback of a record, if it has one."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return None
        return self.formatException(record.exc_info) if self._texts and record.exc_info else redacted_traceback(error)

    def ids(self) -> Mapping[str, str]:
        """The ids of the current task, in which the record is both created and formatted."""
        ids = dict(current_log_context())
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            ids["trace_id"] = trace.format_trace_id(span.trace_id)
        return ids


class TextFormatter(ContextFormatter):
    """A line of text: level, logger, message, and in brackets the ids that the message does not contain."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the line, and the traceback below it."""
        text = self.message(record)
        ids = self.ids()
        shown = [
            f"{name}={_one_line(ids[name])}"
            for name in LOG_CONTEXT_KEYS
            if name in ids and not (name in _IDS_IN_MESSAGES and ids[name] in text)
        ]
        line = f"{record.levelname} {record.name}: {text}" + (f" [{' '.join(shown)}]" if shown else "")
        exception = self.exception(record)
        return line if exception is None else f"{line}\n{exception}"


class JsonFormatter(ContextFormatter):
    """A JSON object: time, level, logger, message, the ids, the record's extra fields, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the object on one line."""
        created = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message(record),
            **self.ids(),
            **getattr(record, EXTRA_FIELDS, {}),
        }
        exception = self.exception(record)
        if exception is not None:
            line["exception"] = exception
        return json.dumps(line)


def _one_line(value: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", value)
