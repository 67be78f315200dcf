"""A simulated prefix cache: how many tokens of a prompt an engine with unlimited cache would have to compute.

It counts as vLLM does: in whole blocks of 16 tokens, here of four characters each. A block is shared as soon as the
first prompt with it arrives.
"""

CHARACTERS = 4
BLOCK = 16 * CHARACTERS


class PrefixCache:
    """All blocks seen so far, each keyed by the blocks before it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], int] = {}

    def read(self, prompt: str) -> tuple[int, int]:
        """Add a prompt; return its number of tokens, and how many of them were cached."""
        seen, node, known = self._seen, 0, 0
        whole = len(prompt) // BLOCK * BLOCK
        for start in range(0, whole, BLOCK):
            key = (node, prompt[start : start + BLOCK])
            child = seen.get(key)
            if child is None:
                child = seen[key] = len(seen) + 1
            else:
                known += BLOCK
            node = child
        return len(prompt) // CHARACTERS, known // CHARACTERS

    def forget(self) -> None:
        """Clear the cache, like a restarted server."""
        self._seen.clear()
