"""The forms that a browser sends to the console: fields and uploads."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from judge_server.api.http.responses import ClientDisconnected
from judge_server.errors import InvalidRequest, TooLarge, UnsupportedMediaType
from judge_server.scheduling.time_sharing import run_in_thread, run_inline_or_in_thread
from trainer_client.text.pieces import PIECE

MAX_FORM_BYTES = 4 * 2**20
"""The size of a form with texts or a file."""

_MAX_FIELDS = 2000
_MAX_PARTS = 100
"""Fields and files of a `multipart/form-data` form, which only the pages that take a file send."""

_MAX_CONTENT_TYPE = 256
_INLINE_BYTES = 4 * 1024
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
        """The last value of a field; empty if it was not sent."""
        values = self.texts(name)
        return values[-1] if values else ""

    def texts(self, name: str) -> list[str]:
        """All values of a field, with line ends as `\\n` and U+FFFD for NUL, which no database stores."""
        return [value.replace("\r\n", "\n").replace("\0", "\ufffd") for value in self._fields.get(name, ())]

    def file(self, name: str) -> UploadedFile | None:
        """The file of a field; None if none was chosen."""
        return self._files.get(name)


async def read_form(request: Request, max_bytes: int = MAX_FORM_BYTES, *, with_file: bool = False) -> Form:
    """Read a submitted form: `application/x-www-form-urlencoded`, or `multipart/form-data` where it may have a file.

    The `Content-Type` is checked before anything of the body is read.

    Raises:
        UnsupportedMediaType: the form has another `Content-Type`.
        TooLarge: the form has more than `max_bytes`.
        InvalidRequest: it has too many fields, or cannot be read.
        ClientDisconnected: the browser disconnected before the form was complete.
    """
    content_type = request.headers.get("content-type", "")
    is_multipart = _is_multipart(content_type, with_file)
    parts: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                raise TooLarge(f"the form is larger than the {max_bytes:,} bytes allowed; send shorter texts")
            parts.append(chunk)
    except ClientDisconnect:
        raise ClientDisconnected from None
    body, large = b"".join(parts), size > _INLINE_BYTES
    if is_multipart:
        return await run_in_thread(_parse_multipart, body, content_type)
    return await run_inline_or_in_thread(large, _parse_urlencoded, body)


def _is_multipart(content_type: str, with_file: bool) -> bool:
    """Whether a form is `multipart/form-data`; any but this and a form without a file is refused."""
    kind = content_type[:_MAX_CONTENT_TYPE].partition(";")[0].strip().lower()
    if kind in ("", "application/x-www-form-urlencoded") and len(content_type) <= _MAX_CONTENT_TYPE:
        return False
    if kind != "multipart/form-data" or not with_file or len(content_type) > _MAX_CONTENT_TYPE:
        wanted = "multipart/form-data or " if with_file else ""
        raise UnsupportedMediaType(
            f"This form takes {wanted}application/x-www-form-urlencoded in a header of at most {_MAX_CONTENT_TYPE} "
            f"characters, not {content_type[:100]!r}."
        )
    if not parse_options_header(content_type)[1].get(b"boundary"):
        raise InvalidRequest("Content-Type: multipart/form-data needs a boundary.")
    return True


def _parse_urlencoded(body: bytes) -> Form:
    """Like `urllib.parse.parse_qs`, which keeps all other threads waiting while it decodes a long value."""
    pairs = body.split(b"&", _MAX_FIELDS)
    if len(pairs) > _MAX_FIELDS:
        raise InvalidRequest(f"The form has more than {_MAX_FIELDS:,} fields.")
    fields: dict[str, list[str]] = {}
    for pair in filter(None, pairs):
        name, _, value = pair.partition(b"=")
        fields.setdefault(_unquoted(name), []).append(_unquoted(value))
    return Form(fields)


def _unquoted(text: bytes) -> str:
    text, found, begin = text.replace(b"+", b" "), list[bytes](), 0
    while begin < len(text):
        end = begin + PIECE
        cut = text.rfind(b"%", end - 2, end)  # not in the middle of %C3
        end = end if cut == -1 else cut
        found.append(unquote_to_bytes(text[begin:end]))
        begin = end
    return b"".join(found).decode("utf-8", "replace")


def _parse_multipart(body: bytes, content_type: str) -> Form:
    async def whole() -> AsyncGenerator[bytes, None]:
        yield body

    headers = Headers({"content-type": content_type})
    parser = MultiPartParser(headers, whole(), max_files=_MAX_PARTS, max_fields=_MAX_PARTS, max_part_size=len(body))
    try:
        parts = asyncio.run(parser.parse())  # in a thread that has no event loop
    except MultiPartException as error:
        raise InvalidRequest(f"The form is not valid multipart/form-data: {error.message}") from None
    boundary = parse_options_header(content_type)[1][b"boundary"]
    if body and not body.rstrip().endswith(b"--" + boundary + b"--"):
        raise InvalidRequest("The form is incomplete: its last boundary is missing.")
    fields: dict[str, list[str]] = {}
    files: dict[str, UploadedFile] = {}
    for name, value in parts.multi_items():
        if isinstance(value, str):
            fields.setdefault(name, []).append(value)
        elif (content := value.file.read()) or value.filename:
            files[name] = UploadedFile(value.filename or "", content)
    return Form(fields, files)
