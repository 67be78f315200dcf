"""How one criterion is worded: what two readers would take differently, and what a judge would take the wrong way."""

import re
from collections.abc import Iterator
from functools import cache

from rubric_store.lint.findings import Finding
from rubric_store.lint.words import load_word_list, pattern, strip_remarks, word_set, words
from trainer_client.wire import Criterion

_SUBORDINATE = re.compile(
    r"[,;:(.]\s|\(|\b(?:as|because|since|which|who|so that|to ensure|in order to|while|when|if)\b", re.IGNORECASE
)
_SENTENCE = re.compile(r"(?<=[.!?])\s")
_EXPLANATION = re.compile(r"\b(?:by \w+ing|such as|for example|e\.g|i\.e|including|namely|that is)\b|:", re.IGNORECASE)


def check_wording(criterion: Criterion) -> Iterator[Finding]:
    """What is wrong with a criterion's words."""
    text = strip_remarks(criterion.description)
    if name := pattern("names").search(text):
        problem = f"it speaks of {name[0].lower()!r}, which whoever judges it may not see"
        yield Finding("leans-on", "warning", criterion.id, problem, "say in the criterion itself what must be there")
    if (vague := _find_vague_word(text)) is not None:
        problem = f"{vague!r} is for each reader something else"
        yield Finding("vague", "warning", criterion.id, problem, "name what a reader can find in the response")
    if (connective := _find_second_demand(text)) is not None:
        problem = f"it asks for more than one thing ({connective!r}), and one verdict cannot tell which is missing"
        yield Finding("double-barrelled", "warning", criterion.id, problem, "make a criterion of each")
    yield from _check_polarity(criterion)


def _check_polarity(criterion: Criterion) -> Iterator[Finding]:
    if criterion.kind != "pitfall" and criterion.weight >= 0:
        return
    what = "a pitfall" if criterion.kind == "pitfall" else "its weight is negative"
    if (beginning := _match_beginning(criterion.description, "good")) is not None:
        problem = f"{what}, but it tells of something good ({beginning!r}), so that a good response pays for it"
        advice = "name the mistake itself, or give the criterion a positive weight and another kind"
        yield Finding("good-penalised", "error", criterion.id, problem, advice)
    elif (beginning := _match_beginning(criterion.description, "negations")) is not None:
        problem = f"{what}, and it says no already ({beginning!r}): a judge must say yes to a no"
        advice = "ask for what should be there, with a positive weight, or name the mistake without a no"
        yield Finding("negated-penalty", "warning", criterion.id, problem, advice)


def _find_vague_word(text: str) -> str | None:
    """The first vague word of what is asked, unless it is made plain by what follows.

    What a response is to say that something is, or to find out whether it is, is not what the response is asked to be.
    """
    asked = _SUBORDINATE.split(text, maxsplit=1)[0]
    asked = re.split(r"\bwhether\b" if text.endswith("?") else r"\b(?:that|whether)\b", asked, maxsplit=1)[0]
    match = pattern("vague").search(asked)
    return None if match is None or _EXPLANATION.search(text, match.end()) else match[0]


def _match_beginning(text: str, name: str) -> str | None:
    match = pattern(name).match(text.lstrip())
    return match[0] if match else None


def _find_second_demand(text: str) -> str | None:
    """What begins a second demand in the first sentence; two verbs of one object ("states and explains it") do not."""
    sentence = _SENTENCE.split(text, maxsplit=1)[0]
    found = list(pattern("joins").finditer(sentence))
    found += [] if text.endswith("?") else list(_demand_pattern().finditer(sentence))
    for match in found:
        before = words(sentence[: match.start()])
        if before and before[-1] not in word_set("verbs"):
            return " ".join(match[0].split())
    return None


@cache
def _demand_pattern() -> re.Pattern[str]:
    verbs = "|".join(map(re.escape, load_word_list("verbs")))
    return re.compile(rf"(?:;|\band|\bbut)\s+(?:then\s+|also\s+|it\s+)?(?:{verbs})\b", re.IGNORECASE)
