"""What a browser sends to the console: form fields, uploads and query parameters."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect, Request

from judge_server.api.http.responses import ClientDisconnected
from judge_server.errors import InvalidRequest, TooLarge, UnsupportedMediaType
from judge_server.time_sharing import run_inline_or_in_thread
from trainer_client.text.pieces import PIECE

MAX_FORM_BYTES = 4 * 2**20
"""The size of a form with texts or a file."""

_MAX_FIELDS = 2000
_MAX_PARTS = 100
"""Fields and files of a `multipart/form-data` form, which only the pages that take a file send."""

_MAX_CONTENT_TYPE = 256
_MAX_PART_HEADERS, _MAX_PART_HEADER_BYTES = 8, 1024
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
    boundary = _boundary_of(request.headers.get("content-type", ""), with_file)
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
    if boundary is None:
        return await run_inline_or_in_thread(large, _parse_urlencoded, body)
    return await run_inline_or_in_thread(large, _parse_multipart, body, boundary)


def _boundary_of(content_type: str, with_file: bool) -> bytes | None:
    """The boundary of a `multipart/form-data` form; None for a form without a file."""
    kind = content_type[:_MAX_CONTENT_TYPE].partition(";")[0].strip().lower()
    if kind in ("", "application/x-www-form-urlencoded") and len(content_type) <= _MAX_CONTENT_TYPE:
        return None
    if kind != "multipart/form-data" or not with_file or len(content_type) > _MAX_CONTENT_TYPE:
        wanted = "multipart/form-data or " if with_file else ""
        raise UnsupportedMediaType(
            f"This form takes {wanted}application/x-www-form-urlencoded in a header of at most {_MAX_CONTENT_TYPE} "
            f"characters, not {content_type[:100]!r}."
        )
    from python_multipart.multipart import parse_options_header  # only the pages that take a file need it

    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not boundary:
        raise InvalidRequest("Content-Type: multipart/form-data needs a boundary.")
    return boundary


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


def _parse_multipart(body: bytes, boundary: bytes) -> Form:
    from python_multipart import MultipartParser
    from python_multipart.exceptions import FormParserError

    parts = _Parts()
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": parts.begin,
                "on_header_field": parts.add_name,
                "on_header_value": parts.add_value,
                "on_header_end": parts.end_header,
                "on_part_data": parts.add_content,
                "on_part_end": parts.end,
                "on_end": parts.finish,
            },
            max_header_count=_MAX_PART_HEADERS,
            max_header_size=_MAX_PART_HEADER_BYTES,
        )
        parser.write(body)
    except FormParserError as error:
        raise InvalidRequest(f"The form is not valid multipart/form-data: {error}") from None
    if body and not parts.complete:
        raise InvalidRequest("The form is incomplete: its last boundary is missing.")
    return Form(parts.fields, parts.files)


class _Parts:
    """Collects the parts of a `multipart/form-data` form, as its parser finds them."""

    def __init__(self) -> None:
        self.fields: dict[str, list[str]] = {}
        self.files: dict[str, UploadedFile] = {}
        self.complete = False
        self._count = 0
        self._name, self._value, self._disposition = b"", b"", b""
        self._content: list[bytes] = []

    def begin(self) -> None:
        """Begin a part."""
        self._count += 1
        if self._count > _MAX_PARTS:
            raise InvalidRequest(f"The form has more than {_MAX_PARTS} fields.")
        self._disposition, self._content = b"", []

    def add_name(self, data: bytes, start: int, end: int) -> None:
        """Add to the name of a header of the part."""
        self._name += data[start:end]

    def add_value(self, data: bytes, start: int, end: int) -> None:
        """Add to the value of a header of the part."""
        self._value += data[start:end]

    def end_header(self) -> None:
        """Keep the header that names the field."""
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def add_content(self, data: bytes, start: int, end: int) -> None:
        """Add to the content of the part."""
        self._content.append(data[start:end])

    def end(self) -> None:
        """Keep the part as a field or a file; one without a name is left out."""
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(self._disposition)
        name, file_name, content = options.get(b"name"), options.get(b"filename"), b"".join(self._content)
        if name is None:
            return
        if file_name is None:
            self.fields.setdefault(name.decode("utf-8", "replace"), []).append(content.decode("utf-8", "replace"))
        elif file_name or content:
            file = UploadedFile(file_name.decode("utf-8", "replace"), content)
            self.files[name.decode("utf-8", "replace")] = file

    def finish(self) -> None:
        """Note that the last boundary was read."""
        self.complete = True


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
