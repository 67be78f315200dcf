"""Compare two answers: as what they denote where every token of both is accounted for, else as text.

Both answers are read in the same way, by `judge_server.verifiers.reader`. `docs/reference/reading-responses.md` lists
what is equal to what. Comparing may take long on a hostile answer, so it runs in a worker process that can be killed.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from judge_server.verifiers.answers import read_answer, stated_value
from judge_server.verifiers.check import texts_equal
from judge_server.verifiers.notation import Token, strip_markup, tokens_of
from judge_server.verifiers.same import is_roughly, same
from judge_server.verifiers.terms import RELATIONS, Term
from judge_server.verifiers.values import symbols
from judge_server.verifiers.written_forms import chemical_formula, date_or_time, same_choice, same_parts, same_truth
from trainer_client.final_answer import extract_final_answer

MAX_CHARACTERS = 20_000
"""The most characters of an answer that is read; longer ones are compared as texts."""


_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{5,}")
"""A word that no formula has; a text with one is compared as text, whatever its brackets."""


class UnreadableFormula(ValueError):
    """The expected answer is broken: brackets that do not close, or an operator without an operand."""


def equal(expected: str, answer: str) -> bool:
    """Whether a final answer equals the expected one, as written or as stated in a sentence ("The speed is 80 km/h").

    Raises `UnreadableFormula` if the expected answer is broken and the answer is not the same text.
    """
    if _equal(expected, answer):
        return True
    values = [_without_restatement(stated_value(text) or text) for text in (expected, answer)]
    if values != [expected, answer] and _equal(*values):
        return True
    if len(expected) <= MAX_CHARACTERS and not _WORD.search(expected) and is_broken(tokens_of(expected)):
        if chemical_formula(expected) is not None:
            return False
        raise UnreadableFormula(expected)
    return False


def response_states(expected: str, response: str) -> bool:
    """Whether the answer that a full response states, or all of it, equals the expected one.

    Without a stated answer, that is the last sentence or the last formula in delimiters.
    Raises `UnreadableFormula` if the expected answer is broken.
    """
    stated = extract_final_answer(response)
    if stated is not None:
        return equal(expected, stated)
    sentences = _SENTENCE_END.split(response.strip())
    candidates = [response, sentences[-1], *_FORMULA.findall(sentences[-1])[-1:], *_FORMULA.findall(response)[-1:]]
    return any(equal(expected, candidate) for candidate in dict.fromkeys(candidates))


_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_FORMULA = re.compile(
    r"\$\$[^$]++\$\$|\$[^$]++\$|\\\((?:[^\\]|\\(?![()\[\]]))*+\\\)|\\\[(?:[^\\]|\\(?![()\[\]]))*+\\\]"
)


def _equal(expected: str, answer: str) -> bool:
    if max(len(expected), len(answer)) > MAX_CHARACTERS:
        return texts_equal(strip_markup(expected), strip_markup(answer), case_sensitive=False)
    scale, letter = _DEGREES.search(expected), _LETTER_OF_SCALE.search(answer)
    if scale is not None and letter is not None and letter[1] == scale["scale"]:
        answer = f"{answer[: letter.start()]}°{letter[1]}"
    wanted, given = read_answer(expected), read_answer(answer)
    if not wanted.tokens or not given.tokens:
        return strip_markup(expected) == strip_markup(answer)
    if _written(wanted.tokens) == _written(given.tokens):
        return True
    if any((one := read(expected)) is not None and one == read(answer) for read in (chemical_formula, date_or_time)):
        return True
    if (truth := same_truth(expected, answer)) is not None:
        return truth
    if (parts := same_parts(expected, answer, _equal)) is not None:
        return parts
    if (choice := same_choice(expected, answer, _equal)) is not None:
        return choice
    return any(same(a, b) or _gives(b, a) for a in wanted.readings for b in given.readings)


_DEGREES = re.compile(
    r"\d\s*+(?:°|\^\s*+(?:\{\s*+)?+\\circ\s*+\}?+)\s*+(?:\\(?:text|mathrm)\s*+\{\s*+)?+(?P<scale>[CF])\b"
)
_LETTER_OF_SCALE = re.compile(r"(?<=\d) ?([CF])\Z")
"""An expected temperature, for which an answer may leave the degree sign out: `32 F`."""


def _gives(answer: Term, wanted: Term) -> bool:
    r"""Whether an answer is an equation that gives the expected number: `m + n = 33`, `\sin A = 3/5`.

    An expected equation is no such number: `5` does not answer a question for the line `x + y = 5`.
    """
    if answer.head != "relation" or wanted.head not in ("quantity", "number", "negate", "divide", "multiply", "call"):
        return False
    name, *values = answer.parts
    signs = answer.text.split()
    if len(values) != len(signs) or not set(signs) <= {"=", "~"} or not symbols(name) or any(map(symbols, values)):
        return False
    agree = all(
        (same if sign == "=" else is_roughly)(*pair) for sign, pair in zip(signs[1:], pairwise(values), strict=True)
    )
    return agree and not symbols(wanted) and same(wanted, values[0])


_ROUGHLY = re.compile(r"≈|≃|~|\\approx|\\sim|about|approximately|approx\.?|roughly")
_RESTATEMENT = re.compile(
    r"(?P<value>[^()]{1,200}?),?\s*"
    rf"(?:\s\((?P<sign>{_ROUGHLY.pattern}|=|or|i\.e\.,?|that is,?)?(?P<a>[^()]{{1,200}})\)"
    r"|\s(?P<sign_b>i\.e\.,?|that is,?|or approximately|or about|or roughly)\s(?P<b>[^()]{1,200}))"
)


def _without_restatement(answer: str) -> str:
    r"""Return the value of `2\sqrt{3} (≈ 3.46)`, `1/2 (or 0.5)` or `42 (forty-two)`, if both parts are the same."""
    match = _RESTATEMENT.fullmatch(answer.strip())
    if match is None:
        return answer
    sign = match["sign"] or match["sign_b"] or ""
    value, again = match["value"].strip("*_ "), (match["a"] or match["b"]).strip()
    if value == again:
        return answer
    agree = is_roughly if _ROUGHLY.search(sign) else same
    values, others = read_answer(value).readings, read_answer(again).readings
    return value if any(agree(a, b) for a in values for b in others) else answer


_MILLI = frozenset(["meV", "mPa", "mHz", "mWh", "mBq", "mGy", "mSv"])
"""Units whose first letter as a capital is another prefix: `2 meV` is not `2 MeV`."""


def _written(tokens: Sequence[Token]) -> list[str]:
    """Return an answer as it is compared as text: the tokens in order, without braces around a single one."""
    in_words = any(token.kind == "word" and len(token.text) > 2 for token in tokens)
    if in_words and len(tokens) > 1 and tokens[0].text.casefold() in ("the", "a", "an") and len(tokens[1].text) > 2:
        tokens = tokens[1:]
    written: list[str] = []
    for token in tokens:
        text = token.text
        if in_words and text == "and" and written:  # `Monday and Friday` is `Monday, Friday`
            written += [","] if written[-1] != "," else []
            continue
        if token.kind == "word" and text not in _MILLI:
            text = text.casefold() if in_words or text.casefold() in ("no", "am", "pm", "yes") else text
            single = len(text) == 1 and written and len(written[-1]) >= 1 and written[-1].startswith("\0")
            if single and not in_words:
                written[-1] += text
                continue
            text = "\0" + text if len(text) == 1 or not in_words else "\0 " + text
        elif text == "}" and len(written) > 1 and written[-2] == "{":
            written.pop(-2)
            continue
        elif text == ")" and len(written) > 2 and "mod" in written[-2] and written[-3] == "(":
            written.pop(-3)
            continue
        written.append(text)
    return [text.removeprefix("\0").strip() for text in written if text != " "]


_OPERATORS = frozenset(["+", "-", "*", "/", "^", "_", "\\cdot", "\\times", "\\pm", *RELATIONS])
_PAIRS = {"}": "{", "\\}": "\\{"}


def is_broken(tokens: Sequence[Token]) -> bool:
    """Whether an answer is no whole one: nothing but signs, braces that do not close, or an operand that lacks."""
    opened: list[str] = []
    for token in tokens:
        if token.text in _PAIRS.values():
            opened.append(token.text)
        elif token.text in _PAIRS and (not opened or opened.pop() != _PAIRS[token.text]):
            return True
    if opened or not tokens:
        return True
    has_content = any(token.kind in ("number", "word") or token.text.startswith("\\") for token in tokens)
    last = tokens[-1].text
    return not has_content or (
        last in _OPERATORS
        and (len(tokens) < 2 or tokens[-1].kind != "sign" or last not in "-+" or not tokens[-2].text.isalpha())
    )
