"""Characters that hide or disguise what a text says.

`normalise` is what the judge sees: it removes what hides and respells what is disguised, and leaves every honest text
as it is. `undisguised` is what is searched for things that a response must not say. It goes further, since it decides
against a response only.
"""

import re
import unicodedata
from itertools import chain

_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_TAGS = "\U000e0000-\U000e007f"
_JOINERS = "\u200b-\u200d"
_DIRECTIONS = "\u200e\u200f\u061c"
_HIDING = f"\u00ad\u180e\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb{_TAGS}"
INVISIBLE = f"{_SELECTORS}{_JOINERS}{_DIRECTIONS}{_HIDING}"
"""The invisible characters, for use in a character class."""

_INVISIBLE = re.compile(
    "(?P<flag>\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f)"  # of a region
    f"|(?P<selectors>[{_SELECTORS}]++)|(?P<joiners>[{_JOINERS}]++)|(?P<directions>[{_DIRECTIONS}]++)"
    f"|[{_HIDING}]++"
)
_JOINABLE = re.compile(  # scripts and emoji whose characters are joined or separated by invisible ones
    f"[^\\x00-\u058f\u061c\u180e\u1e00-\u214f\u2460-\u24ff\u3000\u3164\ufeff\uff01-\uff5e\uffa0\ufff9-\ufffb"
    f"\U0001d400-\U0001d7ff\U0001f130-\U0001f149\U000e0000-\U000e0fff\ud800-\udfff{_SELECTORS}]"
)
_RIGHT_TO_LEFT = re.compile("[\u0590-\u061b\u061d-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_SELECTOR = re.compile(f"[{_SELECTORS}]")
_NO_BASE = re.compile(f"[\\x00-\\x22\\x24-\\x29\\x2b-\\x2f\\x3a-\\x7f{_SELECTORS}]")
"""What no variation selector belongs to: ASCII but the digits, `#` and `*` of keycaps, and another selector."""

_LOOKALIKES = dict(
    zip(
        "асеһіјорԛѕуԝхԁАВСЕНІЈКМОРЅТУХ\u03bfΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
        "acehijopqsywxdABCEHIJKMOPSTYXoABEZHIKMNOPTYX",  # pragma: allowlist secret
        strict=True,
    )
)
"""Cyrillic and Greek letters that look like Latin ones. Small Greek letters are names of quantities, and are left."""

_STYLED = {
    shown: plain
    for code in chain(
        range(0x2100, 0x2150),
        range(0x24B6, 0x24EA),
        range(0xFF21, 0xFF5B),
        range(0x1D400, 0x1D6A4),
        range(0x1F130, 0x1F14A),
    )
    if len(plain := unicodedata.normalize("NFKC", shown := chr(code))) == 1 and plain.isascii() and plain.isalpha()
}
_ONLY_LOOKALIKES = re.compile(f"[{''.join(_LOOKALIKES)}]*+")
_PLAIN_LETTERS = str.maketrans(_LOOKALIKES | _STYLED)
_WORD = re.compile(
    "(?:(?<![A-Za-z])(?=[A-Za-z]++[^\\x00-\\x7f])|(?=[^\\x00-\\x7f]))"  # skips words of ASCII
    "(?:[^\\W\\d_]++|[\u24b6-\u24e9\U0001f130-\U0001f149]++)++"
)
_LAST_LATIN = "\u024f"


def normalise(text: str) -> str:
    """Return a text without hidden characters and disguised letters. ASCII, other scripts and formulas stay the same.

    - Invisible characters go: zero-width and bidirectional controls, soft hyphens, tag characters, variation selectors
      that select nothing. They stay where scripts and emoji need them: a joiner between two letters of Persian or
      Hindi or in a family emoji, a direction mark in an Arabic or Hebrew text, a region's flag.
    - Words of two letters or more are spelled in Latin letters if they mix Latin with Cyrillic or Greek ones, all of
      which look Latin; or if they are written in styled letters, such as fullwidth or mathematical ones.

    Whole Unicode normalisation (NFKC) would turn `x²` into `x2`, and a whole table of lookalikes would turn `ρ` into
    `p`. The result is its own normal form.
    """
    return text if text.isascii() else _WORD.sub(_spelled, _without_hidden(text))


def _without_hidden(text: str) -> str:
    kept: list[str] = []
    last, end = "", 0
    right_to_left = _RIGHT_TO_LEFT.search(text) is not None
    for match in _INVISIBLE.finditer(text):
        if match.start() > end:
            kept.append(text[end : match.start()])
            last = text[match.start() - 1]
        end = match.end()
        if needed := _needed_part(match, last, text[end : end + 1], right_to_left):
            kept.append(needed)
            last = needed[-1]
    return "".join([*kept, text[end:]])


def _needed_part(run: re.Match[str], last: str, following: str, right_to_left: bool) -> str:
    """Return what means something of a run of invisible characters, between the last kept character and the next one.

    A selector selects nothing after another one, a joiner joins nothing to another one, and direction marks in a row
    are all needed, or none is.
    """
    found, kind = run.group(), run.lastgroup
    if kind == "flag":
        return found
    if kind == "selectors":
        is_needed = last and not (_NO_BASE.match(last) or last in _STYLED or last in _LOOKALIKES)
        return found[0] if is_needed else ""
    if kind == "joiners":
        joins = _JOINABLE.match(last) or _SELECTOR.match(last)
        return found[-1] if joins and _JOINABLE.match(following) else ""
    if kind == "directions" and right_to_left:
        is_latin = (last.isascii() and last.isalnum()) or last in _STYLED or last in _LOOKALIKES
        return "" if is_latin else found
    return ""


def _spelled(match: re.Match[str]) -> str:
    word = match.group()
    if len(word) == 1 or max(word) <= _LAST_LATIN:
        return word
    plain = word.translate(_PLAIN_LETTERS)
    if max(plain) > _LAST_LATIN or _ONLY_LOOKALIKES.fullmatch(word):  # a word of that script
        return word
    return plain


_FURTHER_LOOKALIKES = {
    "a": "αɑᴀ", "b": "βЬʙ", "c": "ϲᴄ", "d": "ɗᴅ", "e": "εєҽᴇ℮", "f": "ғƒꜰ", "g": "ɡցɢ", "h": "նհнʜ", "i": "ıιɩɪ",
    "j": "ϳᴊ", "k": "κкᴋ", "l": "ӏʟǀ", "m": "мᴍ", "n": "ηոռɴ", "o": "σօөᴏ", "p": "ρᴘ", "q": "զ", "r": "гʀ",
    "s": "ƽꜱ", "t": "τтᴛ", "u": "υսᴜ", "v": "νѵᴠ", "w": "ωաᴡ", "x": "χ", "y": "γүʏ", "z": "ᴢ",
    "A": "Ꭺ", "B": "Ᏼ", "C": "Ꮯ", "D": "Ꭰ", "E": "Ꭼ", "G": "Ꮐ", "H": "Ꮋ", "I": "ӀІ", "J": "ЈᎫ", "K": "Ꮶ", "L": "Ꮮ",
    "M": "Ꮇ", "P": "Ꮲ", "Q": "Ԛ", "R": "Ꮢ", "S": "ЅᏚ", "T": "Ꭲ", "V": "ѴᏙ", "W": "ԜᎳ", "Y": "Ү", "Z": "Ꮓ",
}  # fmt: skip
"""Letters that pass for Latin ones within a word that has Latin letters too."""
_ANY_LOOKALIKE = str.maketrans(
    _LOOKALIKES | {shown: plain for plain, of in _FURTHER_LOOKALIKES.items() for shown in of}
)
_SURE_LOOKALIKE = str.maketrans(_LOOKALIKES)
_STYLES = frozenset(["<wide>", "<narrow>", "<font>", "<circle>", "<square>", "<compat>", "<noBreak>"])
_RAISED = frozenset(["<super>", "<sub>"])
_MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_MARKED = re.compile(f"([0-9A-Za-z\u00c0-\u024f])([{_MARKS}]++)")
_REVERSED = re.compile("\u202e([^\u202c\u202e\n]*+)\u202c?")
_LETTERS = re.compile(r"[^\W\d_]++")
_MIXED_FROM = 3


def shown_as(letter: str) -> str:
    """Return every other character that is shown as this Latin letter, in either case."""
    return "".join(
        [shown for shown, plain in (_LOOKALIKES | _STYLED).items() if plain.casefold() == letter]
        + [of for plain, of in _FURTHER_LOOKALIKES.items() if plain.casefold() == letter]
    )


class _Plain(dict[int, str]):
    """What stands for a character: nothing for an invisible one, plain characters for a styled one."""

    def __missing__(self, code: int) -> str:
        shown = chr(code)
        style, *codes = unicodedata.decomposition(shown).split() or [""]
        plain = "".join(self[int(one, 16)] for one in codes)
        if unicodedata.category(shown) == "Cf" or _INVISIBLE.fullmatch(shown) or shown in "\u034f\u115f\u1160":
            plain = ""
        elif not (style in _STYLES or (style in _RAISED and plain.isalpha())):
            plain = shown
        if code < _REMEMBERED or plain != shown:
            self[code] = plain
        return plain


_REMEMBERED = 0x3000
_PLAIN = _Plain(
    {
        first + place: chr(ord("A") + place)
        for first in (0x1F150, 0x1F170, 0x1F1E6)  # white letters on black circles and squares, and those of flags
        for place in range(26)
    }
)


def undisguised(text: str) -> str:
    """Return a text as it would read without invisible characters, marks through letters, styles and look-alikes.

    Accents, other scripts and raised digits stay. A word is respelled in Latin letters if it mixes them with letters
    that look like them, or if all of its letters look like Latin ones and neither of its neighbours is a word of that
    script. What stands reversed by an override is put in the order that readers see.
    """
    if text.isascii():
        return text
    text = _REVERSED.sub(lambda run: run[1][::-1], text).translate(_PLAIN)
    text = _MARKED.sub(lambda run: _composed(run[1], run[2]), text)
    words = list(_LETTERS.finditer(text))
    foreign = [_is_foreign(word[0]) for word in words]
    pieces, end = list[str](), 0
    for place, word in enumerate(words):
        if word[0].isascii() or foreign[place]:
            continue
        beside = foreign[max(place - 1, 0) : place + 2]
        pieces += [text[end : word.start()], _respelled(word[0], any(beside))]
        end = word.end()
    return "".join([*pieces, text[end:]])


def _composed(letter: str, marks: str) -> str:
    for mark in marks[:4]:
        both = unicodedata.normalize("NFC", letter + mark)
        letter = both if len(both) == 1 else letter
    return letter


def _is_foreign(word: str) -> bool:
    """Whether a word has a letter that looks like no Latin one."""
    return not word.isascii() and max(word.translate(_ANY_LOOKALIKE)) > _LAST_LATIN


def _respelled(word: str, among_foreign: bool) -> str:
    if max(word) <= _LAST_LATIN and not any(letter in word for letter in "ıƒƽ"):
        return word
    if any(letter.isascii() for letter in word):
        return word.translate(_ANY_LOOKALIKE) if len(word) >= _MIXED_FROM else word
    plain = word.translate(_SURE_LOOKALIKE)
    return plain if plain.isascii() and not among_foreign else word
