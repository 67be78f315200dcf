"""Write numbers in English words as digits: `twenty-five` as `25`, `two thirds` as `2 thirds`, `seventh` as `7th`.

Only whole number words become digits; a word that scales a number (`thirds`, `dozen`) stays for the reader.
"""

import re

_UNITS = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen",
)
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SMALL = {word: value for value, word in enumerate(_UNITS)} | {
    word: 10 * (index + 2) for index, word in enumerate(_TENS)
}
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_WORD = "|".join(sorted([*_SMALL, *_LARGE, "hundred"], key=len, reverse=True))
_FIRST = "|".join(sorted(_SMALL, key=len, reverse=True))
_RUN = re.compile(
    rf"(?<![\w\\])(?:{_FIRST})(?!\w)"
    rf"(?:(?:(?:(?<=hundred)|(?<=thousand)|(?<=[mb]illion))[ \t]+and)?[ \t-]+(?:{_WORD})(?!\w)){{0,20}}+",
    re.IGNORECASE,
)
_PARTS = "half|halves|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|hundredths?"
_HYPHENATED = re.compile(rf"(?<=\d)-(?=(?:{_PARTS})\b)", re.IGNORECASE)
_ONE_PART = re.compile(rf"(?:(?:a|an|one)[ -])(?P<part>{_PARTS})|(?P<half>half)", re.IGNORECASE)
_ORDINALS = re.findall(
    r"\w+",
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth"
    " fifteenth sixteenth seventeenth eighteenth nineteenth twentieth",
)
_ORDINAL_DIGITS = re.compile(r"(?P<digits>\d+)(?:st|nd|rd|th)", re.ASCII | re.IGNORECASE)


def with_digits(text: str) -> str:
    """Return a text with each number in words as digits, and with an ordinal that is all of it as `7th`.

    Words that form no number, such as `one two`, stay as they are.
    """
    whole = " ".join(text.casefold().split()).removeprefix("the ")
    if whole in _ORDINALS:
        return f"{_ORDINALS.index(whole)}th"
    if ordinal := _ORDINAL_DIGITS.fullmatch(whole):
        return f"{ordinal['digits']}th"
    if part := _ONE_PART.fullmatch(whole):
        return f"1 {part['part'] or part['half']}"
    return _HYPHENATED.sub(" ", _RUN.sub(_digits, text))


def _digits(run: re.Match[str]) -> str:
    number = _number([word for word in re.split(r"[\s-]+", run[0].casefold()) if word != "and"])
    return run[0] if number is None else str(number)


def _number(words: list[str]) -> int | None:
    """Return the number that words name in order; None if they name none."""
    total, group, last_scale = 0, 0, 10**15
    previous = 0  # the place of the last small word: 1 for units, 10 for tens, 100 for hundreds
    for word in words:
        if word in _SMALL:
            value = _SMALL[word]
            if previous == 1 or (previous == 10 and not 0 < value < 10):
                return None
            group += value
            previous = 10 if value >= 20 else 1
        elif word == "hundred":
            if not 0 < group < 100 or previous == 100:
                return None
            group *= 100
            previous = 100
        else:
            if not group or _LARGE[word] >= last_scale:
                return None
            last_scale = _LARGE[word]
            total += group * last_scale
            group, previous = 0, 0
    return total + group
