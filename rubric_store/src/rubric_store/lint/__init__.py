"""Lint for rubrics: the papers' structural rules, and common sense about wording, weights and overlap.

Lint reads criteria alone and asks no model, so it cannot tell whether a criterion is true. It finds what makes judges
disagree or rewards go the wrong way. `docs/studies/rubric-lint-precision.md` measures how often it is right.

Wording rules use the English word lists under `english/`; another language would be another folder of lists.

Overlap is Jaccard's measure on word stems, shared stems over all stems, with one change: a substituted word counts two
extra. "the first environment" and "the second environment" differ, while a text with a few more words mostly asks
the same. Function words are left out. The measure ignores word order and does not recognise synonyms. Two criteria
whose numbers differ are never reported.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Final, Literal, NamedTuple
from zlib import crc32

from rubric_store.formats.published import lists
from trainer_client.wire import Criterion
from trainer_client.wire.criteria import GUIDANCE_FIELDS

__all__ = ["RULES", "SIMILARITY", "Finding", "FindingCode", "Rule", "Severity", "System", "lint", "similarity"]

Severity = Literal["error", "warning", "note"]
"""`error`: the system cannot use the rubric, or it rewards what it should penalise. `warning`: verdicts will be worse.
`note`: worth a look."""

System = Literal["rgr", "srar", "grounded", "dro", "ruscarl"]
SIMILARITY = 0.75
"""The default similarity from which two criteria are reported."""

FindingCode = Literal[
    "good-penalised",
    "duplicate",
    "overlap",
    "double-barrelled",
    "vague",
    "leans-on",
    "negated-penalty",
    "weightless",
    "outweighs",
    "gives-answer",
    "rgr-count",
    "rgr-category",
    "rgr-weight",
    "srar-count",
    "srar-suggest",
    "srar-answer",
    "srar-kind",
    "grounded-count",
    "grounded-fields",
    "grounded-weight",
    "grounded-total",
    "dro-question",
    "dro-sign",
    "ruscarl-points",
    "ruscarl-positive",
]


class Rule(NamedTuple):
    """What a finding means: how bad it is, what lint has found, and what the author of the rubric should do."""

    severity: Severity
    meaning: str
    remedy: str


RULES: Final[Mapping[FindingCode, Rule]] = {
    "good-penalised": Rule(
        "error",
        'A pitfall, or a criterion of negative weight, describes something good: "Avoids …", "Should …", '
        '"Correctly …". It penalises good responses.',
        "Name the mistake itself. Or give the criterion a positive weight and another kind.",
    ),
    "duplicate": Rule(
        "error",
        "A criterion has the same words as an earlier one, so the same thing counts twice.",
        "Remove one of them.",
    ),
    "overlap": Rule(
        "warning",
        "Two criteria have nearly the same words. This includes a criterion that rewards something while another one "
        "penalises its absence. `--similarity-threshold` sets how similar two criteria must be.",
        "If they ask the same, keep one. Otherwise say how they differ.",
    ),
    "double-barrelled": Rule(
        "warning",
        'One sentence makes two demands: "Names the cause and states the remedy". One verdict cannot tell which of '
        "them is missing.",
        "Make each demand a criterion of its own.",
    ),
    "vague": Rule(
        "warning",
        'A word means something different to each reader, such as "appropriate", and no clarification follows it.',
        "Name something that a reader can find in the response.",
    ),
    "leans-on": Rule(
        "warning",
        'The criterion refers to "the reference answer", "the rubric" or "ground truth", which the judge may not see.',
        "State in the criterion itself what the response must contain.",
    ),
    "negated-penalty": Rule(
        "warning",
        'A pitfall, or a criterion of negative weight, already contains a negation: "Does not mention …". The judge '
        "must say yes to a no.",
        "Ask for what should be there, with a positive weight. Or name the mistake without a negation.",
    ),
    "weightless": Rule("warning", "A weight of 0, so the verdict has no effect.", "Give it a weight, or remove it."),
    "outweighs": Rule(
        "warning",
        "In a rubric of three criteria or more, one weighs more than all others together.",
        "Reduce its weight, or split what it asks for.",
    ),
    "gives-answer": Rule(
        "note",
        "A criterion other than the `answer` contains the final answer. A policy that sees the rubric would copy it.",
        "Say how to get there instead. Or never show this rubric to the policy.",
    ),
    "rgr-count": Rule("error", "RGR-GRPO: a rubric has 3 to 10 criteria.", "Merge, drop or add criteria."),
    "rgr-category": Rule(
        "error",
        "RGR-GRPO: each criterion is of kind `factual` or `process`.",
        "Change its kind. If the text begins with the category, import the file as format `rgr`.",
    ),
    "rgr-weight": Rule("error", "RGR-GRPO: a weight is a whole number from 1 to 5.", "Change the weight."),
    "srar-count": Rule(
        "warning",
        "SRaR: the paper's prompt asks for at most 8 items. 944 of the paper's own 16,560 rubrics have more.",
        "Merge or drop the least important items.",
    ),
    "srar-suggest": Rule("error", "SRaR: no item is a SUGGEST.", "Add a step that a right solution takes."),
    "srar-answer": Rule("error", "SRaR: not exactly one item is an ANSWER.", "State the final answer in exactly one."),
    "srar-kind": Rule("error", "SRaR: a kind that SRaR does not have.", "Use suggest, pitfall, bonus or answer."),
    "grounded-count": Rule(
        "error", "Rubric-Grounded RL: a rubric has 5 to 10 criteria.", "Merge, drop or add criteria."
    ),
    "grounded-fields": Rule(
        "error", "Rubric-Grounded RL: a criterion lacks some of the nine fields.", "Fill in the fields that it names."
    ),
    "grounded-weight": Rule("error", "Rubric-Grounded RL: a weight is negative.", "Give it a weight of at least 0."),
    "grounded-total": Rule("error", "Rubric-Grounded RL: the weights add up to 0.", "Give some criterion a weight."),
    "dro-question": Rule(
        "warning", "DRO: a criterion is not a yes/no question.", 'Word it like "Does the response …?".'
    ),
    "dro-sign": Rule(
        "error",
        "DRO: a yes to a criterion does not mean a good response.",
        "Word it so that a good response gets a yes.",
    ),
    "ruscarl-points": Rule("error", "RuscaRL: a criterion has more than 10 or less than -10 points.", "Change them."),
    "ruscarl-positive": Rule("error", "RuscaRL: no points are positive.", "Add what a good response has."),
}
"""Every code that `lint` reports. The reference of findings is generated from it."""

_ORDER: Final[dict[Severity, int]] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `criterion` is the criterion's id, or None for the rubric as a whole."""

    code: str
    severity: Severity
    criterion: str | None
    problem: str
    advice: str

    def __str__(self) -> str:
        subject = "the rubric" if self.criterion is None else f"criterion {self.criterion}"
        return f"{self.severity} [{self.code}] {subject}: {self.problem}; {self.advice}"


