"""Read dates with a named month or in ISO 8601, and times of day: `March 5, 2024`, `2024-03-05`, `5:30 PM`, `17:30`.

A date in numbers such as `05/03/2024` is ambiguous, and a time such as `5:30` may be either half of the day; neither is
read here.
"""

import re
from datetime import date

from judge_server.verifiers.notation import same_characters, strip_markup

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
_NAMED_TIMES = dict.fromkeys(["noon", "12 noon", "12:00 noon"], "12 pm")
_NAMED_TIMES |= dict.fromkeys(["midnight", "12 midnight", "12:00 midnight"], "12 am")


def date_or_time(answer: str) -> tuple[str, ...] | None:
    """Return a date as year, month and day, or a time of day in seconds; None if an answer is neither.

    A weekday must be that of the date; without a year, it is a part of the date.
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
    text = _NAMED_TIMES.get(text, text)
    if (time := _HALF.fullmatch(text) or _WHOLE.fullmatch(text)) is None:
        return None
    hour = int(time["hour"])
    if half := time.groupdict().get("half"):
        hour = hour % 12 + 12 * (half == "p")
    return ("time", str(3600 * hour + 60 * int(time["minute"] or 0) + int(time["second"] or 0)))


def _date(year: str | None, month: int, day: int, weekday: str | None) -> tuple[str, ...] | None:
    try:
        exact = date(int(year or 2000), month, day)
    except ValueError:
        return None
    if year is not None and weekday not in (None, DAYS[exact.weekday()]):
        return None
    return ("date", year or "", str(month), str(day), weekday or "" if year is None else "")
