"""A prefix cache without a model: how many tokens of a prompt an engine that forgets nothing would have to compute.

Counted as vLLM does it: in whole blocks of 16 tokens, here of four characters each, shared as soon as the prompt that
brought them has come.
"""

CHARACTERS = 4
BLOCK = 16 * CHARACTERS


class PrefixCache:
    """Every block that was seen, under all that stood before it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], int] = {}

    def read(self, prompt: str) -> tuple[int, int]:
        """Take a prompt in: its tokens, and how many of them were known from earlier prompts."""
        seen, node, known = self._seen, 0, 0
        whole = len(prompt) // BLOCK * BLOCK
        for start in range(0, whole, BLOCK):
            key = (node, prompt[start : start + BLOCK])
            found = seen.get(key)
            if found is None:
                found = seen[key] = len(seen) + 1
            else:
                known += BLOCK
            node = found
        return len(prompt) // CHARACTERS, known // CHARACTERS

    def forget(self) -> None:
        """As a server that starts again."""
        self._seen.clear()
