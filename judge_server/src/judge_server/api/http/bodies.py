"""Read a request body: parse it as strict JSON, refuse too many values, and validate it as the route's message.

`read_in_worker` does all of it in a worker process, because parsing and validating in C hold the interpreter lock, and
a body of tens of megabytes would stop the service for a second. The message comes back in pieces (`assemble`), so that
creating it lets other threads run in between. Workers import this module, so it imports nothing of the HTTP API.
"""

import pickle
import resource
import signal
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from judge_server.errors import InvalidRequest, TooLarge, invalid_request
from trainer_client.wire import FieldError
from trainer_client.wire.base import NotStrictJsonError, strict_json
from trainer_client.wire.problems import field_errors

MAX_VALUES = 1_000_000
"""The maximum number of entries in all lists and objects of a body together."""

_SCAN_BLOCK_BYTES = 2**20
_ITEMS_PER_PIECE = 256
"""Items of a list of plain values that are pickled together; a message in a list is a piece of its own."""


class MessageType(NamedTuple):
    """The type of a route's body: its annotation and, for a union, the field that tells its members apart."""

    annotation: Any
    discriminator: str | None = None


class ReadBody(NamedTuple):
    """What a worker returns: the message in pieces, or why the body is refused, as a class and its arguments."""

    pieces: Sequence[bytes] = ()
    refusal: tuple[type[InvalidRequest] | type[TooLarge], str, tuple[FieldError, ...]] | None = None


def parse_strict_json(body: bytes) -> Any:
    """Parse a body as strict JSON.

    Raises:
        InvalidRequest: the body is not JSON in UTF-8; the error says where, and names the field of an invalid number.
        TooLarge: the body has more than `MAX_VALUES` values.
    """
    refuse_many_values(body)
    try:
        return strict_json(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        message, field = f"not UTF-8 at byte {error.start}; encode the body as UTF-8", ""
    except NotStrictJsonError as error:
        message, field = str(error), error.field
    raise invalid_request((FieldError(field=field, message=message),))


def validated(value: Any, kind: MessageType) -> Any:
    """Validate parsed JSON as a message; raises `InvalidRequest`, which names the fields."""
    try:
        return _adapter(kind).validate_python(value, from_attributes=True)
    except ValidationError as error:
        raise invalid_request(field_errors(error.errors(include_url=False), kind.annotation)) from None


def read_in_worker(body: bytes, kind: MessageType) -> ReadBody:
    """Parse and validate a body in a worker process."""
    try:
        return ReadBody(tuple(_pieces(validated(parse_strict_json(body), kind))))
    except (InvalidRequest, TooLarge) as error:
        return ReadBody(refusal=(type(error), error.detail, error.errors))
    except RecursionError:
        refused = invalid_request((FieldError(field="", message="this is nested too deeply; flatten it"),))
        return ReadBody(refusal=(InvalidRequest, refused.detail, refused.errors))
    except MemoryError:
        return ReadBody(refusal=(TooLarge, "the body takes too much memory to read; send fewer groups at once", ()))


def assemble(pieces: Sequence[bytes]) -> Any:
    """Create the message of which a worker returned these pieces."""
    kind, state, fields = pickle.loads(pieces[0])  # our own worker wrote it # noqa: S301 # nosec B301
    at = 1
    for name, (container, count) in fields.items():
        own = pieces[at : at + count]
        state["__dict__"][name] = assemble(own) if container is None else container(_items(own))
        at += count
    message = kind.__new__(kind)
    message.__setstate__(state)
    return message


def _items(pieces: Sequence[bytes]) -> Iterator[Any]:
    for piece in pieces:
        yield from pickle.loads(piece)  # our own worker wrote it # noqa: S301 # nosec B301


def init_worker(memory_mb: int) -> None:
    """Set up a worker process: limit its memory, and let signals end it at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20, memory_mb * 2**20))


@lru_cache(maxsize=32)
def _adapter(kind: MessageType) -> TypeAdapter[Any]:
    if kind.discriminator is None:
        return TypeAdapter(kind.annotation)
    told_apart: Any = Annotated[kind.annotation, Field(discriminator=kind.discriminator)]
    return TypeAdapter(told_apart)


def _pieces(message: BaseModel) -> Iterator[bytes]:
    """Pickle a message in pieces: first everything but its lists and messages, then the items and pieces of these."""
    state = message.__getstate__()
    values = dict(state["__dict__"])
    fields: dict[str, tuple[type | None, int]] = {}
    rest: list[bytes] = []
    for name, value in values.items():
        if isinstance(value, tuple | list) and len(value) > 1:
            step = 1 if isinstance(value[0], BaseModel) else _ITEMS_PER_PIECE
            own = [pickle.dumps(value[start : start + step], 5) for start in range(0, len(value), step)]
            fields[name] = type(value), len(own)
        elif isinstance(value, BaseModel):
            own = [*_pieces(value)]
            fields[name] = None, len(own)
        else:
            continue
        rest += own
        values[name] = None
    yield pickle.dumps((type(message), {**state, "__dict__": values}, fields), 5)
    yield from rest


def refuse_many_values(body: bytes) -> None:
    """Raise `TooLarge` for JSON with too many commas outside of strings.

    All commas are counted first, which is fast; strings are skipped only if that count is too high.
    """
    if len(body) <= MAX_VALUES or _count_commas(body, 0, len(body)) <= MAX_VALUES:
        return
    commas = at = 0
    while at < len(body):
        opening = body.find(b'"', at)
        commas += _count_commas(body, at, len(body) if opening < 0 else opening)
        if commas > MAX_VALUES:
            raise TooLarge(
                f"the body has more than {MAX_VALUES:,} values (strings, numbers, objects and so on); send fewer "
                "groups at once"
            )
        at = len(body) if opening < 0 else _end_of_string(body, opening)


def _count_commas(body: bytes, start: int, end: int) -> int:
    return sum(body.count(b",", at, min(at + _SCAN_BLOCK_BYTES, end)) for at in range(start, end, _SCAN_BLOCK_BYTES))


def _end_of_string(body: bytes, opening: int) -> int:
    """The index behind the closing quote of the string that opens at `opening`."""
    closing = opening
    while (closing := body.find(b'"', closing + 1)) >= 0:
        backslashes = closing
        while body[backslashes - 1] == 0x5C:
            backslashes -= 1
        if (closing - backslashes) % 2 == 0:
            return closing + 1
    return len(body)