def _finding(code: FindingCode, criterion: str | None, problem: str, advice: str) -> Finding:
    return Finding(code, RULES[code].severity, criterion, problem, advice)


def lint(
    criteria: Sequence[Criterion],
    *,
    system: System | None = None,
    similarity_threshold: float = SIMILARITY,
    answer: str | None = None,
) -> list[Finding]:
    """Check a rubric and return the findings.

    Args:
        criteria: the rubric's criteria.
        system: the paper whose structural rules apply; by default none do.
        similarity_threshold: the similarity from which two criteria are reported, in (0, 1].
        answer: the question's final answer, to find criteria that give it away. By default it is taken from an
            `answer` criterion.

    Returns:
        Errors first, then warnings, then notes, each in the order of the criteria.

    Raises:
        ValueError: `similarity_threshold` is not in (0, 1].
    """
    if not 0 < similarity_threshold <= 1:
        raise ValueError(f"similarity_threshold is {similarity_threshold!r}; it must be above 0 and at most 1")
    findings = check_structure(criteria, system) if system else []
    for criterion in criteria:
        findings += check_wording(criterion)
    findings += find_overlaps(criteria, similarity_threshold)
    findings += check_weights(criteria)
    findings += find_leaked_answers(criteria, answer)
    position: dict[str | None, int] = {None: -1, **{criterion.id: index for index, criterion in enumerate(criteria)}}
    return sorted(findings, key=lambda finding: (_ORDER[finding.severity], position[finding.criterion]))


