r"""Answers with forms of their own: dates and times of day, chemical formulas, choices, and answers in parts.

Dates have a named month or are in ISO 8601. A date in numbers such as `05/03/2024` is ambiguous, and a time such as
`5:30` may be either half of the day; neither is read here.

Of chemical formulas (`H_2O`, `H₂O`, `\ce{H2O}`), only what is one by its form is read: element symbols with numbers,
charges and arrows, the name of a hybrid orbital, or an electron configuration. Case and order count, so `CO` is not
`Co`, and `HO2` not `H2O`.

A label such as `B)` or `(B)` before a text is decoration of that text; two labels must agree. Where the expected answer
is yes, no, true or false, the first word of the given one is compared, unless the rest takes it back.
"""

import re
from collections.abc import Callable
from datetime import date
from typing import NamedTuple

from judge_server.verifiers.notation import same_characters, strip_markup, tokens_of

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?)"
)
_DAY, _YEAR = r"(?:the )?(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<year>\d{4})"
_DATES = [
    re.compile(rf"(?:(?P<weekday>{'|'.join(DAYS)}),? )?{form}", re.ASCII)
    for form in (
        rf"(?P<month>{MONTH})\.? {_DAY}(?:,? {_YEAR})?",
        rf"{_DAY} (?:of )?(?P<month>{MONTH})\.?(?:,? {_YEAR})?",
        rf"{_YEAR}-(?P<number>\d\d)-(?P<day>\d\d)",
    )
]
_HALF = re.compile(
    r"(?P<hour>1[0-2]|0?[1-9])(?::(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?)? ?(?P<half>[ap])\.? ?m\.?"
)
_WHOLE = re.compile(r"(?P<hour>0\d|1[3-9]|2[0-3]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?")
_ZONE = re.compile(r"(?<=[\dm.]) ?\(?(?P<zone>utc|gmt|cet|[a-z]{1,3}[sd]t|[ecmp]t)\)?\Z")
_NAMED_TIMES = dict.fromkeys(["noon", "12 noon", "12:00 noon"], "12 pm")
_NAMED_TIMES |= dict.fromkeys(["midnight", "12 midnight", "12:00 midnight"], "12 am")


def date_or_time(answer: str) -> tuple[str, ...] | None:
    """Return a date as year, month and day, or a time of day in seconds with its zone; None if an answer is neither.

    Zones are compared as they are written, and a time without one is not that of a zone. A weekday must be that of the
    date; without a year, it is a part of the date.
    """
    if len(answer) > 80:
        return None
    bare = re.sub(r"\\text\s*\{([^{}]*)\}|\\[!,;: ]", r" \1 ", strip_markup(same_characters(answer))).casefold()
    text = re.sub(r" ?: ?", ":", " ".join(bare.split()))
    for pattern in _DATES:
        if found := pattern.fullmatch(text):
            parts = found.groupdict()
            month = int(parts.get("number") or _MONTHS.index(parts["month"][:3]) + 1)
            return _date(parts.get("year"), month, int(parts["day"]), parts["weekday"])
    zone = ""
    if zoned := _ZONE.search(text):
        text, zone = text[: zoned.start()], zoned["zone"]
    text = _NAMED_TIMES.get(text, text)
    if (time := _HALF.fullmatch(text) or _WHOLE.fullmatch(text)) is None:
        return None
    hour = int(time["hour"])
    if half := time.groupdict().get("half"):
        hour = hour % 12 + 12 * (half == "p")
    return ("time", str(3600 * hour + 60 * int(time["minute"] or 0) + int(time["second"] or 0)), zone)


def _date(year: str | None, month: int, day: int, weekday: str | None) -> tuple[str, ...] | None:
    try:
        exact = date(int(year or 2000), month, day)
    except ValueError:
        return None
    if year is not None and weekday not in (None, DAYS[exact.weekday()]):
        return None
    return ("date", year or "", str(month), str(day), weekday or "" if year is None else "")


MAX_CHARACTERS = 300
"""The most characters of a chemical formula."""

