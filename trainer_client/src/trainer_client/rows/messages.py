"""Prompts and completions as the wire takes them: text, or messages of text.

A part that is not text, such as an image, is shown by its type, and told apart by its digest.
"""

import hashlib
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from trainer_client._inputs import to_plain_data

_CALLS_PER_MESSAGE = 128


class WireText(NamedTuple):
    """A text, or the fields of messages, and the digest of each part that is shown by its type only, as an image is."""

    value: str | list[dict[str, Any]]
    media: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A key that is equal for equal values, on every rank."""
        text = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return json.dumps([text, *self.media]) if self.media else text


def media_digest(given: object) -> str:
    """Hash an image, or another value that is no text; equal content has equal digests, on every rank."""
    hasher = hashlib.sha256()
    for piece in _media_pieces(given):
        hasher.update(len(piece).to_bytes(8, "big") + piece)
    return hasher.hexdigest()


def _media_pieces(given: Any) -> Iterator[bytes]:
    """Yield the content of a value: its nesting, and of images, arrays and tensors their form and elements."""
    if isinstance(given, bytes | bytearray | memoryview):
        yield bytes(given)
    elif isinstance(given, Mapping):
        present = sorted((str(key), value) for key, value in given.items() if value is not None)
        yield b"mapping %d" % len(present)
        for key, value in present:
            yield key.encode("utf-8", "surrogatepass")
            yield from _media_pieces(value)
    elif isinstance(given, list | tuple):
        yield b"sequence %d" % len(given)
        for item in given:
            yield from _media_pieces(item)
    elif given is None or isinstance(given, str | int | float):
        yield repr(given).encode("utf-8", "surrogatepass")
    elif hasattr(given, "detach"):  # a tensor
        yield from _media_pieces(given.detach().cpu().tolist())
    elif hasattr(given, "tobytes"):  # an image or an array
        form = [getattr(given, name, None) for name in ("mode", "size", "dtype", "shape")]
        yield repr(form).encode()
        yield given.tobytes()
    else:
        yield pickle.dumps(given)


def wire_text(given: object, *, padded: bool = False) -> WireText:
    """Read a prompt or a completion: text, or TRL's messages.

    Fields that the wire does not have are dropped, and so are None values, which Arrow adds to messages. A part that
    is not text becomes its type in brackets, such as `[image]`.

    Args:
        given: the prompt or the completion.
        padded: whether it comes from a dataset, where Arrow gives the arguments of each tool call those of all others,
            with the value None. A policy's own None stays.

    Raises:
        ValueError: the value is neither text nor messages.
    """
    if isinstance(given, str):
        return WireText(given)
    if not isinstance(given, Sequence) or not all(isinstance(message, Mapping) for message in given):
        raise ValueError(f"a value of type {type(given).__name__} is neither text nor a list of messages")
    messages: list[dict[str, Any]] = []
    media: list[str] = []
    for message in given:
        messages += _messages(message, _content(message.get("content"), media), padded=padded)
    return WireText(messages, tuple(media))


def _messages(given: Mapping[str, Any], content: str | None, *, padded: bool) -> Iterator[dict[str, Any]]:
    """Yield a message, followed by messages with the tool calls beyond the limit of one message."""
    message: dict[str, Any] = {"role": given.get("role")}
    thinking = given.get("reasoning_content") or given.get("thinking")
    given_calls = given.get("tool_calls")
    calls = (
        [_call(call, padded=padded) for call in given_calls if isinstance(call, Mapping)]
        if isinstance(given_calls, list | tuple)
        else []
    )
    if thinking:
        message["reasoning_content"] = str(thinking)
    if content is not None or not (thinking or calls):
        message["content"] = content or ""
    for key in ("tool_call_id", "name"):
        if given.get(key) is not None:
            message[key] = str(given[key])
    if calls:
        message["tool_calls"] = calls[:_CALLS_PER_MESSAGE]
    yield message
    for start in range(_CALLS_PER_MESSAGE, len(calls), _CALLS_PER_MESSAGE):
        yield {"role": given.get("role"), "tool_calls": calls[start : start + _CALLS_PER_MESSAGE]}


def _content(given: object, media: list[str]) -> str | None:
    """Return the text of a message's content, and add the digests of its other parts to `media`."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, Sequence):
        return _json(given)
    texts: list[str] = []
    for part in given:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str) and part.get("type", "text") == "text":
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, Mapping) else None
            texts.append(f"[{kind or type(part).__name__}]")
            media.append(media_digest(part))
    return "\n".join(texts)


def _call(given: Mapping[str, Any], *, padded: bool) -> dict[str, Any]:
    """Convert a tool call, with its arguments as text, since a policy's arguments may be invalid JSON."""
    function = given.get("function")
    named = function if isinstance(function, Mapping) else given
    arguments = named.get("arguments")
    if padded and not isinstance(arguments, str):
        arguments = to_plain_data(arguments)
    call: dict[str, Any] = {
        "function": {
            "name": str(named.get("name") or ""),
            "arguments": arguments if isinstance(arguments, str) else "" if arguments is None else _json(arguments),
        }
    }
    if given.get("id") is not None:
        call["id"] = str(given["id"])
    return call


def _json(given: object) -> str:
    try:
        return json.dumps(given, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(given)