_REMARK = re.compile(r"\((?:justification|rationale|reason|explanation|note|why)\s*:.*", re.IGNORECASE | re.DOTALL)
_WORD = re.compile(r"\w+(?:['’-]\w+)*")


@cache
def load_word_list(name: str) -> tuple[str, ...]:
    """The entries of a word list, longest first, so that an entry is matched before its own prefixes."""
    text = (files(__name__) / "english" / f"{name}.txt").read_text(encoding="utf-8")
    found = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return tuple(sorted(found, key=len, reverse=True))


@cache
def pattern(name: str) -> re.Pattern[str]:
    """A word list as a pattern that matches any entry as whole words; `*` matches any ending."""
    alternatives = "|".join(
        re.escape(entry).replace(r"\*", r"\w*").replace(r"\ ", r"\s+") for entry in load_word_list(name)
    )
    return re.compile(rf"(?<![\w-])(?:{alternatives})(?![\w-])", re.IGNORECASE)


@cache
def word_set(name: str) -> frozenset[str]:
    """A word list as a set."""
    return frozenset(load_word_list(name))


def strip_remarks(text: str) -> str:
    """A criterion's text without remarks such as `(Justification: …)`."""
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
    """Find wording that readers would understand differently, or that a judge would misread."""
    text = strip_remarks(criterion.description)
    if name := pattern("names").search(text):
        problem = f"it refers to {name[0].lower()!r}, which the judge may not see"
        advice = "state in the criterion itself what the response must contain"
        yield _finding("leans-on", criterion.id, problem, advice)
    if (vague := _find_vague_word(text)) is not None:
        problem = f"{vague!r} means something different to each reader"
        yield _finding("vague", criterion.id, problem, "name something a reader can find in the response")
    if (connective := _find_second_demand(text)) is not None:
        problem = f"it asks for more than one thing ({connective!r}), and one verdict cannot tell which is missing"
        yield _finding("double-barrelled", criterion.id, problem, "make each a criterion of its own")
    yield from _check_polarity(criterion)


def _check_polarity(criterion: Criterion) -> Iterator[Finding]:
    if criterion.kind != "pitfall" and criterion.weight >= 0:
        return
    what = "it is a pitfall" if criterion.kind == "pitfall" else "its weight is negative"
    if (beginning := _match_beginning(criterion.description, "good")) is not None:
        problem = f"{what}, but it describes something good ({beginning!r}), so a good response is penalised"
        advice = "name the mistake itself, or give the criterion a positive weight and another kind"
        yield _finding("good-penalised", criterion.id, problem, advice)
    elif (beginning := _match_beginning(criterion.description, "negations")) is not None:
        problem = f"{what}, and it is negated ({beginning!r}), so the judge must say yes to a negation"
        advice = "ask for what should be there, with a positive weight, or name the mistake without a negation"
        yield _finding("negated-penalty", criterion.id, problem, advice)


def _find_vague_word(text: str) -> str | None:
    """The first vague word in what a criterion asks for, unless the text after it explains it.

    Clauses after "that" or "whether" are not searched: there the word describes the subject, not the response.
    """
    asked = _SUBORDINATE.split(text, maxsplit=1)[0]
    asked = re.split(r"\bwhether\b" if text.endswith("?") else r"\b(?:that|whether)\b", asked, maxsplit=1)[0]
    match = pattern("vague").search(asked)
    return None if match is None or _EXPLANATION.search(text, match.end()) else match[0]