_ELEMENT = (
    "A[cglmrstu]|B[aehikr]?|C[adeflmnorsu]?|D[bsy]|E[rsu]|F[elmr]?|G[ade]|H[efgos]?|I[nr]?|Kr?|L[airuv]|M[cdgnot]"
    "|N[abdehiop]?|O[gs]?|P[abdmortu]?|R[abefghnu]|S[bcegimnr]?|T[abehilms]|U|V|W|Xe|Yb?|Z[nr]"
)
_GROUP = rf"(?:(?:{_ELEMENT})\d{{0,4}})"
_SPECIES = rf"(?:{_GROUP}|[(\[]{_GROUP}{{1,20}}+[)\]]\d{{0,4}}){{1,40}}+(?:\^\d?[+-])?(?:\((?:s|l|g|aq)\))?"
_SIDE = rf"\d{{0,3}}{_SPECIES}(?:\+\d{{0,3}}{_SPECIES}){{0,8}}+"
_FORMULA = re.compile(rf"{_SIDE}(?:(?:->|=){_SIDE})?")
_ORBITALS = re.compile(r"d?2?sp[23]?d?2?|(?:\[[A-Z][a-z]\])?(?:[1-7][spdf]\d{1,2})+")
_SIGNS = {
    "\\to": "->",
    "\\longrightarrow": "->",
    "\\cdot": ".",
    "_": "",
    "{": "",
    "}": "",
    "\\ce": "",
    "\\{": "",
    "\\}": "",
}


def chemical_formula(answer: str) -> str | None:
    """Return a chemical formula in one way of writing; None if an answer is none, or has no number to be written."""
    if len(answer) > MAX_CHARACTERS:
        return None
    written = "".join([_SIGNS.get(token.text, token.text) for token in tokens_of(answer)])
    written = re.sub(r"\^([+-])(\d)(?!\d)", r"^\2\1", written)
    written = re.sub(r"(?<!\^\d)(?<=[A-Za-z\d)\]])([+-])\Z", r"^\1", written)
    plain = written.replace("^", "")
    if _ORBITALS.fullmatch(plain):
        return plain
    return written if re.search(r"[A-Za-z)\]]\d|\^|->", written) and _FORMULA.fullmatch(written) else None


_CHOICE = re.compile(
    r"(?:(?:the\s++)?(?:correct\s++)?(?:option|choice|answer|alternative)(?:\s*+:)?\s++)?"
    r"(?P<open>[(\[]?)(?P<letter>[A-Za-z])(?P<close>\s+[-–—](?=\s)|[)\]]?[.:]?\)?)(?:\s+(?P<rest>\S.*))?",
    re.DOTALL | re.IGNORECASE,
)
_ANOTHER_CHOICE = re.compile(
    r"(?:^|[\s,;(])\(?[A-Za-z][).]|(?:\b(?i:or|and|no|not|but|actually|rather|wait)|[,;])\s+\(?[A-J]\b"
    r"|\b(?i:wrong|incorrect|false|not)\b"
)
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|textsf|mathrm|mathbf|mbox)\s*\{(?P<inside>[^{}]*)\}")
_SPACE = re.compile(r"(?<!\\)\\ |(?<=[^\s(])~")
_SEVERAL = re.compile(r"(?:\(?[A-J]\)?(?:\s*[,;&]\s*(?:and\s+)?|\s+and\s+|\s+(?=\S)))+\(?[A-J]\)?")

_LONGEST_LIST = 100


class Choice(NamedTuple):
    """The letter of a choice, and the text after it or nothing."""

    letter: str
    text: str


def same_choice(expected: str, answer: str, equal: Callable[[str, str], bool]) -> bool | None:
    """Whether two choices are the same; None if an answer is no choice, so that other rules must decide.

    Args:
        expected: the expected answer: `B`, `(b) 42`, `AC`, or the text of a choice.
        answer: the given one.
        equal: compares the texts of two choices.
    """
    if same_letters(expected, answer):
        return True
    one, other = read_choice(expected), read_choice(answer)
    if one is None or other is None:
        labelled, bare = (one, answer) if one is not None else (other, expected)
        return True if labelled is not None and labelled.text and equal(labelled.text, bare) else None
    if not one.text and not other.text and one.letter != other.letter and one.letter.upper() == other.letter.upper():
        return one.letter.upper() < "I"
    if one.letter.upper() != other.letter.upper():
        return False
    return not one.text or not other.text or equal(one.text, other.text)


