"""How log records are written: for people, or as JSON, one object a line; always with the ids of what they belong to.

Exceptions lose their messages on the way, which may quote texts: see `redaction`. Knows no setting and no stream.
"""

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from opentelemetry import trace

from judge_server.telemetry.about import LOG_CONTEXT_KEYS, current_log_context
from judge_server.telemetry.redaction import first_words, redacted_traceback

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
