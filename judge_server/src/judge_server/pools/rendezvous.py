"""Which of several names a key belongs to, by rendezvous (highest random weight) hashing. A pure function.

Every process ranks alike, without asking another. A name that comes or goes moves only the keys that are its own.
"""

import hashlib
from collections.abc import Sequence


def key_of(text: str) -> bytes:
    """The key of a text, 16 bytes. What one member is to have asked of it has one text, and so one key."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def ranked(key: bytes, names: Sequence[str]) -> list[str]:
    """The names, the one that the key belongs to first, then those that stand in for it, in turn.

    Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """
    start = hashlib.blake2b(len(key).to_bytes(8, "big") + key, digest_size=16)

    def weight(name: str) -> bytes:
        weighed = start.copy()
        weighed.update(name.encode())
        return weighed.digest()

    return sorted(names, key=weight, reverse=True)
