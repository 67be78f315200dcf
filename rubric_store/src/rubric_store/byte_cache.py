"""A cache bounded by bytes that evicts the least recently used entry first."""

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from threading import Lock
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_ENTRY_BYTES = 200
"""The approximate overhead of an entry, in bytes."""


def size_of(value: Any) -> int:
    """Estimate the size of a value in bytes, including nested containers and the fields of models.

    An object that occurs twice counts twice.
    """
    size = 0
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        size += sys.getsizeof(item)
        if item is None or isinstance(item, str | bytes | int | float | type):
            continue
        if isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            stack += item
        else:
            stack += [getattr(item, field) for field in _fields(item)]
    return size


def _fields(value: Any) -> Iterable[str]:
    return getattr(type(value), "__dataclass_fields__", None) or getattr(value, "__dict__", None) or ()


class ByteCache(Generic[K, V]):
    """A thread-safe least-recently-used cache of at most `max_bytes`. An entry above an eighth of that is not kept.

    Args:
        max_bytes: the maximum size of all keys and values, as measured by `size`.
        size: returns the size of a key and its value in bytes; defaults to `size_of` of both.
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
        """Return the cached value of a key, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V) -> None:
        """Cache a value, replacing that of the same key."""
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
        """Return the cached value of a key, or create it with `make` and cache it."""
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def _evict(self, key: K) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry[1]
