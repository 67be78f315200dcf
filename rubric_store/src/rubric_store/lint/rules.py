"""The lint rules for single criteria and for a rubric as a whole.

What lint finds: a code, how bad it is, which criterion, what is wrong, and a way out.

The English word lists, and how texts are looked through with them. Another language is another folder of lists.

How one criterion is worded: what two readers would take differently, and what a judge would take the wrong way.

Weights against each other, and answers that a criterion gives away.

Criteria that ask the same: how alike two texts are, by the content words they share.

The measure is Jaccard's, the stems that both have over the stems that either has, with one change: a word in place of
another counts twice more against it, since "the first environment" and "the second environment" are two things, while
a text with a few words more mostly asks the same. Words that say nothing of what a text is about are left out. It is 1
for the same words in any order, and knows no synonyms. Two texts whose numbers differ are never reported.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Literal

from trainer_client.wire import Criterion

Severity = Literal["error", "warning", "note"]
"""`error`: the system cannot use the rubric so, or it rewards what it should punish. `warning`: verdicts will suffer.
`note`: worth a look."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `criterion` is the id of the criterion, or None where it is the rubric as a whole."""

    code: str
    severity: Severity
    criterion: str | None
    problem: str
    advice: str

    def __str__(self) -> str:
        whose = "the rubric" if self.criterion is None else f"criterion {self.criterion}"
        return f"{self.severity} [{self.code}] {whose}: {self.problem}; {self.advice}"


_REMARK = re.compile(r"\((?:justification|rationale|reason|explanation|note|why)\s*:.*", re.IGNORECASE | re.DOTALL)
_WORD = re.compile(r"\w+(?:['’-]\w+)*")


@cache
def load_word_list(name: str) -> tuple[str, ...]:
    """The entries of a list, longest first, so that a longer one is found before one that it begins with."""
    text = (files("rubric_store.lint") / "english" / f"{name}.txt").read_text(encoding="utf-8")
    found = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return tuple(sorted(found, key=len, reverse=True))


@cache
def pattern(name: str) -> re.Pattern[str]:
    """A list as an expression that finds any of its entries as whole words; `*` stands for any ending."""
    alternatives = "|".join(
        re.escape(entry).replace(r"\*", r"\w*").replace(r"\ ", r"\s+") for entry in load_word_list(name)
    )
    return re.compile(rf"(?<![\w-])(?:{alternatives})(?![\w-])", re.IGNORECASE)


@cache
def word_set(name: str) -> frozenset[str]:
    """A list as a set of words."""
    return frozenset(load_word_list(name))


def strip_remarks(text: str) -> str:
    """What a criterion asks for: its text without remarks on why, such as `(Justification: …)`."""
    return _REMARK.sub(" ", text).strip()


def words(text: str) -> list[str]:
    """A text's words in lower case."""
    return [match.lower() for match in _WORD.findall(text)]


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


_MIN_CRITERIA = 3
_VALUE = re.compile(r"-?\d+(?:[./]\d+)*")


def check_weights(criteria: Sequence[Criterion]) -> Iterator[Finding]:
    """Criteria that count for nothing, and one that counts for more than all others together."""
    total = sum(abs(criterion.weight) for criterion in criteria)
    for criterion in criteria:
        if criterion.weight == 0:
            problem = "its weight is 0, so it is judged for nothing"
            yield Finding("weightless", "warning", criterion.id, problem, "give it a weight, or leave it out")
        elif len(criteria) >= _MIN_CRITERIA and abs(criterion.weight) > total / 2:
            rest = total - abs(criterion.weight)
            problem = f"its weight, {criterion.weight:g}, is more than all others together ({rest:g})"
            yield Finding("outweighs", "warning", criterion.id, problem, "weigh it less, or split what it asks for")


def find_leaked_answers(criteria: Sequence[Criterion], answer: str | None = None) -> Iterator[Finding]:
    """Criteria that hold the final answer, and are no `answer` themselves.

    The answer is `answer` where it is given, else what the `answer` criterion expects, or the last number in it.
    """
    known = answer or next(filter(None, map(_expected, criteria)), None)
    if not known:
        return
    answer_pattern = re.compile(rf"(?<![\w.])-?{re.escape(known)}(?![\w]|\.\d)")
    for criterion in criteria:
        if criterion.kind != "answer" and answer_pattern.search(criterion.description):
            problem = f"it gives the final answer away ({known[:40]!r}), which a policy that is shown it would copy"
            advice = "say how to get there; or never show this rubric to the policy"
            yield Finding("gives-answer", "note", criterion.id, problem, advice)


def _expected(criterion: Criterion) -> str | None:
    if criterion.kind != "answer":
        return None
    expected = getattr(criterion.verification, "expected", None)
    if expected is not None:
        return f"{expected:g}" if isinstance(expected, float) else str(expected)
    numbers = _VALUE.findall(criterion.description)
    return numbers[-1] if numbers else None


SIMILARITY = 0.75
"""From here on two criteria are reported, unless told otherwise."""

_ENDING = re.compile(r"(?<=\w{3})(?:ingly|edly|ations?|ments?|ings?|ies|ied|ely|ers?|es|ed|ly|s|e)$")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def similarity(one: str, other: str) -> float:
    """How alike two texts are, from 0 to 1."""
    return _stem_similarity(_stems(one), _stems(other))


def find_overlaps(criteria: Sequence[Criterion], threshold: float = SIMILARITY) -> list[Finding]:
    """Pairs of criteria that are the same, or at least as alike as `least`; each finding is the later one's."""
    found = []
    stems = [_stems(strip_remarks(criterion.description)) for criterion in criteria]
    normalised = [" ".join(words(strip_remarks(criterion.description))) for criterion in criteria]
    numbers = [set(_NUMBER.findall(criterion.description)) for criterion in criteria]
    for (i, one), (j, other) in combinations(enumerate(criteria), 2):
        if normalised[i] and normalised[i] == normalised[j]:
            problem = f"it says what criterion {one.id} says, so this counts twice"
            found.append(Finding("duplicate", "error", other.id, problem, "leave one out"))
        elif numbers[i] == numbers[j] and _stem_similarity(stems[i], stems[j]) >= threshold:
            share = f"its words are nearly those of criterion {one.id} (similarity {_stem_similarity(stems[i], stems[j]):.2f})"
            opposed = (one.weight < 0) != (other.weight < 0)
            problem = f"{share}, with the opposite sign: one thing counts twice" if opposed else share
            found.append(
                Finding(
                    "overlap", "warning", other.id, problem, "if they ask the same, keep one; or say how they differ"
                )
            )
    return found


def _stems(text: str) -> frozenset[str]:
    return frozenset(_ENDING.sub("", word) for word in words(text) if word not in word_set("common"))


def _stem_similarity(one: frozenset[str], other: frozenset[str]) -> float:
    replaced = min(len(one - other), len(other - one))
    return len(one & other) / (len(one | other) + 2 * replaced) if one | other else 0.0
