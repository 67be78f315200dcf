"""A cache bounded by bytes, of what callers' texts made: what was not used for longest goes first."""

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from threading import Lock
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_ENTRY_BYTES = 200
"""About what an entry takes beside its key and its value."""


def size_of(value: Any) -> int:
    """About how many bytes a value takes: its texts, numbers and containers, and those of models, all the way down.

    What stands in it twice counts twice.
    """
    size = 0
    left: list[Any] = [value]
    while left:
        one = left.pop()
        size += sys.getsizeof(one)
        if one is None or isinstance(one, str | bytes | int | float | type):
            continue
        if isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            left += one
        else:
            left += [getattr(one, field) for field in _fields(one)]
    return size


def _fields(value: Any) -> Iterable[str]:
    return getattr(type(value), "__dataclass_fields__", None) or getattr(value, "__dict__", None) or ()


class ByteCache(Generic[K, V]):
    """Keeps what was used last, up to `most_bytes` together; a value larger than an eighth of that is not kept.

    Args:
        most_bytes: of keys and values, as `size` counts them.
        size: how many bytes a key and its value take.
    """

    def __init__(self, max_bytes: int, size: Callable[[K, V], int] | None = None) -> None:
        self._max_bytes = max_bytes
        self._size = size or (lambda key, value: size_of(key) + size_of(value))
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = Lock()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value kept for a key, None where none is."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V) -> None:
        """Keep a value, in place of the one there may be."""
        size = self._size(key, value) + _ENTRY_BYTES
        with self._lock:
            self._evict(key)
            if size > self._max_bytes // 8:
                return
            self._entries[key] = value, size
            self.bytes += size
            while self.bytes > self._max_bytes:
                self._evict(next(iter(self._entries)))

    def get_or_create(self, key: K, make: Callable[[], V]) -> V:
        """The value kept for a key, or else the one that `make` makes."""
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found

    def _evict(self, key: K) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self.bytes -= found[1]
