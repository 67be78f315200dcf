"""Read an answer: write its phrases as signs, take decoration away, and find every reading that leaves nothing out."""

import re
from itertools import pairwise
from typing import NamedTuple

from judge_server.verifiers.choices import without_text_commands
from judge_server.verifiers.dates import DAYS, MONTH
from judge_server.verifiers.notation import Token, same_characters, strip_markup, tokens_of, with_digits
from judge_server.verifiers.reader import Term, read

_SENTENCE = re.compile(
    r"(?P<subject>[^\d,;:=\\]{1,200}?)\b(?P<verb>is|are|was|were|equals|has|have|had|costs?|takes?|needs?|weighs?|earns?|makes?)"
    r"\b[ \t]*:?[ \t]+(?P<value>\S.*)",
    re.DOTALL,
)
_IT_IS = re.compile(r"\Ait['’]s\b", re.IGNORECASE)
_LEFT = re.compile(r"(?<=[\w}$])\s+(?:left|remaining|left over|remain)\Z")
_OF_THE_ANSWER = re.compile(
    r"\b(?:twice|double|triple|half|third|quarter|opposite|negative|minus|square|cube|root|reciprocal|inverse|multiple)\b"
    r"[^.]{0,12}\b(?:answer|result|solution|value|number|it|that|this|x)\b",
    re.IGNORECASE,
)
_COPULA = re.compile(r"\b(?:is|are|was|were|equals|has|have|had)\b")
_HEDGE = re.compile(
    r"\b(?:or|either|neither|nor|not|never|no|none|nobody|nothing|hardly|if|unless|whether|wrong|false|incorrect)\b|n't\b",
    re.IGNORECASE,
)


def stated_value(answer: str) -> str | None:
    """Return the value that a sentence states: `80 km/h` for `The average speed is 80 km/h.`; None if it is not one.

    The sentence must have one verb ("is", "equals", "has", "costs"), and nothing before it may be an answer itself: no
    number, formula, list or "or". So a sentence that offers several answers gives none of them.
    """
    bare = _IT_IS.sub("it is", strip_markup(answer))
    match = _SENTENCE.fullmatch(bare)
    if match is None or len(_COPULA.findall(bare)) > 1:
        return None
    if _HEDGE.search(match["subject"]) or _OF_THE_ANSWER.search(match["subject"]):
        return None
    may_remain = match["verb"] in ("has", "have", "had") or match["subject"].casefold().split()[-1:] == ["there"]
    return _LEFT.sub("", match["value"]) if may_remain and re.match(r"\d", match["value"]) else match["value"]


_BEFORE_NUMBER = re.compile(
    r"\A(?:(?:about|approximately|approx\.?|around|roughly|nearly|almost|exactly|circa|ca\.|a total of)"
    r"\s+){1,3}+(?=[-+(\d.\\$€£¥₹\x01])",
    re.IGNORECASE,
)
_AFTER_NUMBER = re.compile(
    r"(?<=[\w)}\]%$])(?:\s*,)?(?:\s+|\s*\\text\{\s*|\s+\()(?:in total|total|in all|altogether|exactly|exact)[)}]?\Z",
    re.I,
)
_BEFORE_TIME = re.compile(rf"\A(?:in|on|at)\s+(?:the year\s+|an?\s+)?(?=\d|(?:{'|'.join(DAYS)}|{MONTH})\b)", re.I)
_PHRASES = (
    (
        re.compile(
            r"\b(?:is )?(?:greater|more|larger) than or equal to\b|\bat least\b|\bno (?:less|fewer) than\b", re.I
        ),
        r" \\geq ",
    ),
    (re.compile(r"\b(?:is )?(?:less|smaller|fewer) than or equal to\b|\bat most\b|\bno more than\b", re.I), r" \\leq "),
    (re.compile(r"\b(?:is )?(?:greater|more|larger) than\b", re.I), " > "),
    (re.compile(r"\b(?:is )?(?:less|smaller|fewer) than\b", re.I), " < "),
    (re.compile(r"\b(?:is )?not equal to\b", re.I), r" \\neq "),
    (re.compile(r"\b([ap])\.\s?m\b\.?", re.I), r"\1m"),
    (re.compile(r"(?<=\d):00(?=\s*[ap]m\b)", re.I), ""),
    (re.compile(r"\\(?:pmod|bmod|mod)(?![A-Za-z])"), " mod "),
    (re.compile(r"(?<=[)\]])\s*(?:U|\\text\{\s*U\s*\})\s*(?=[(\[])"), r" \\cup "),
    (re.compile(r"(?<=\d)[ \t]*+[xX][ \t]*+(?=10[ \t]*+(?:\^|\*\*))"), r" \\times "),
    (re.compile(r"(?<![\w.,])(\d{1,6})[ \t]*+h[ \t]*+(\d{1,2})[ \t]*+m(?!\w)"), r"\1 hours \2 minutes"),
    (re.compile(r"\bper annum\b", re.I), "per year"),
    (re.compile(r"\belectron[- ]volts?\b", re.I), "electronvolts"),
)
_EXCEPT = re.compile(
    r"(?:x is )?(?:all )?real(?:s| numbers?)(?: x)?,? (?:except|other than|but|excluding)(?: for)? (?:x = )?"
    r"(?P<points>.+)"
)
_FOR_ALL = re.compile(r"(?:for )?(?:all|any|every)\s+(?=[a-z]\s*(?:[<>≤≥]|\\[lg]e?q?\b))", re.I)
_IN_BASE = re.compile(r"(?P<digits>[0-9A-F]{1,200}+)\s*\(?(?:in )?base[ -](?P<base>\d{1,2})\)?")
_REMAINDER = re.compile(
    r"(?P<whole>\d+),?\s*(?:R\.?|r\.?|rem\.?|(?:with )?(?:an? )?remainder(?: of)?)\s*(?P<rest>\d+)", re.ASCII
)
_OR_MORE = re.compile(r"(?P<number>[-+]?[\d.,]+) or (?P<way>more|greater|above|less|fewer|below)", re.IGNORECASE)
_WHOLE = {
    "no solution": r"\emptyset",
    "no solutions": r"\emptyset",
    "empty set": r"\emptyset",
    "the empty set": r"\emptyset",
    "all real numbers": r"\mathbb{R}",
    "all reals": r"\mathbb{R}",
    "dne": "does not exist",
    "limit does not exist": "does not exist",
    "the limit does not exist": "does not exist",
}


