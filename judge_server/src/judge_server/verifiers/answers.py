"""Read an answer: write its phrases as signs, take decoration away, and find every reading that leaves nothing out."""

import re
from itertools import pairwise
from typing import NamedTuple

from judge_server.verifiers.notation import Token, same_characters, strip_markup, tokens_of
from judge_server.verifiers.reader import Term, read

_SENTENCE = re.compile(
    r"(?P<subject>[^\d,;:=\\]{1,200}?)\b(?:is|are|was|equals)\b[ \t]*:?[ \t]+(?P<value>\S.*)", re.DOTALL
)
_OF_THE_ANSWER = re.compile(
    r"\b(?:twice|double|triple|half|third|quarter|opposite|negative|minus|square|cube|root|reciprocal|inverse|multiple)\b"
    r"[^.]{0,12}\b(?:answer|result|solution|value|number|it|that|this|x)\b",
    re.IGNORECASE,
)
_COPULA = re.compile(r"\b(?:is|are|was|equals)\b")
_HEDGE = re.compile(
    r"\b(?:or|either|neither|nor|not|never|no|if|unless|whether|wrong|false|incorrect)\b|n't\b", re.IGNORECASE
)


def stated_value(answer: str) -> str | None:
    """Return the value that a sentence states: `80 km/h` for `The average speed is 80 km/h.`; None if it is not one.

    The sentence must have one verb ("is", "are", "was", "equals"), and nothing before it may be an answer itself: no
    number, formula, list or "or". So a sentence that offers several answers gives none of them.
    """
    bare = strip_markup(answer)
    match = _SENTENCE.fullmatch(bare)
    if match is None or len(_COPULA.findall(bare)) > 1:
        return None
    if _HEDGE.search(match["subject"]) or _OF_THE_ANSWER.search(match["subject"]):
        return None
    return match["value"]


_ABOUT = re.compile(
    r"(?:about|approximately|approx\.?|around|roughly|nearly|almost|exactly|circa|ca\.)\s+(?=[-+(\d.\\$€£¥₹\x01])",
    re.IGNORECASE,
)
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
)
_OR_MORE = re.compile(r"(?P<number>[-+]?[\d.,]+) or (?P<way>more|greater|above|less|fewer|below)", re.IGNORECASE)
_WHOLE = {
    "no solution": r"\emptyset",
    "no solutions": r"\emptyset",
    "empty set": r"\emptyset",
    "the empty set": r"\emptyset",
    "all real numbers": r"\mathbb{R}",
    "all reals": r"\mathbb{R}",
}


def _plain(answer: str) -> str:
    """Write phrases as signs, and take decoration away."""
    text = strip_markup(same_characters(answer))
    text = _ABOUT.sub("", text, count=1) if _ABOUT.match(text) else text
    for pattern, instead in _PHRASES:
        text = pattern.sub(instead, text)
    if more := _OR_MORE.fullmatch(text.strip()):
        sign = r"\geq" if more["way"].lower() in ("more", "greater", "above") else r"\leq"
        text = f"{sign} {more['number']}"
    return _WHOLE.get(" ".join(text.casefold().split()), text)


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
    pointed = with_decimal_point(text)
    if pointed != text and not re.search(r"[()\[\]{}]", text):
        readings.append(read(tokens_of(pointed)))
    found = tuple(dict.fromkeys(reading for reading in readings if reading is not None))
    return Answer(tokens, found)


_DECIMAL_COMMA = re.compile(
    r"(?<![\d.,])(?P<whole>[1-9]\d{0,2}(?:(?:[ \u00a0\u2009\u202f]\d{3}){1,20}|(?:\.\d{3}){1,20})(?=,)|\d+)"
    r",(?P<decimals>\d+)(?![\d.,])",
    re.ASCII,
)
_THOUSANDS = re.compile(r"[1-9]\d{0,2},\d{3}", re.ASCII)


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
