"""Forms that a browser submits: their fields, the files in them, and how large they may be."""

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
