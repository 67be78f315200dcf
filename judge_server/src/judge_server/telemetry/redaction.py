"""What may be said of an error in a log: where it was raised and of what kind, and none of the words that it quotes.

Messages of exceptions quote what they complain of: a validator its input, a database the parameters of a statement,
a server the request it refuses. So only messages that are known to quote nothing are shown.
"""

import traceback
from collections.abc import Iterator
from typing import Any

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
    if type(error) is ConnectionError:  # ours: `rubric_store.reachable` and the queue say why in a line
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
