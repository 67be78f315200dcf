"""What a browser sends to the console: form fields, uploads and query parameters."""

from collections.abc import Mapping, Sequence
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP
from typing import NamedTuple
from urllib.parse import parse_qs

from starlette.requests import Request

from judge_server.errors import InvalidRequest, TooLarge
from judge_server.time_sharing import run_in_thread

MAX_FORM_BYTES = 4 * 2**20
"""The size of a form with texts or a file."""

_MAX_FIELDS = 2000
_INLINE_BYTES = 16 * 1024
"""A form of up to this size is read on the event loop, which takes less than a millisecond."""


class UploadedFile(NamedTuple):
    """A file of a form."""

    name: str
    content: bytes


class Form:
    """The fields of a form, each with its values in the order sent, and its files."""

    def __init__(self, fields: Mapping[str, Sequence[str]], files: Mapping[str, UploadedFile] | None = None) -> None:
        self._fields, self._files = fields, files or {}

    def text(self, name: str) -> str:
        """The last value of a field, with line ends as `\\n`; empty if it was not sent."""
        values = self._fields.get(name)
        return values[-1].replace("\r\n", "\n") if values else ""

    def texts(self, name: str) -> list[str]:
        """All values of a field."""
        return [value.replace("\r\n", "\n") for value in self._fields.get(name, ())]

    def file(self, name: str) -> UploadedFile | None:
        """The file of a field; None if none was chosen."""
        return self._files.get(name)


async def read_form(request: Request, max_bytes: int = MAX_FORM_BYTES) -> Form:
    """Read a submitted form, `application/x-www-form-urlencoded` or `multipart/form-data`.

    Raises:
        TooLarge: the form has more than `max_bytes`.
        InvalidRequest: it has too many fields, or cannot be read.
    """
    parts: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise TooLarge(f"the form is larger than the {max_bytes:,} bytes allowed; send shorter texts")
        parts.append(chunk)
    body, kind = b"".join(parts), request.headers.get("content-type", "")
    if size <= _INLINE_BYTES:
        return _parsed(body, kind)
    return await run_in_thread(_parsed, body, kind)


def _parsed(body: bytes, kind: str) -> Form:
    if kind.partition(";")[0].strip().lower() == "multipart/form-data":
        return _parse_multipart(body, kind)
    try:
        return Form(parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError:
        raise InvalidRequest(f"The form has more than {_MAX_FIELDS:,} fields.") from None


def _parse_multipart(body: bytes, kind: str) -> Form:
    message = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + kind.encode("latin-1") + b"\r\n\r\n" + body)
    fields: dict[str, list[str]] = {}
    files: dict[str, UploadedFile] = {}
    parts = message.get_payload() if message.is_multipart() else []
    if not isinstance(parts, list) or len(parts) > _MAX_FIELDS:
        raise InvalidRequest(f"The form has more than {_MAX_FIELDS:,} fields, or is incomplete.")
    for part in parts:
        assert isinstance(part, Message)
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if not isinstance(name, str) or not isinstance(content, bytes):
            continue
        file_name = part.get_filename()
        if file_name is None:
            fields.setdefault(name, []).append(content.decode("utf-8", "replace"))
        elif file_name or content:
            files[name] = UploadedFile(file_name, content)
    return Form(fields, files)


_MAX_STEP = 2**63 - 1
_MAX_CHARACTERS = 2000


def text_parameter(request: Request, name: str) -> str:
    """A text without white space around it; empty if it is not given."""
    value = request.query_params.get(name, "")
    if len(value) > _MAX_CHARACTERS:
        raise InvalidRequest(f"{name}: at most {_MAX_CHARACTERS:,} characters are allowed")
    return value.strip()


def int_parameter(request: Request, name: str) -> int | None:
    """A whole number of 0 or more; None if it is not given."""
    value = text_parameter(request, name)
    if not value:
        return None
    if not (value.isascii() and value.isdecimal()) or len(value) > 19 or int(value) > _MAX_STEP:
        raise InvalidRequest(f"{name}: {value[:40]!r} is not a whole number of 0 or more")
    return int(value)


def float_parameter(request: Request, name: str) -> float | None:
    """A finite number; None if it is not given."""
    value = text_parameter(request, name)
    try:
        number = float(value) if value else None
    except ValueError:
        number = float("nan")
    if number is not None and not abs(number) < float("inf"):
        raise InvalidRequest(f"{name}: {value[:40]!r} is not a number, such as 0.5")
    return number


def choice_parameter(request: Request, name: str, choices: tuple[str, ...]) -> str | None:
    """One of some values; None if it is not given."""
    value = text_parameter(request, name)
    if value and value not in choices:
        raise InvalidRequest(f"{name}: {value[:40]!r} is unknown; use one of {', '.join(choices)}")
    return value or None


def run_parameter(request: Request) -> str:
    """The name of a run; empty for requests without one."""
    run = request.query_params.get("run")
    if run is None or len(run) > 256:
        raise InvalidRequest("run: name the run, as the list of runs does; its name has at most 256 characters")
    return run


def step_parameters(request: Request) -> tuple[int | None, int | None]:
    """The first and the last step that a page is about; None for no limit."""
    first, last = int_parameter(request, "first"), int_parameter(request, "last")
    if first is not None and last is not None and first > last:
        raise InvalidRequest(f"last: step {last} is before the first step, {first}")
    return first, last
