"""How alike texts are, word by word: ROUGE-L and Self-BLEU.

Words are runs of letters and digits of any script, without regard to case; nothing is stemmed. For languages that put
no space between words, and to compare tokens, give lists in place of texts.
"""

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence

Words = str | Sequence[Hashable]
"""A text, or its words or tokens as a list."""

_WORD = re.compile(r"\w+")


def rouge_l_f1(candidate: Words, reference: Words) -> float:
    """Compute ROUGE-L's F1, 2 P R / (P + R), P and R being the share of the longest common subsequence.

    DRO's lexical baseline (its section 5.1). F1 is 2 L / (m + n), in [0, 1]; 0 where a text has no words.

    Args:
        candidate: the response's final answer, m words.
        reference: the reference answer, n words.
    """
    own, other = _words(candidate), _words(reference)
    if not own or not other:
        return 0.0
    return 2.0 * _common_subsequence(own, other) / (len(own) + len(other))


def self_bleu(texts: Sequence[Words], *, max_n: int = 4) -> float:
    """Compute the mean BLEU of each text against all others; 1 less it is RuscaRL's diversity (appendix D.4).

    BLEU as of Papineni et al.: the geometric mean of the clipped precisions of 1- to `max_n`-grams, times the brevity
    penalty to the reference of the closest length, the shorter one of two. An order without any match counts 0.1
    matches, and an order longer than the text is left out (ours: the paper says neither). In [0, 1].

    Args:
        texts: N responses to one prompt, at least 2. One without words scores 0.
        max_n: the longest n-gram, at least 1.

    Raises:
        ValueError: fewer than 2 texts, or `max_n` below 1.
    """
    if len(texts) < 2:
        raise ValueError(f"{len(texts)} texts; Self-BLEU compares each of at least 2 with the others")
    if max_n < 1:
        raise ValueError(f"max_n is {max_n}; the longest n-gram has at least 1 word")
    lists = [_words(text) for text in texts]
    logs: list[list[float]] = [[] for _ in lists]
    for n in range(1, max_n + 1):
        counts = [Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in lists]
        highest = _two_highest(counts)
        for own, log in zip(counts, logs, strict=True):
            total = own.total()
            if total:
                matches = sum(min(count, _highest_elsewhere(count, *highest[gram])) for gram, count in own.items())
                log.append(math.log((matches or 0.1) / total))
    scores = []
    for index, (words, log) in enumerate(zip(lists, logs, strict=True)):
        if words:
            others = [len(other) for place, other in enumerate(lists) if place != index]
            closest = min(others, key=lambda length: (abs(length - len(words)), length))
            scores.append(math.exp(min(0.0, 1 - closest / len(words)) + math.fsum(log) / len(log)))
    return math.fsum(scores) / len(texts)


def _words(text: Words) -> list[Hashable]:
    return list(_WORD.findall(text.casefold())) if isinstance(text, str) else list(text)


def _common_subsequence(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The length of the longest common subsequence, a row of the table being one integer (Hyyrö 2004)."""
    places: dict[Hashable, int] = {}
    for index, word in enumerate(a):
        places[word] = places.get(word, 0) | 1 << index
    full = (1 << len(a)) - 1
    row = full
    for word in b:
        matches = row & places.get(word, 0)
        row = (row + matches | row - matches) & full
    return len(a) - row.bit_count()


def _two_highest(counts: Sequence[Counter[tuple[Hashable, ...]]]) -> dict[tuple[Hashable, ...], tuple[int, int]]:
    """The highest count of each n-gram in any text, and the next highest."""
    highest: dict[tuple[Hashable, ...], tuple[int, int]] = {}
    for own in counts:
        for gram, count in own.items():
            first, second = highest.get(gram, (0, 0))
            highest[gram] = (max(first, count), max(second, min(first, count)))
    return highest


def _highest_elsewhere(own: int, first: int, second: int) -> int:
    """The highest count in the other texts: if this text has the highest, the next one is elsewhere."""
    return second if own == first else first