def _match_beginning(text: str, name: str) -> str | None:
    match = pattern(name).match(text.lstrip())
    return match[0] if match else None


def _find_second_demand(text: str) -> str | None:
    """The words that begin a second demand in the first sentence.

    Two verbs with one object ("states and explains it") are one demand.
    """
    sentence = _SENTENCE.split(text, maxsplit=1)[0]
    found = list(pattern("joins").finditer(sentence))
    found += [] if text.endswith("?") else list(_demand_pattern().finditer(sentence))
    starts = [word.start() for word in _WORD.finditer(sentence)] if found else []
    for match in found:
        place = bisect_left(starts, match.start()) - 1
        before = _WORD.match(sentence, starts[place], match.start()) if place >= 0 else None
        if before is not None and before[0].lower() not in word_set("verbs"):
            return " ".join(match[0].split())
    return None


@cache
def _demand_pattern() -> re.Pattern[str]:
    verbs = "|".join(map(re.escape, load_word_list("verbs")))
    return re.compile(rf"(?:;|\band|\bbut)\s+(?:then\s+|also\s+|it\s+)?(?:{verbs})\b", re.IGNORECASE)


_MIN_CRITERIA = 3
_VALUE = re.compile(r"-?\d+(?:,\d{3}(?!\d))*(?:[./]\d+)*")


def check_weights(criteria: Sequence[Criterion]) -> Iterator[Finding]:
    """Find criteria with weight 0, and one that outweighs all others together."""
    total = sum(abs(criterion.weight) for criterion in criteria)
    for criterion in criteria:
        if criterion.weight == 0:
            problem = "its weight is 0, so its verdict has no effect"
            yield _finding("weightless", criterion.id, problem, "give it a weight, or leave it out")
        elif len(criteria) >= _MIN_CRITERIA and abs(criterion.weight) > total / 2:
            rest = total - abs(criterion.weight)
            problem = f"its weight, {criterion.weight:g}, is more than all others together ({rest:g})"
            yield _finding("outweighs", criterion.id, problem, "weigh it less, or split what it asks for")


def find_leaked_answers(criteria: Sequence[Criterion], answer: str | None = None) -> Iterator[Finding]:
    """Find criteria other than `answer` that contain the final answer.

    The answer is `answer` if given, else what an `answer` criterion expects, or the last number in its text.
    """
    known = answer or next(filter(None, map(_expected, criteria)), None)
    if not known:
        return
    answer_pattern = re.compile(rf"(?<![\w.])(?<!\d,)-?{re.escape(known)}(?![\w]|\.\d|,\d{{3}}(?!\d))")
    for criterion in criteria:
        if criterion.kind != "answer" and answer_pattern.search(criterion.description):
            problem = (
                f"it gives the final answer away ({known[:40]!r}), and a policy that sees the rubric would copy it"
            )
            advice = "say how to get there; or never show this rubric to the policy"
            yield _finding("gives-answer", criterion.id, problem, advice)


def _expected(criterion: Criterion) -> str | None:
    if criterion.kind != "answer":
        return None
    expected = getattr(criterion.verification, "expected", None)
    if expected is not None:
        return f"{expected:g}" if isinstance(expected, float) else str(expected)
    numbers = _VALUE.findall(criterion.description)
    return numbers[-1] if numbers else None


_ENDING = re.compile(r"(?<=\w{3})(?:ingly|edly|ations?|ments?|ings?|ies|ied|ely|ers?|es|ed|ly|s|e)$")
_NUMBER = re.compile(r"(?:(?<!\w)-)?\d+(?:[.,]\d+)*")
_SAID = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s.,;:!?…'’\"“”()\[\]`–—]")
"""A word, or a sign that is no punctuation of sentences: `x > 5` and `x < 5` differ."""


