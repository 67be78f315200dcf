"""Passages of a text that is too long to be read for every criterion: the sentences that share most with a criterion.

They are found by their words and not by the judge: that costs no call, a passage cannot be invented, and the same text
gives the same passages everywhere (docs/decisions/0088). Sentences are ranked by BM25 (Robertson and Zaragoza, The
Probabilistic Relevance Framework, 2009, section 3.2, with k1 = 1.2 and b = 0.75), where the sentences of the text are
the collection, so that words which occur everywhere in it count little.
"""

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from judge_server.judging.presentation import sentence_ends
from judge_server.judging.prompts.disguises import normalise

Span = tuple[int, int]
"""A half-open range of code points."""

MOST_SENTENCES = 50
"""The most sentences that are shown for a criterion, each of which may need a note of what was left out before it."""

LONGEST_SENTENCE = 400
"""The most characters of a sentence; a longer one is divided, at white space if it has any."""

_K1, _B = 1.2, 0.75
_STEM = 6
_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(r"[\uac00-\ud7a3\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


class Excerpt(NamedTuple):
    """What is shown of a long text.

    Attributes:
        text: the passages, with a note of how much was left out before, between and after them.
        spans: where they stand in the long text.
        found: whether they have to do with what was looked for; otherwise they are its beginning and its end.
    """

    text: str
    spans: tuple[Span, ...]
    found: bool


def not_shown(length: int, excerpts: Iterable[Excerpt]) -> int:
    """Return how many characters of a text of this length none of the excerpts shows."""
    hidden = length
    reached = 0
    for start, end in sorted([span for one in excerpts for span in one.spans]):
        hidden -= max(end - max(start, reached), 0)
        reached = max(reached, end)
    return hidden


class PassageFinder:
    """The sentences of a text, ready to be looked through for many criteria."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._sentences = [(start, end) for start, end in _sentences(text) if text[start:end].strip()]
        self._found_in: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        counts = [Counter(_terms(text[start:end])) for start, end in self._sentences]
        mean = sum([counted.total() for counted in counts]) / len(counts) if counts else 0.0
        for place, counted in enumerate(counts):
            norm = _K1 * (1 - _B + _B * counted.total() / mean) if mean else 0.0
            for term, count in counted.items():
                self._found_in[term].append((place, count * (_K1 + 1) / (count + norm)))

    def excerpt(self, about: str, characters: int) -> Excerpt:
        """Return what to show of the text to somebody who asks about `about`, in at most `characters` characters.

        Sentences that share a word with `about` are taken, the best first, while there is room, and no more than
        `MOST_SENTENCES`; those that adjoin are one passage, if the white space between them fits. If there is none,
        it is the beginning and the end of the text, and nothing counts as found.
        """
        text, passages, best = self._text, list[Span](), sorted(self._best(about, characters))
        spare = characters - sum([end - start for start, end in best])
        for start, end in best:
            if passages and not text[passages[-1][1] : start].strip() and start - passages[-1][1] <= spare:
                spare -= start - passages[-1][1]
                start = passages.pop()[0]
            passages.append((start, end))
        if passages:
            return Excerpt(_with_notes(text, passages), tuple(passages), found=True)
        head = characters - characters // 2
        ends = ((0, head), (len(text) - characters // 2, len(text)))
        return Excerpt(_with_notes(text, ends), ends, found=False)

    def _best(self, about: str, characters: int) -> Iterator[Span]:
        scores: defaultdict[int, float] = defaultdict(float)
        for term in dict.fromkeys(_terms(about)):
            found = self._found_in.get(term, ())
            rarity = math.log1p((len(self._sentences) - len(found) + 0.5) / (len(found) + 0.5))
            for place, weight in found:
                scores[place] += rarity * weight
        left, taken = characters, 0
        for place in sorted(scores, key=lambda place: (-scores[place], place)):
            start, end = self._sentences[place]
            if end - start <= left and taken < MOST_SENTENCES:
                yield start, end
                left, taken = left - (end - start), taken + 1


def _with_notes(text: str, passages: Sequence[Span]) -> str:
    """Join passages, with a note of how many characters were left out before, between and after them."""
    shown, at = [], 0
    for start, end in (*passages, (len(text), len(text))):
        if start > at:
            shown.append(f"[{start - at} characters left out]")
        if end > start:
            shown.append(text[start:end].strip("\n"))
        at = end
    return "\n".join(shown)


def common_paragraphs(texts: Sequence[str]) -> str:
    """Return the whole paragraphs that all texts begin with, without the last one of any."""
    common = ""
    for first, *others in zip(*[text.split("\n\n")[:-1] for text in texts], strict=False):
        if any(other != first for other in others):
            break
        common += f"{first}\n\n"
    return common


def _sentences(text: str) -> Iterator[Span]:
    start = 0
    for end in (*sentence_ends(text), len(text)):
        while end - start > LONGEST_SENTENCE:
            limit = start + LONGEST_SENTENCE
            blank = max(text.rfind(" ", start, limit), text.rfind("\n", start, limit))
            cut = blank + 1 if blank > start else limit
            yield start, cut
            start = cut
        if end > start:
            yield start, end
            start = end


def _terms(text: str) -> Iterator[str]:
    """Yield the first six letters of words, whose endings matter less, and pairs of letters of scripts without spaces.

    Letters are read as they are shown to the judge, without hidden and disguised ones.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", normalise(text))
    for word in _WORD.findall(text.casefold()):
        if _UNSPACED.search(word) and len(word) > 1:
            yield from (word[at : at + 2] for at in range(len(word) - 1))
        else:
            yield word[:_STEM]