def _plain(answer: str) -> str:
    """Write phrases as signs, and take decoration away."""
    text = strip_markup(same_characters(answer))
    words = " ".join(without_text_commands(text).split())
    if (whole := _WHOLE.get(words.casefold())) is not None:
        return whole
    text = _BEFORE_NUMBER.sub("", _BEFORE_TIME.sub("", with_digits(text)))
    if re.match(r"[-+(\d.\\$€£¥₹\x01]", text):
        text = _AFTER_NUMBER.sub("", text)
    for pattern, instead in _PHRASES:
        text = pattern.sub(instead, text)
    bare = text.strip()
    if more := _OR_MORE.fullmatch(bare):
        sign = r"\geq" if more["way"].lower() in ("more", "greater", "above") else r"\leq"
        return f"{sign} {more['number']}"
    if excepted := _EXCEPT.fullmatch(words):
        return rf"\mathbb{{R}} \setminus \{{{excepted['points']}\}}"
    if based := _IN_BASE.fullmatch(bare):
        return f"{based['digits']}_{{{based['base']}}}"
    if divided := _REMAINDER.fullmatch(bare):
        return f"{divided['whole']} R {divided['rest']}"
    return _FOR_ALL.sub("", text, count=1) if _FOR_ALL.match(text) else text


class Answer(NamedTuple):
    """The tokens of an answer, and what it may denote; no reading if a token has no place in the grammar."""

    tokens: list[Token]
    readings: tuple[Term, ...]


def read_answer(answer: str) -> Answer:
    """Return the tokens of an answer and its readings: more than one if `2,5` or `5m` may be read in two ways."""
    text = _plain(answer)
    tokens = tokens_of(text)
    readings = [read(tokens)]
    if any(a.kind == "number" and b.kind == "word" and not b.spaced for a, b in pairwise(tokens)):
        readings.append(read(tokens, glued_units=True))
    if not re.search(r"[()\[\]{}]", text):
        readings += [read(tokens_of(other)) for other in {with_decimal_point(text), _ungrouped(text)} - {text}]
    if among := _TO.fullmatch(text.strip()):  # odds or a range
        readings += [read(tokens_of(f"{among['a']}{sign}{among['b']}")) for sign in ":-"]
    found = tuple(dict.fromkeys(reading for reading in readings if reading is not None))
    return Answer(tokens, found)


_TO = re.compile(r"(?P<a>\d+(?:\.\d+)?) to (?P<b>\d+(?:\.\d+)?)", re.ASCII)
_GROUPED = re.compile(
    r"(?<![\w.,'])(?:[1-9]\d?(?:,\d\d)+,\d{3}(?:\.\d+)?|[1-9]\d{0,2}(?:(?:'\d{3})+|(?:_\d{3})+)(?:\.\d+)?"
    r"|[1-9]\d{0,2}(?:\.\d{3}){2,20})(?![\w,'])",
    re.ASCII,
)
_DECIMAL_COMMA = re.compile(
    r"(?<![\d.,])(?P<whole>[1-9]\d{0,2}(?:(?:[ \u00a0\u2009\u202f]\d{3}){1,20}|(?:\.\d{3}){1,20})(?=,)|\d+)"
    r",(?P<decimals>\d+)(?![\d.,])",
    re.ASCII,
)
_THOUSANDS = re.compile(r"[1-9]\d{0,2},\d{3}", re.ASCII)


def _ungrouped(text: str) -> str:
    """Join the groups of digits of a text with one number: `12,34,567`, `1'234'567`, `1_234_567`, `1.234.567`."""
    return _GROUPED.sub(_joined, text) if len(_GROUPED.findall(text)) == 1 else text


def _joined(number: re.Match[str]) -> str:
    separators = ".,'_" if number[0].count(".") > 1 else ",'_"
    return number[0].translate(str.maketrans("", "", separators))


def with_decimal_point(text: str) -> str:
    """Replace the decimal comma of a text with one number by a point; keep a comma that groups thousands."""
    if len(_DECIMAL_COMMA.findall(text)) != 1:
        return text
    return _DECIMAL_COMMA.sub(_with_point, text)


def _with_point(number: re.Match[str]) -> str:
    if _THOUSANDS.fullmatch(number[0]):
        return number[0]
    whole = re.sub("[ .\u00a0\u2009\u202f]", "", number["whole"])
    return f"{whole}.{number['decimals']}"