def similarity(one: str, other: str) -> float:
    """The similarity of two texts, from 0 to 1; see the module's docstring."""
    return _stem_similarity(_stems(one), _stems(other))


MAX_OVERLAPS = 3
"""The most criteria that a finding is made about for one later criterion that is similar to them."""

_MAX_COMPARED_STEMS = 4_000_000
"""Stems that are compared in all pairs of a rubric together, which takes a quarter of a second."""


def find_overlaps(criteria: Sequence[Criterion], threshold: float = SIMILARITY) -> list[Finding]:
    """Find criteria that say the same as an earlier one, or are similar from `threshold` on to earlier ones.

    A criterion has one finding about the first that says the same, and at most `MAX_OVERLAPS` about similar ones, so
    that a rubric of equal criteria has not a finding for every pair.
    """
    texts = [strip_remarks(criterion.description) for criterion in criteria]
    stems = _share_to_compare([_stems(text) for text in texts])
    numbers = [frozenset(_NUMBER.findall(criterion.description)) for criterion in criteria]
    alike: dict[frozenset[str], list[int]] = {}
    first_with: dict[str, int] = {}
    findings = []
    for place, other in enumerate(criteria):
        earlier = alike.setdefault(numbers[place], [])
        normalised = " ".join(match.lower() for match in _SAID.findall(texts[place]))
        first = first_with.setdefault(normalised, place) if normalised else place
        if first < place:
            problem = f"it says the same as criterion {criteria[first].id}, so this counts twice"
            findings.append(_finding("duplicate", other.id, problem, "leave one out"))
            continue
        measured = ((criteria[n], _stem_similarity(stems[n], stems[place])) for n in earlier)
        similar = ((one, measure) for one, measure in measured if measure >= threshold)
        for one, measure in islice(similar, MAX_OVERLAPS):
            problem = f"its words are nearly those of criterion {one.id} (similarity {measure:.2f})"
            if (one.weight < 0) != (other.weight < 0):
                problem += ", with the opposite sign: one thing counts twice"
            advice = "if they ask the same, keep one; otherwise say how they differ"
            findings.append(_finding("overlap", other.id, problem, advice))
        earlier.append(place)
    return findings


