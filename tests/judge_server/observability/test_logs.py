"""The format of log records: readable text or one JSON object a line, with ids and without texts."""

import asyncio
import gc
import json
import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError

from judge_server.observability.logs import (
    EXTRA_FIELDS,
    JsonFormatter,
    TextFormatter,
    bind_log_context,
    current_log_context,
    describe_error,
    first_words,
    log_context,
    redacted_traceback,
    safe_id,
)
from tests.hypothesis_examples import examples
from tests.judge_server.observability.captured import CapturedLogs

CANARY = "the-policy-wrote-this"
log = logging.getLogger("adjudge.tests")


def record(message: str, *, error: BaseException | None = None, name: str = "adjudge") -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord(name, logging.WARNING, "file.py", 1, message, (), info)


def raised(error: Exception, of: Exception | None = None) -> Exception:
    """The error as raised, with another one as its cause if given."""
    try:
        if of is None:
            raise error
        raise error from of
    except Exception as caught:  # noqa: BLE001
        return caught


def test_a_text_line_without_context_has_only_level_logger_and_message() -> None:
    assert TextFormatter().format(record("all is well")) == "WARNING adjudge: all is well"


def test_ids_follow_the_message_unless_it_names_them() -> None:
    with log_context(request_id="req_1", operation_id="op-2", chunk="0", project="p"):
        bind_log_context(run="r", project=None)
        line = TextFormatter().format(record("request req_1 failed 10 times"))
    assert line == "WARNING adjudge: request req_1 failed 10 times [operation_id=op-2 chunk=0 project=p run=r]"


def test_a_run_name_cannot_begin_a_new_line() -> None:
    with log_context(run="r\nERROR adjudge: all is lost\x1b[31m\u2028"):
        assert len(TextFormatter().format(record("so")).splitlines()) == 1
        assert len(JsonFormatter().format(record("so\nand so")).splitlines()) == 1


def test_json_has_time_level_logger_message_ids_and_figures() -> None:
    made = record("done")
    setattr(made, EXTRA_FIELDS, {"ms": 1.5})
    made.created = 1_700_000_000.25
    with log_context(request_id="req_1", run="é"):
        assert json.loads(JsonFormatter().format(made)) == {
            "time": "2023-11-14T22:13:20.250Z",
            "level": "warning",
            "logger": "adjudge",
            "message": "done",
            "request_id": "req_1",
            "run": "é",
            "ms": 1.5,
        }


async def test_bound_context_reaches_tasks_already_started_and_does_not_leak(lines: CapturedLogs) -> None:
    go_on = asyncio.Event()

    async def later() -> None:
        await go_on.wait()
        log.info("later")

    with log_context(request_id="req_1"):
        task = asyncio.create_task(later())
        await asyncio.sleep(0)
        bind_log_context(run="r")
    log.info("outside")
    bind_log_context(run="nowhere")
    assert current_log_context() == {}
    go_on.set()
    await task
    outside, inside = lines.objects
    assert "request_id" not in outside
    assert (inside["message"], inside["request_id"], inside["run"]) == ("later", "req_1", "r")


@pytest.mark.parametrize("given", [None, "", "a b", "a\n", "ä", "x" * 129, "a;b"])
def test_an_unsafe_id_is_dropped(given: str | None) -> None:
    assert safe_id(given) is None
    assert safe_id("op-1.0_a") == "op-1.0_a"


@given(st.text(min_size=4).map(lambda words: f"<{words}>"))
@settings(max_examples=examples(50))
def test_no_exception_is_shown_with_its_message_however_it_was_raised(words: str) -> None:
    whole = raised(KeyError(words), raised(ValueError(words)))
    group = raised(ExceptionGroup(words, [whole, RuntimeError(words)]))
    group.__cause__ = None
    for form in (TextFormatter(), JsonFormatter()):
        written = form.format(record("it broke", error=group))
        assert words not in written
        assert json.dumps(words)[1:-1] not in written
    assert all(
        kind in redacted_traceback(group) for kind in ("ExceptionGroup", "KeyError", "ValueError", "RuntimeError")
    )


def test_a_traceback_shows_where_the_error_was_raised_and_its_cause() -> None:
    shown = redacted_traceback(raised(ValueError("a"), raised(OSError(28, "No space left on device"))))
    assert f'File "{Path(__file__)}"' in shown
    assert shown.index("OSError: No space left on device") < shown.index("The above exception was the direct cause")
    assert shown.endswith("\nValueError")


def test_messages_are_shown_where_the_settings_allow_it() -> None:
    error = raised(ValueError(CANARY))
    for form in (TextFormatter(texts=True), JsonFormatter(texts=True)):
        assert f"ValueError: {CANARY}" in form.format(record("it broke", error=error))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError(CANARY), "ValueError"),
        (ConnectionError("no route to the database"), "ConnectionError: no route to the database"),
        (ConnectionRefusedError(111, "Connection refused"), "ConnectionRefusedError: Connection refused"),
        (FileNotFoundError(2, "No such file or directory", CANARY), "FileNotFoundError: No such file or directory"),
        (OSError(CANARY), "OSError"),
        (json.JSONDecodeError(CANARY, CANARY, 0), "json.decoder.JSONDecodeError"),
    ],
)
def test_a_described_error_is_its_type_and_a_message_only_where_that_quotes_nothing(
    error: Exception, said: str
) -> None:
    assert describe_error(error) == said


def test_an_error_of_the_database_shows_no_value() -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (a TEXT UNIQUE)"))
        connection.execute(text("INSERT INTO t VALUES (:a)"), {"a": CANARY})
        with pytest.raises(IntegrityError) as caught:
            connection.execute(text("INSERT INTO t VALUES (:a)"), {"a": CANARY})
    assert CANARY in str(caught.value)
    assert describe_error(caught.value) == "sqlalchemy.exc.IntegrityError of sqlite3.IntegrityError"


async def test_a_task_that_was_never_awaited_fails_without_its_message(lines: CapturedLogs) -> None:
    async def broken() -> None:
        raise ValueError(CANARY)

    task = asyncio.create_task(broken())
    await asyncio.wait([task])
    del task
    gc.collect()
    (line,) = lines.of("asyncio")
    assert line["message"] == "Task exception was never retrieved"
    assert line["exception"].endswith("ValueError")
    assert CANARY not in lines.whole


def test_a_failed_callback_is_shown_without_its_arguments() -> None:
    assert (
        first_words(f"Exception in callback f('{CANARY}')\nhandle: <Handle f('{CANARY}')>") == "Exception in callback f"
    )
