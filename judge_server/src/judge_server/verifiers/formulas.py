"""Compare answers as mathematics with math-verify, and answers in words as text.

math-verify would read words as products of letters. It may hang or exhaust memory, so it runs in a worker process that
can be killed.
"""

import re

import math_verify  # type: ignore[import-untyped]

from judge_server.verifiers.check import (
    read_quantity,
    stated_value,
    strip_markup,
    texts_equal,
    without_spaced_groups,
    without_text_commands,
)

_LETTER = re.compile(r"\(?(?P<letter>[A-Za-z])\)?")
_LABEL = re.compile(r"\(?(?P<letter>[A-Za-z])[).:]\s.*", re.DOTALL)
_SIGNS = re.compile(r"[\\^_=<>{}|$+*]|/\s*\d|\d\s*/")
_WORD = re.compile(r"[^\W\d_]{3,}|\b(?i:no)\b")
_OTHER_SCRIPT = re.compile(r"[^\W\d_a-zA-Z\u0370-\u03ff]")
_MATHEMATICAL = re.compile("and|(?:arc)?(?:sin|cos|tan|cot|sec|csc)|log|exp|sqrt|max|min|gcd|lcm|mod|det")
_BARE_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])|π")
_PI = r"\\pi "
_UPRIGHT_E = re.compile(r"\\(?:mathrm|text)\s*\{\s*e\s*\}")

_Formulas = list[object]


class UnreadableFormula(ValueError):
    """The expected answer cannot be read as mathematics or words."""


def equal(expected: str, answer: str) -> bool:
    """Whether a final answer equals the expected one, as written or as stated in a sentence ("The speed is 80 km/h").

    Identical texts are equal whether or not they can be read. Raises `UnreadableFormula` if the expected answer has to
    be read and cannot.
    """
    return _equal(expected, answer) or ((value := stated_value(answer)) is not None and _equal(expected, value))


def _equal(expected: str, answer: str) -> bool:
    if texts_equal(strip_markup(expected), strip_markup(answer), case_sensitive=True):
        return True
    if _in_words(expected):
        return _same_words(expected, answer)
    if (letter := _letter(expected)) and letter in (_letter(answer), _label(answer)):
        return True
    return _same_decimal(expected, answer) or _verify(_parse(expected), _read(_boxed(answer)))


def response_states(expected: str, response: str) -> bool:
    """Whether the answer that math-verify finds in a full response equals the expected one.

    Raises `UnreadableFormula` if the expected answer cannot be read.
    """
    if _in_words(expected):
        return _same_words(expected, response)
    return _verify(_parse(expected), _read(response))


def _parse(expected: str) -> _Formulas:
    parsed = _read(_boxed(expected))
    if not parsed:
        raise UnreadableFormula(expected)
    return parsed


def _boxed(answer: str) -> str:
    quantity = read_quantity(answer)
    if quantity is not None and "=" not in answer and not quantity.decimal_comma:
        return rf"\boxed{{{quantity.digits}{'%' * quantity.percent}}}"
    formula = _UPRIGHT_E.sub("e", without_spaced_groups(strip_markup(answer)))
    return rf"\boxed{{{_BARE_PI.sub(_PI, formula)}}}"


def _same_decimal(expected: str, answer: str) -> bool:
    """Whether two numbers, at least one with a decimal comma, are equal. `_verify` compares them as lists."""
    wanted, given = read_quantity(expected), read_quantity(answer)
    if wanted is None or given is None or not (wanted.decimal_comma or given.decimal_comma):
        return False
    return wanted.value == given.value and wanted.percent == given.percent


def _read(text: str) -> _Formulas:
    formulas: _Formulas = math_verify.parse(text, fallback_mode="no_fallback", parsing_timeout=None)
    return formulas


def _verify(wanted: _Formulas, given: _Formulas) -> bool:
    try:
        return bool(given) and bool(math_verify.verify(wanted, given, timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - sympy raises anything on what it cannot compare
        return False


def _in_words(answer: str) -> bool:
    """Whether an answer is words (`Paris`, `June 20`) and not a formula: it has letters that name no function."""
    if read_quantity(answer) is not None:
        return False
    bare = without_text_commands(strip_markup(answer))
    if _SIGNS.search(bare):
        return False
    words = (word for word in _WORD.findall(bare) if not _MATHEMATICAL.fullmatch(word))
    return any(words) or _OTHER_SCRIPT.search(bare) is not None


def _same_words(expected: str, answer: str) -> bool:
    return texts_equal(_words(expected), _words(answer), case_sensitive=False)


def _words(answer: str) -> str:
    return strip_markup(without_text_commands(strip_markup(answer)))


def _letter(answer: str) -> str | None:
    match = _LETTER.fullmatch(_words(answer))
    return match["letter"].upper() if match else None


def _label(answer: str) -> str | None:
    match = _LABEL.fullmatch(_words(answer))
    return match["letter"].upper() if match else None
