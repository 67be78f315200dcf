r"""Write one answer in one way: characters that mean the same become one, markup goes, and the rest becomes tokens.

Nothing that can carry meaning is dropped here, so a reader that accounts for every token accounts for the whole text.
Numbers in English words become digits (`with_digits`); a word that scales a number, such as `thirds` or `dozen`, stays
for the reader. All functions take time linear in the length of the text.
"""

import re
import unicodedata
from typing import Literal, NamedTuple

from trainer_client.final_answer import boxed_answer

LAYERS = 16
"""How many nested layers of markup around an answer are removed."""

CURRENCY_SIGN = "\x01"
"""A dollar sign that is money and no delimiter of a formula."""

_INVISIBLE = re.compile("[\u00ad\u034f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]")
_QUOTES = str.maketrans(dict.fromkeys("‘’‚‛ʼ´", "'") | dict.fromkeys("“”„‟«»「」『』", '"'))
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉₊₋ₙ"
_RAISED_RUN, _LOWERED_RUN = re.compile(f"[{_RAISED}]+"), re.compile(f"[{_LOWERED}]+")
_RAISED_PLAIN = str.maketrans(_RAISED, "0123456789+-ni")
_LOWERED_PLAIN = str.maketrans(_LOWERED, "0123456789+-n")


def words_in(text: str) -> list[str]:
    """Return the words of a table."""
    return text.split()


GREEK = words_in(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
"""The commands of Greek letters, those in small letters first."""
_GREEK = {letter: rf"\{name} " for letter, name in zip("αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ", GREEK, strict=True)}
_SIGNS = str.maketrans(
    dict.fromkeys("−–—‐‑‒―﹣－", "-")
    | {"×": r"\times ", "✕": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "∗": "*", "÷": "/", "⁄": "/"}
    | {"∕": "/", "√": r"\sqrt ", "∛": r"\sqrt[3] ", "∞": r"\infty ", "≤": r"\leq ", "⩽": r"\leq ", "≥": r"\geq "}
    | {"⩾": r"\geq ", "≠": r"\neq ", "≈": r"\approx ", "≃": r"\approx ", "≅": r"\cong ", "≡": r"\equiv "}
    | {"∈": r"\in ", "∉": r"\notin ", "∪": r"\cup ", "∩": r"\cap ", "∖": r"\setminus ", "∅": r"\emptyset "}
    | {"±": r"\pm ", "∓": r"\mp ", "º": "°", "˚": "°", "′": "'", "″": "''", "‴": "'''", "ℝ": r"\mathbb{R} "}
    | {"ℤ": r"\mathbb{Z} ", "ℕ": r"\mathbb{N} ", "ℚ": r"\mathbb{Q} ", "ℂ": r"\mathbb{C} ", "…": "...", "⋯": "..."}
    | {"、": ", ", "。": ". ", "٫": ".", "٬": ",", "٪": "%", "µ": "μ", "Ω": "Ω", "∆": r"\Delta ", "℃": "°C", "℉": "°F"}
    | {
        "⟨": r"\langle ",
        "⟩": r"\rangle ",
        "∶": ":",
        "¢": " cents ",
        "⌊": r"\lfloor ",
        "⌋": r"\rfloor ",
        "⌈": r"\lceil ",
        "⌉": r"\rceil ",
        "∠": r"\angle ",
    }
    | {
        "△": r"\triangle ",
        "→": r"\to ",
        "∧": r"\land ",
        "∨": r"\lor ",
        "¬": r"\neg ",
        "⊂": r"\subset ",
        "∥": r"\parallel ",
    }
)
_MICRO_OR_OHM = re.compile(r"μ(?=[A-Za-z])")
_VULGAR = re.compile("[¼½¾⅐-⅞↉]")
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")


def same_characters(text: str) -> str:
    """Write characters that read the same in one way: NFC, straight quotes, ASCII digits, no invisible ones."""
    if text.isascii():
        return text
    plain = _INVISIBLE.sub("", _composed("NFC", text)).translate(_QUOTES)
    return _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), plain)


_PIECE = re.compile(r"[\x00-\x7f]++[^\x00-\x7f]{0,500}+|[^\x00-\x7f]{1,500}+")


def _composed(form: Literal["NFC", "NFKC"], text: str) -> str:
    """Normalise a text piece by piece: Python takes quadratic time to put a long run of marks in order.

    A piece ends before an ASCII character, which belongs to none before it, or after 500 others.
    """
    return _PIECE.sub(lambda piece: unicodedata.normalize(form, piece[0]), text)


