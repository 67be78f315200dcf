"""Log formats, the context that every line of a task carries, and redaction of errors.

How log records are written: for people, or as JSON, one object a line; always with the ids of what they belong to.

Exceptions lose their messages on the way, which may quote texts: see `redaction`. Knows no setting and no stream.

What a task works on: the ids that its log lines and spans carry, in a context variable.

Whatever a task starts works on the same, and hears of what is told later. Ids only: no texts.

What may be said of an error in a log: where it was raised and of what kind, and none of the words that it quotes.

Messages of exceptions quote what they complain of: a validator its input, a database the parameters of a statement,
a server the request it refuses. So only messages that are known to quote nothing are shown.
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


_MOST_FRAMES = 50


def describe_error(error: BaseException) -> str:
    """The kind of an error, and what else of it quotes nothing: the system's words, or the database's code."""
    kind = _qualified_name(error)
    origin = getattr(error, "orig", None)  # SQLAlchemy's errors have the driver's
    if isinstance(origin, BaseException):
        return f"{kind} of {describe_error(origin)}"
    code = getattr(error, "sqlstate", None)
    if isinstance(code, str):
        return f"{kind} {code}"
    if isinstance(error, OSError) and error.strerror:
        return f"{kind}: {error.strerror}"
    if type(error) is ConnectionError:  # ours: `rubric_store.database` and the queue say why in a line
        return f"{kind}: {error}"
    return kind


def redacted_traceback(error: BaseException) -> str:
    """A traceback without the messages of its exceptions: files, lines, the code that stands there, and kinds."""
    return "\n".join(_lines(error, set())).rstrip("\n")


def first_words(message: str) -> str:
    """The beginning of a message of asyncio's, which goes on to show arguments and exceptions."""
    return message.partition("\n")[0].partition("(")[0].rstrip()


def _lines(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _lines(before, seen)
        yield "then, because of that:" if error.__cause__ is before else "then, while that was handled:"
    frames: Any = traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    yield "Traceback, without messages (most recent call last):"
    yield from ("".join(traceback.format_list(frames)).rstrip("\n"),) if frames else ()
    yield describe_error(error)
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            if id(one) not in seen:
                yield "one of its exceptions:"
                yield from _lines(one, seen)


def _qualified_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


EXTRA_FIELDS = "adjudge_fields"
"""The attribute of a record that holds figures which JSON shows by themselves: `extra={EXTRA_FIELDS: {…}}`."""

_NAMED = ("request_id", "operation_id")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class ContextFormatter(logging.Formatter):
    """What both formats share: the message, the ids, and the exception.

    `texts` has exceptions shown whole, with their messages.
    """

    def __init__(self, *, texts: bool = False) -> None:
        super().__init__()
        self._texts = texts

    def message(self, record: logging.LogRecord) -> str:
        """What a record says."""
        text = record.getMessage()
        return first_words(text) if record.name == "asyncio" and not self._texts else text

    def exception(self, record: logging.LogRecord) -> str | None:
        """The traceback of a record, where it has one."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return None
        return self.formatException(record.exc_info) if self._texts and record.exc_info else redacted_traceback(error)

    def ids(self) -> Mapping[str, str]:
        """What the record belongs to. A record is written where it is made, so this task is the one it tells of."""
        about = dict(current_log_context())
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            about["trace_id"] = trace.format_trace_id(span.trace_id)
        return about


class TextFormatter(ContextFormatter):
    """A line for people: level, logger, message, and in brackets the ids that the message does not name already."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the traceback below it."""
        text = self.message(record)
        about = self.ids()
        shown = [
            f"{name}={_one_line(about[name])}"
            for name in LOG_CONTEXT_KEYS
            if name in about and not (name in _NAMED and about[name] in text)
        ]
        line = f"{record.levelname} {record.name}: {text}" + (f" [{' '.join(shown)}]" if shown else "")
        exception = self.exception(record)
        return line if exception is None else f"{line}\n{exception}"


class JsonFormatter(ContextFormatter):
    """A JSON object: time, level, logger, message, the ids, figures of the record, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The object, on one line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
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