def read_choice(answer: str) -> Choice | None:
    """Read the letter of a choice and the text that follows it; None if an answer is no choice."""
    match = _CHOICE.fullmatch(_bare(answer))
    if match is None or {"(": ")", "[": "]", "": ""}[match["open"]] not in match["close"]:
        return None
    rest, is_dash = match["rest"] or "", match["close"].strip() in ("-", "–", "—")
    if (is_dash and not re.match("[A-Za-z]{2}", rest)) or ("]" in match["close"] and not match["open"]):
        return None
    if rest and (not match["close"] or match["letter"].upper() > "J" or _ANOTHER_CHOICE.search(rest)):
        return None
    return Choice(match["letter"], rest)


def same_letters(expected: str, answer: str) -> bool:
    """Whether one answer lists several letters and the other writes the same ones side by side: `A, C` and `AC`."""
    texts = [_bare(text) for text in (expected, answer)]
    for listed, joined in (texts, texts[::-1]):
        if re.fullmatch("[A-J]{2,10}", joined) and len(listed) <= _LONGEST_LIST and _SEVERAL.fullmatch(listed):
            letters = re.findall("[A-J]", listed)
            return joined == "".join(sorted(set(letters))) and len(letters) == len(joined)
    return False


_WHETHER = re.compile(
    r"(?P<word>yes|no|true|false)(?:(?:[.,;:!]|\s*[–—]|\s+-(?=\s))\s*(?P<rest>\S.*))?", re.IGNORECASE | re.DOTALL
)
_NOT_SURE = re.compile(
    r"\b(?:yes|no|true|false|but|however|if|unless|except|only|or|either|maybe|perhaps|possibly|sometimes|might|may|could"
    r"|would|depends|partly|partially|actually|wait|although|though|otherwise|unsure|unclear|wrong|incorrect)\b|\?",
    re.IGNORECASE,
)
_DENIES = re.compile(r"\b(?:not|never|cannot|neither|nor)\b|n['’]t\b", re.IGNORECASE)


def same_truth(expected: str, answer: str) -> bool | None:
    """Whether an answer says the expected yes, no, true or false; None if the expected answer is none of these alone.

    What follows the word must not take it back: no condition, no second such word, and no denial after a yes.
    """
    wanted, given = _WHETHER.fullmatch(_bare(expected)), _WHETHER.fullmatch(_bare(answer))
    if wanted is None or wanted["rest"] is not None or given is None or given["rest"] is None:
        return None
    said = given["word"].casefold()
    if _NOT_SURE.search(given["rest"]) or (said in ("yes", "true") and _DENIES.search(given["rest"])):
        return None
    return said == wanted["word"].casefold()


_PART = re.compile(
    r"(?:^|(?<=[\s,;.]))(?:part\s+)?(?:\((?P<a>[a-h]|i{1,3}|i?v|[1-9])\)|(?P<b>[a-h]|i{1,3}|i?v|[1-9])[.):](?=\s))[:\s]*",
    re.IGNORECASE,
)
_ORDERS = (tuple("abcdefgh"), tuple("123456789"), ("i", "ii", "iii", "iv", "v"))


def same_parts(expected: str, answer: str, equal: Callable[[str, str], bool]) -> bool | None:
    """Whether two answers in labelled parts are equal part by part; None if one of them has no such parts."""
    one, other = read_parts(expected), read_parts(answer)
    if one is None or other is None:
        return None
    return one.keys() == other.keys() and all(equal(part, other[label]) for label, part in one.items())


def read_parts(answer: str) -> dict[str, str] | None:
    """Read `(a) 5, (b) 7` as its parts by label; None if labels lack, repeat or are out of order."""
    text = _bare(answer)
    labels = list(_PART.finditer(text))
    names = tuple((label["a"] or label["b"]).casefold() for label in labels)
    if len(labels) < 2 or labels[0].start() or all(names != order[: len(names)] for order in _ORDERS):
        return None
    ends = [*(label.start() for label in labels[1:]), len(text)]
    parts = [
        text[label.end() : end].rstrip(" \n,;.").removesuffix(" and") for label, end in zip(labels, ends, strict=True)
    ]
    return dict(zip(names, parts, strict=True)) if all(parts) else None


def _bare(answer: str) -> str:
    return strip_markup(without_text_commands(strip_markup(same_characters(answer)))).strip()


def without_text_commands(answer: str) -> str:
    r"""Replace `\text{…}`, `\mathrm{…}` and the like by their content."""
    return _SPACE.sub(" ", _TEXT_COMMAND.sub(lambda command: f" {command['inside']} ", answer))