def _as_latex(text: str) -> str:
    """Write mathematical characters as their LaTeX commands, and compatibility characters as their plain ones."""
    if text.isascii():
        return text
    text = _MICRO_OR_OHM.sub("u", _INVISIBLE.sub("", text).replace("µ", "μ"))
    text = _RAISED_RUN.sub(lambda run: f"^{{{run[0].translate(_RAISED_PLAIN)}}}", text)
    text = _LOWERED_RUN.sub(lambda run: f"_{{{run[0].translate(_LOWERED_PLAIN)}}}", text)
    text = _VULGAR.sub(
        lambda part: r"\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", part[0]).split("⁄")), text
    )
    text = text.translate(_QUOTES).translate(_SIGNS)
    text = same_characters(_composed("NFKC", text)).translate(_SIGNS)
    return re.sub("[α-ωΓΔΘΛΞΠΣΦΨΩ]", lambda letter: _GREEK.get(letter[0], letter[0]), text)


_WRAPPED = re.compile(
    r"\$\$(?P<a>[^$]*)\$\$|\$(?P<b>[^$]*)\$|\\\((?P<c>.*)\\\)|\\\[(?P<d>.*)\\\]|\*\*(?P<e>[^*]*)\*\*|\*(?P<g>[^*]+)\*"
    r"|__(?P<h>[^_]*)__|`(?P<f>[^`]*)`|\"(?P<i>[^\"]*)\"|'(?P<j>[^']*)'|``(?P<k>[^`']*)''",
    re.DOTALL,
)


def strip_markup(answer: str) -> str:
    r"""Remove `\boxed{…}`, `$…$`, `\(…\)`, `\[…\]`, bold and italic marks, quotes or backticks, and a full stop.

    Up to `LAYERS` layers are removed, so that the work is bounded by that many passes over the answer.
    """
    for _ in range(LAYERS):
        stripped = answer.strip()
        if stripped.endswith((".", ",", ";", ":", "?", "。")) and not stripped.endswith(("..", "\\,", "\\;", "\\:")):
            stripped = stripped[:-1].rstrip()
        if stripped.count("**") == 1:
            stripped = stripped.removeprefix("**").removesuffix("**").strip()
        if wrapped := _WRAPPED.fullmatch(stripped):
            stripped = next(inside for inside in wrapped.groups() if inside is not None)
        if stripped.startswith("\\boxed"):
            stripped = boxed_answer(stripped) or stripped
        if stripped == answer:
            break
        answer = stripped
    return answer


class Token(NamedTuple):
    r"""A token of an answer.

    Attributes:
        kind: `number`, `command` (`\frac`, `\{`), `word` (a run of letters) or `sign` (any other character).
        text: as it is compared.
        spaced: whether white space lies before it.
        upright: whether it is inside `\text{…}` or the like.
    """

    kind: str
    text: str
    spaced: bool = False
    upright: bool = False


