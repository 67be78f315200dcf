"""Forms that browsers encode are read as they were filled in."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from judge_server.api.console.forms import Form, read_form
from judge_server.errors import InvalidRequest, ServiceError, TooLarge, UnsupportedMediaType
from tests.growth import assert_linear
from trainer_client.text.pieces import PIECE

names = st.text("abcdefg_", min_size=1, max_size=8)
texts = st.text(st.characters(codec="utf-8"), max_size=60)
fields = st.dictionaries(names, st.lists(texts, min_size=1, max_size=3), max_size=4)


def read(encoded: httpx2.Request, **options: Any) -> Form:
    """Read the form of a request that arrives in pieces."""
    body, pieces = encoded.read(), iter(range(10))

    async def receive() -> dict[str, Any]:
        n = next(pieces)
        part = body[n * len(body) // 8 : (n + 1) * len(body) // 8]
        return {"type": "http.request", "body": part, "more_body": n < 7}

    headers = [(b"content-type", encoded.headers["content-type"].encode())]
    return asyncio.run(read_form(Request({"type": "http", "headers": headers}, receive), **options))


def expected(value: str) -> str:
    """The text that a field returns, with line feeds as line ends and U+FFFD for NUL."""
    return value.replace("\r\n", "\n").replace("\0", "\ufffd")


@given(fields)
def test_the_fields_of_a_form_are_read(given: dict[str, list[str]]) -> None:
    form = read(httpx2.Request("POST", "http://a", data=given or {"token": "x"}))
    for name, values in given.items():
        assert form.texts(name) == [expected(value) for value in values]
        assert form.text(name) == expected(values[-1])
    assert (form.text("missing"), form.texts("missing"), form.file("missing")) == ("", [], None)


@given(st.integers(-12, 12), st.text("é%+ab世\U0001f600", max_size=20))
def test_a_long_value_is_read_whatever_stands_where_it_is_cut(shift: int, text: str) -> None:
    value = "a" * (PIECE + shift - len("token=")) + text * 3 + "a" * PIECE
    assert read(httpx2.Request("POST", "http://a", data={"token": value})).text("token") == value


@pytest.mark.parametrize("body", [b"a=%&b=%4&c=%zz", b"=&a&&b==c", b"a=%FF%C3&a=\xff", b"+=+%2B"])
def test_a_badly_encoded_form_is_read_as_the_standard_library_reads_it(body: bytes) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    form = read(httpx2.Request("POST", "http://a", content=body, headers=headers))
    for name, values in parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True).items():
        assert form.texts(name) == values


@given(fields, st.text("abc .-é", max_size=12).map("a{}z".format), st.binary(max_size=200))
def test_fields_and_files_of_a_multipart_form_are_read(
    given: dict[str, list[str]], file_name: str, content: bytes
) -> None:
    encoded = httpx2.Request("POST", "http://a", data=given, files={"file": (file_name, content)})
    form = read(encoded, with_file=True)
    for name, values in given.items():
        assert form.texts(name) == [expected(value) for value in values]
    file = form.file("file")
    assert file is not None
    assert (file.name, file.content) == (file_name, content)


@given(st.binary(max_size=200), st.sampled_from(["multipart/form-data; boundary=b", "multipart/form-data", "text/x"]))
def test_a_malformed_form_is_refused_or_has_no_file(body: bytes, kind: str) -> None:
    with suppress(InvalidRequest, UnsupportedMediaType):
        form = read(httpx2.Request("POST", "http://a", content=body, headers={"content-type": kind}), with_file=True)
        assert form.file("file") is None


def test_a_form_that_is_too_large_is_refused() -> None:
    encoded = httpx2.Request("POST", "http://a", data={"text": "x" * 2000})
    with pytest.raises(TooLarge, match="1,000 bytes"):
        read(encoded, max_bytes=1000)
    many = httpx2.Request("POST", "http://a", data={"x": ["y"] * 3000})
    with pytest.raises(InvalidRequest, match="fields"):
        read(many)


KINDS = (
    "multipart/form-data" + ";" * 60_000,
    "multipart/form-data; boundary=" + "(" * 60_000,
    ";" * 60_000,
    "(" * 60_000,
)


@pytest.mark.parametrize("kind", [*KINDS, "text/plain", "multipart/form-data"], ids=lambda kind: kind[:40])
def test_a_content_type_that_no_form_has_is_refused_before_the_body_is_read(kind: str) -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    for with_file in (False, True):
        request = Request({"type": "http", "headers": [(b"content-type", kind.encode())]}, receive)
        with pytest.raises((UnsupportedMediaType, InvalidRequest)):
            asyncio.run(read_form(request, with_file=with_file))


def part(name: str, *headers: bytes, content: bytes = b"x") -> bytes:
    """A part of a form with the boundary `b`."""
    head = f'Content-Disposition: form-data; name="{name}"'.encode()
    return b"\r\n".join([b"--b", head, *headers, b"", content, b""])


@pytest.mark.parametrize(
    "body",
    [
        part("a" * 5000) + b"--b--\r\n",
        part("a", *[b"X: y"] * 20) + b"--b--\r\n",
        part("a", b"X: " + b";" * 5000) + b"--b--\r\n",
        part("a") * 101 + b"--b--\r\n",
        part("a"),
        b"nothing",
    ],
    ids=["long name", "many headers", "long header", "many parts", "no end", "no part"],
)
def test_the_heads_of_parts_count_against_limits(body: bytes) -> None:
    headers = {"content-type": "multipart/form-data; boundary=b"}
    with pytest.raises(InvalidRequest):
        read(httpx2.Request("POST", "http://a", content=body, headers=headers), with_file=True)


UNITS = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n-",
    b"\r\n--",
    b"--b",
    b"\r\n--bb",
    b";",
    b'"',
    b"\\",
    b"%",
    b"%4",
    b"&",
    b"=",
    b"+",
]


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=b", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_reading_a_form_takes_time_linear_in_its_size(kind: str, unit: bytes) -> None:
    def work(size: int) -> Callable[[], None]:
        begin, end = (part("a")[:-1], b"\r\n--b--\r\n") if "multipart" in kind else (b"a=", b"")
        body = begin + unit * (size // len(unit)) + end
        encoded = httpx2.Request("POST", "http://a", content=body, headers={"content-type": kind})

        def call() -> None:
            with suppress(ServiceError):
                read(encoded, with_file=True)

        return call

    assert_linear(work, 2**18)