def _share_to_compare(stems: Sequence[frozenset[str]]) -> Sequence[frozenset[str]]:
    """The stems of each text; the same share of all, by a hash, if comparing every pair would take too long.

    The similarity of two shares estimates that of the texts.
    """
    divisor = -(-len(stems) * sum(map(len, stems)) // _MAX_COMPARED_STEMS)
    if divisor <= 1:
        return stems
    return [frozenset([stem for stem in one if crc32(stem.encode()) % divisor == 0]) for one in stems]


def _stems(text: str) -> frozenset[str]:
    return frozenset(_ENDING.sub("", word) for word in words(text) if word not in word_set("common"))


def _stem_similarity(one: frozenset[str], other: frozenset[str]) -> float:
    replaced = min(len(one - other), len(other - one))
    return len(one & other) / (len(one | other) + 2 * replaced) if one | other else 0.0


MIN_RGR_CRITERIA, MAX_RGR_CRITERIA = 3, 10
MAX_SRAR_CRITERIA = 8
MIN_GROUNDED_CRITERIA, MAX_GROUNDED_CRITERIA = 5, 10
MAX_POINTS = 10.0
_SRAR_KINDS = frozenset({"suggest", "pitfall", "bonus", "answer"})


def check_structure(criteria: Sequence[Criterion], system: System) -> list[Finding]:
    """Findings where a rubric breaks the rules of a system."""
    return list(_CHECKS[system](criteria))


def _rgr(criteria: Sequence[Criterion]) -> Iterator[Finding]:
    yield from _check_count("rgr-count", criteria, MIN_RGR_CRITERIA, MAX_RGR_CRITERIA)
    for one in criteria:
        if one.kind not in ("factual", "process"):
            prefix = (
                "; its text has the prefix, so import it as format rgr"
                if lists.RGR_PREFIX.match(one.description)
                else ""
            )
            yield _finding("rgr-category", one.id, f"it is {one.kind}", f"make it factual or process{prefix}")
        if not (lists.MIN_RGR_WEIGHT <= one.weight <= lists.MAX_RGR_WEIGHT and one.weight.is_integer()):
            yield _finding("rgr-weight", one.id, f"its weight is {one.weight:g}", "give it a whole number from 1 to 5")


def _srar(criteria: Sequence[Criterion]) -> Iterator[Finding]:
    if len(criteria) > MAX_SRAR_CRITERIA:
        problem = f"it has {len(criteria)} items, and the paper's prompt asks for at most {MAX_SRAR_CRITERIA}"
        yield _finding("srar-count", None, problem, "merge or drop the least important")
    kinds = [criterion.kind for criterion in criteria]
    if "suggest" not in kinds:
        yield _finding("srar-suggest", None, "no item is a SUGGEST", "add a step that a right solution takes")
    if (answers := kinds.count("answer")) != 1:
        problem = f"{answers or 'no'} items are an ANSWER"
        yield _finding("srar-answer", None, problem, "state the final answer in exactly one")
    for one in criteria:
        if one.kind not in _SRAR_KINDS:
            yield _finding("srar-kind", one.id, f"it is {one.kind}", "make it suggest, pitfall, bonus or answer")


def _grounded(criteria: Sequence[Criterion]) -> Iterator[Finding]:
    yield from _check_count("grounded-count", criteria, MIN_GROUNDED_CRITERIA, MAX_GROUNDED_CRITERIA)
    for one in criteria:
        missing = [field for field in GUIDANCE_FIELDS if not getattr(one, field)]
        if missing:
            yield _finding("grounded-fields", one.id, f"it has no {', '.join(missing)}", "fill in all nine fields")
        if one.weight < 0:
            yield _finding("grounded-weight", one.id, f"its weight is {one.weight:g}", "give it one of at least 0")
    if sum(criterion.weight for criterion in criteria) <= 0:
        yield _finding("grounded-total", None, "its weights add up to 0", "give some criterion a weight")


def _dro(criteria: Sequence[Criterion]) -> Iterator[Finding]:
    for one in criteria:
        if not _asks_yes_or_no(one.description):
            advice = "word it like: Does the response …?"
            yield _finding("dro-question", one.id, "it is not a yes/no question", advice)
        if one.weight <= 0 or one.kind == "pitfall":
            yield _finding(
                "dro-sign",
                one.id,
                "a yes to it does not mean a good response",
                "word it so that a good response gets a yes",
            )


def _asks_yes_or_no(text: str) -> bool:
    """Whether a text is a yes/no question, possibly after an introduction such as `In the table, …`."""
    starts = [0, *(match.end() for match in re.finditer(r"[,:.]\s+", text))]
    return text.endswith("?") and any(pattern("questions").match(text, start) for start in starts)


def _ruscarl(criteria: Sequence[Criterion]) -> Iterator[Finding]:
    for one in criteria:
        if abs(one.weight) > MAX_POINTS:
            yield _finding("ruscarl-points", one.id, f"it has {one.weight:g} points", "give it -10 to 10")
    if not any(one.weight > 0 for one in criteria):
        yield _finding("ruscarl-positive", None, "no points are positive", "add what a good response has")


def _check_count(code: FindingCode, criteria: Sequence[Criterion], minimum: int, maximum: int) -> Iterator[Finding]:
    if not minimum <= len(criteria) <= maximum:
        advice = "merge or drop the least important" if len(criteria) > maximum else "add what else a good response has"
        yield _finding(code, None, f"it has {len(criteria)} criteria, not {minimum} to {maximum}", advice)


_CHECKS: Final[dict[System, Callable[[Sequence[Criterion]], Iterator[Finding]]]] = {
    "rgr": _rgr,
    "srar": _srar,
    "grounded": _grounded,
    "dro": _dro,
    "ruscarl": _ruscarl,
}