_REPEATED = r"(?:\\(?:overline|bar|dot)\s*(?:\{\s*\d+\s*\}|\d)|\(\d+\)|(?:\d\u0305)+)"
_TOKEN = re.compile(
    r"(?P<space>(?:\s|~|\\[ ,;:!>]|\\q?quad|\\(?:enspace|thinspace|hfill|left|right|middle|[bB]igg?[lr]?|displaystyle"
    r"|textstyle|limits|nolimits)(?![A-Za-z])\.?)+)"
    rf"|(?P<number>\d*\.\d*{_REPEATED}|(?:\d+\.\d+)\s*(?:\.\.\.|\\[lc]?dots(?![A-Za-z])\s*)(?!\s*[,\d])"
    r"|(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3}(?![\w.]))?|\d+\.(?!\w))"
    r"|(?P<command>\\[A-Za-z]+\*?|\\.)|(?P<ellipsis>\.\.\.+)|(?P<word>[^\W\d_]+)|(?P<sign>.)",
    re.DOTALL | re.ASCII,
)
_GROUPED = re.compile(r"(?<=\d)(?:,?\\[,!]|,?\{\s?,\s?\}(?:\\!)?)\s*(?=\d{3}(?!\d))", re.ASCII)
_ESCAPED, _DOUBLY_ESCAPED = re.compile(r"(?<!\\)\\[A-Za-z]"), re.compile(r"\\\\(?=[A-Za-z,!;:{}%$])")
_DEGREES = re.compile(r"(?<!\s)\s*+\^\s*+(?:\{\s*+(?:\\circ|\\degrees?|°)\s*+\}|\\circ(?![A-Za-z]))")
_NOT_LETTER = re.compile(r"(?:\A|(?<=[\s(]))~(?=[A-Za-z](?![A-Za-z]))")
"""The sign of a denial, as in `~p`; elsewhere, `~` is a space of TeX or "about"."""
_QUOTED = re.compile(r"(?:\A|(?<=[\s(\[{,:=]))\"([^\"'\n]*)\"(?=[\s)\]},:]|\Z)")
"""A text of a program in double quotation marks, which are the same as single ones."""
_STRUCK = re.compile(r"~~([^~]+)~~")
_INLINE = re.compile(r"\$\$?([^$]+)\$\$?")
_TEXT_COMMANDS = frozenset(
    rf"\{name}"
    for name in words_in(
        "text textbf textit textrm textsf texttt textnormal mathrm mathbf mathit mathsf mathtt mbox hbox emph "
        "operatorname operatorname* boldsymbol bm underline boxed fbox rm bf unit pmb"
    )
)
_SAME_COMMAND = {
    rf"\{name}": same
    for same, names in {
        r"\frac": "dfrac tfrac cfrac",
        r"\binom": "dbinom tbinom",
        r"\leq": "le leqslant",
        r"\geq": "ge geqslant",
        r"\neq": "ne",
        "<": "lt",
        ">": "gt",
        r"\approx": "simeq thickapprox",
        r"\emptyset": "varnothing O",
        r"\{": "lbrace",
        r"\}": "rbrace rbracl",
        "[": "lbrack",
        "]": "rbrack",
        "(": "lparen",
        ")": "rparen",
        "|": "lvert rvert vert mid",
        "*": "ast",
        "/": "div slash",
        ":": "colon",
        "'": "prime",
        "...": "dots ldots cdots dotsc dotsb",
        "&": "&",
        "%": "%",
        "#": "#",
        "_": "_",
        "°": "degree degrees textdegree",
        r"\infty": "infin",
        r"\epsilon": "varepsilon",
        r"\phi": "varphi",
        r"\theta": "vartheta",
        "€": "euro",
        "£": "pounds",
        "¥": "yen",
        r"\setminus": "smallsetminus backslash",
        r"\vee": "lor",
        r"\wedge": "land",
        r"\to": "rightarrow",
        r"\hat": "widehat",
        r"\tan": "tg",
        r"\neg": "lnot",
    }.items()
    for name in names.split()
}


def tokens_of(answer: str) -> list[Token]:
    """Return the tokens of an answer without the markup around it."""
    text = strip_markup(_as_latex(strip_markup(same_characters(answer))))
    text = _QUOTED.sub(r"'\1'", text)
    text = _NOT_LETTER.sub(r"\\neg ", _STRUCK.sub(r"\\sout{\1}", text))
    if not _ESCAPED.search(text):
        text = _DOUBLY_ESCAPED.sub(r"\\", text)
    text = text.replace("\\$", CURRENCY_SIGN)
    if not _only_money(text):
        text = _INLINE.sub(r" \1 ", text)
    text = _DEGREES.sub("°", _GROUPED.sub("", text.replace("$", CURRENCY_SIGN)))
    return _merge_groups(_unwrap(_split(text)))


def _only_money(text: str) -> bool:
    """Whether each dollar sign stands before a digit, so that none closes a formula."""
    return all(re.match(r"\s?[\d.]", part, re.ASCII) for part in text.split("$")[1:])


def _split(text: str) -> list[Token]:
    found: list[Token] = []
    spaced = False
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "sign"
        if kind == "space":
            spaced = True
            continue
        written = match[0]
        if written == "\\" and match.end() == len(text):  # a control space whose space was stripped
            continue
        if kind == "ellipsis":
            kind, written = "command", "..."
        elif kind == "command":
            written = _SAME_COMMAND.get(written, written)
            kind = "command" if written.startswith("\\") or written == "..." else "sign"
        elif kind == "sign" and written.isalpha():
            kind = "word"
        if (kind == "word" and found and found[-1].kind == "word" and not spaced and not found[-1].text.isascii()) or (
            kind == "word" and found and not spaced and found[-1].kind == "word" and not written.isascii()
        ):
            found[-1] = found[-1]._replace(text=found[-1].text + written)
        else:
            found.append(Token(kind, written, spaced))
        spaced = False
    return found


