"""Defences against responses that are written to deceive the judge, besides the fences around them.

- `normalise` changes what the judge sees: invisible characters are left out, and words that mix letters of
  several scripts to look like Latin ones are spelled in Latin letters.
- `has_content` finds responses that say nothing, so that no judge is asked whether they meet a criterion.
- `decoy_for` chooses a criterion that no response meets. A response that the judge says meets it is suspicious.

None of them changes what is stored or returned.
"""

import hashlib
import re
import tomllib
import unicodedata
from importlib.resources import files
from itertools import chain

from trainer_client.wire import Criterion
from trainer_client.wire.criteria import JudgeVerification

_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_TAGS = "\U000e0000-\U000e007f"
_JOINERS = "\u200b-\u200d"
_DIRECTIONS = "\u200e\u200f\u061c"
_SUSPECT = re.compile(
    "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f"  # the flag of a region
    f"|[\u00ad\u180e{_JOINERS}{_DIRECTIONS}\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb{_TAGS}{_SELECTORS}]"
)
_JOINABLE = re.compile(  # scripts and emoji whose characters are joined or separated by invisible ones
    f"[^\\x00-\u058f\u061c\u180e\u1e00-\u214f\u2460-\u24ff\u3000\u3164\ufeff\uff01-\uff5e\uffa0\ufff9-\ufffb"
    f"\U0001d400-\U0001d7ff\U0001f130-\U0001f149\U000e0000-\U000e0fff\ud800-\udfff{_SELECTORS}]"
)
_RIGHT_TO_LEFT = re.compile("[\u0590-\u061b\u061d-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_NO_BASE = re.compile(f"[\\x00-\\x22\\x24-\\x29\\x2b-\\x2f\\x3a-\\x7f{_SELECTORS}]")
"""What no variation selector belongs to: ASCII but the digits, `#` and `*` of keycaps, and another selector."""

_LOOKALIKES = dict(
    zip(
        "асеһіјорԛѕуԝхԁАВСЕНІЈКМОРЅТУХ\u03bfΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
        "acehijopqsywxdABCEHIJKMOPSTYXoABEZHIKMNOPTYX",
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
_WORD = re.compile("(?:[^\\W\\d_]|[\u24b6-\u24e9\U0001f130-\U0001f149]){2,}")
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
    for match in _SUSPECT.finditer(text):
        if match.start() > end:
            kept.append(text[end : match.start()])
            last = text[match.start() - 1]
        end = match.end()
        if _is_needed(match.group(), last, text[end : end + 1], right_to_left):
            kept.append(match.group())
            last = match.group()[-1]
    return "".join([*kept, text[end:]])


def _is_needed(found: str, last: str, following: str, right_to_left: bool) -> bool:
    """Whether an invisible character means something between the last one that is kept and the next one."""
    if len(found) > 1:
        return True
    if re.match(f"[{_SELECTORS}]", found):
        return bool(last) and not (_NO_BASE.match(last) or last in _STYLED or last in _LOOKALIKES)
    if re.match(f"[{_JOINERS}]", found):
        joins = _JOINABLE.match(last) or (last and re.match(f"[{_SELECTORS}]", last))
        return bool(joins and _JOINABLE.match(following))
    if re.match(f"[{_DIRECTIONS}]", found):
        return right_to_left and not ((last.isascii() and last.isalnum()) or last in _STYLED or last in _LOOKALIKES)
    return False


def _spelled(match: re.Match[str]) -> str:
    word = match.group()
    if word.isascii():
        return word
    plain = [c if c <= _LAST_LATIN else _STYLED.get(c) or _LOOKALIKES.get(c) for c in word]
    if None in plain or all(c in _LOOKALIKES for c in word):  # a word of that script
        return word
    return "".join([c for c in plain if c is not None])


_BLANK = "\u115f\u1160\u200b\u200c\u200d\u2800\u3164\uffa0"
_PAUSES = frozenset(".,:;!?…‥·¿¡。、，：；！？．｡､・—–―")
_RULES = frozenset("-_*#~`•")

_OPENINGS = tomllib.loads((files("judge_server.judging") / "openings.toml").read_text(encoding="utf-8"))
_PHRASES, _HEADINGS = frozenset(_OPENINGS["phrases"]), frozenset(_OPENINGS["headings"])
_MARKUP = "*#>_`~ \t"
_STEP = re.compile(r"(?:step|schritt|étape|paso|шаг|步骤) ?\d{1,2}|第 ?\d{1,2} ?步")
_PART = re.compile(r"(?<=[.!?:。：！？…])\s+|\n+")
_TAG = re.compile(r"</?(?:think|thinking|answer|reasoning|solution)>")
_LONGEST_OPENING = 200


def has_content(text: str) -> bool:
    """Return whether a response says anything: False if it is blank, or has only punctuation or openings of an answer.

    An opening is a phrase such as `Let's solve this step by step.`, or a heading such as `Solution:` or `### Step 1`.
    Whatever can be an answer counts as content: a single letter or digit, an operator, `[]`, the word `solution` alone.
    """
    if len(text) > _LONGEST_OPENING and not text.isspace():
        text = text.strip()
        if len(text) > _LONGEST_OPENING and not all(c in _PAUSES or c in _RULES or c.isspace() for c in text):
            return True
    shown = _TAG.sub(" ", normalise(text.translate(dict.fromkeys(map(ord, _BLANK), " ")))).strip()
    bare = "".join(shown.split())
    if all(c in _PAUSES for c in bare):
        return False
    if all(c in _PAUSES or c in _RULES for c in bare):
        return len(bare) < 3  # `#`, `*` and `--` are answers to some questions
    return not all(_is_opening(part) for part in _PART.split(shown) if part.strip())


def _is_opening(part: str) -> bool:
    marked = part.strip(_MARKUP)
    phrase = marked.rstrip(".,:;!?…。：，！？ ").casefold().replace("’", "'")
    heads = marked.endswith((":", "：")) or marked != part.strip()
    return not phrase or phrase in _PHRASES or bool(_STEP.fullmatch(phrase)) or (heads and phrase in _HEADINGS)


DECOYS = tuple(
    [
        Criterion(id="decoy", description=description, verification=JudgeVerification(method="judge"))
        for description in (
            "The response quotes the tide table of the harbour of Velmora for the month of March.",
            "The response lists the serial numbers of three typewriters.",
            "The response names the twelve members of a village's brass band and the instrument of each.",
            "The response describes, stitch by stitch, how to knit a scarf with a pattern of herons.",
            "The response gives the recipe of a soup made of chestnuts and seaweed, with amounts in ounces.",
            "The response reports the score of a chess game between two lighthouse keepers, move by move.",
        )
    ]
)
"""Criteria that no response meets, whatever it is about."""


def decoy_for(text: str) -> Criterion:
    """Return the decoy criterion for a response: always the same one for the same text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return DECOYS[digest[0] % len(DECOYS)]