def _unwrap(tokens: list[Token]) -> list[Token]:
    r"""Take `\text{…}` and the like away and mark what was inside."""
    kept: list[Token] = []
    braces: list[bool] = []  # of each open brace, whether it belongs to a text command
    upright, opens = 0, False
    after_text = False
    for token in tokens:
        if token.text in _TEXT_COMMANDS:
            opens, after_text = True, after_text or token.spaced
            continue
        if token.text == "{" and token.kind == "sign":
            braces.append(opens)
            upright += opens
            if opens:
                opens, after_text = False, True
                continue
        elif token.text == "}" and token.kind == "sign" and braces and braces.pop():
            upright -= 1
            after_text = True
            continue
        opens = False
        kept.append(Token(token.kind, token.text, token.spaced, upright > 0))
    return kept


_OPENING, _CLOSING = ("(", "[", "\\{"), (")", "]", "\\}")
_LEADING_GROUP = re.compile(r"[1-9]\d{0,2}", re.ASCII)
_INNER_GROUP = re.compile(r"\d{3}", re.ASCII)
_LAST_GROUP = re.compile(r"\d{3}(?:\.\d*)?", re.ASCII)


def _merge_groups(tokens: list[Token]) -> list[Token]:
    """Join the groups of thousands of numbers: `1,234`, `1 234`. Within brackets, an unspaced comma may separate."""
    spaced_commas = _brackets_with_spaced_commas(tokens)
    kept: list[Token] = []
    open_brackets: list[int] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.text in _OPENING:
            open_brackets.append(at)
        elif token.text in _CLOSING and open_brackets:
            open_brackets.pop()
        end, step = _run(tokens, at) if token.kind == "number" else (at + 1, 1)
        groups = [each.text for each in tokens[at:end:step]]
        may_group = step == 1 or not open_brackets or open_brackets[-1] in spaced_commas
        if may_group and _is_grouped(groups):
            kept.append(token._replace(text="".join(groups)))
        else:  # all its numbers are kept, so that none of them begins a group
            kept += tokens[at:end]
        at = end
    return kept


def _brackets_with_spaced_commas(tokens: list[Token]) -> set[int]:
    found: set[int] = set()
    opened: list[int] = []
    for at, token in enumerate(tokens):
        if token.text in _OPENING:
            opened.append(at)
        elif token.text in _CLOSING and opened:
            opened.pop()
        elif token.spaced and opened and at and tokens[at - 1].text == ",":
            found.add(opened[-1])
    return found


def _run(tokens: list[Token], at: int) -> tuple[int, int]:
    """Return where numbers end that unspaced commas, or else spaces, separate; and 2 for commas, 1 for spaces."""
    for step in (2, 1):
        end = at + 1
        while end + step <= len(tokens):
            *commas, number = tokens[end : end + step]
            is_spaced = any(each.spaced for each in (*commas, number))
            if number.kind != "number" or is_spaced != (step == 1) or any(each.text != "," for each in commas):
                break
            end += step
        if end > at + 1:
            return end, step
    return at + 1, 1


def _is_grouped(run: list[str]) -> bool:
    return (
        len(run) > 1
        and _LEADING_GROUP.fullmatch(run[0]) is not None
        and all(map(_INNER_GROUP.fullmatch, run[1:-1]))
        and _LAST_GROUP.fullmatch(run[-1]) is not None
    )


_UNITS = words_in(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen",
)
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SMALL = {word: value for value, word in enumerate(_UNITS)} | {
    word: 10 * (index + 2) for index, word in enumerate(_TENS)
}
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NUMBER_WORD = "|".join(sorted([*_SMALL, *_LARGE, "hundred"], key=len, reverse=True))
_FIRST = "|".join(sorted(_SMALL, key=len, reverse=True))
_RUN = re.compile(
    rf"(?<![\w\\])(?:{_FIRST})(?!\w)"
    rf"(?:(?:(?:(?<=hundred)|(?<=thousand)|(?<=[mb]illion))[ \t]+and)?[ \t-]+(?:{_NUMBER_WORD})(?!\w)){{0,20}}+",
    re.IGNORECASE,
)
_PARTS = "half|halves|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|hundredths?"
_HYPHENATED = re.compile(rf"(?<=\d)-(?=(?:{_PARTS})\b)", re.IGNORECASE)
_ONE_PART = re.compile(rf"(?:(?:a|an|one)[ -])(?P<part>{_PARTS})|(?P<half>half)", re.IGNORECASE)
_ORDINALS = words_in(
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
