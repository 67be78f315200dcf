r"""Reduce an answer to what it states: without decoration, and without a reason after it.

What is removed is listed here: markup, end tokens, punctuation at the end, "about", a reason ("because …", "which is
…"), and a closing sentence that adds nothing. Everything else stays, above all whatever could change the answer: a
condition, an alternative, a denial, a second value. All functions take time linear in the length of the text.
"""

import re
from collections import Counter
from fractions import Fraction
from itertools import islice

from trainer_client.final_answer.words import BECAUSE, SPACES, WAIT, WRONG, lowered, without_ending

LAYERS = 8
"""How many nested layers of decoration are removed."""

_END_TOKEN = re.compile(
    r"(?:<[|｜][^\s<>|｜]{1,40}[|｜]>|\[\|[a-z_]{1,30}\|\]|</?(?:s|eos|bos|pad|unk|end|eot|eom|turn|bot|human|assistant|"
    r"end_of_turn|start_of_turn|end_of_utterance|end_of_text|endoftext|end_of_sentence|im_end|eos_token|eod|turn\|)>"
    r"|\[/?(?:INST|EOS|END|EOT)\]|</(?:final[_ ]?)?answer>)\Z",
    re.IGNORECASE,
)
_LONGEST_END_TOKEN = 60
_INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff\u00ad"
_ENDS = _INVISIBLE + "\ufe0e\ufe0f\u20e3"
_EMOJI = (
    "[\U0001f000-\U0001faff\u2600-\u2604\u2606-\u263f\u2669-\u2712\u2714\u2715\u2719-\u271c\u2720-\u2727\u2729-\u274b"
    "\u2753-\u2755\u2757-\u2767\u2794-\u27bf\u2b50\u2b55\u2605\u25a0\u25a1\u220e\u25aa\u25ab\u25fc\ufe0f\u200d]"
)
_EMOJI_FIRST = re.compile(rf"{_EMOJI}++{SPACES}*+")
_EMOJI_LAST = re.compile(_EMOJI)
_NEGATIVE_EMOJI = frozenset("👎🚫❌✗✘✖⛔❎🙅")
_NESTED_BOLD = re.compile(r"(?<=[^\s*])\*{2,3}(?:</s>\.?|\.)\*{1,2}\Z")
"""The end of a bold answer and its full stop within a bold announcement, as in `**Answer: **7**.**`."""

_WRAPPERS = (
    ("****", "****"),
    ("**", "**"),
    ("__", "__"),
    ("*", "*"),
    ("_", "_"),
    ("```", "```"),
    ("`", "`"),
    ('"', '"'),
    ("'", "'"),
    ("“", "”"),
    ("‘", "’"),
    ("„", "“"),
    ("«", "»"),
    ("「", "」"),
    ("『", "』"),
    ("【", "】"),
    ("==", "=="),
    ("<b>", "</b>"),
    ("<strong>", "</strong>"),
    ("<em>", "</em>"),
    ("<i>", "</i>"),
    ("<u>", "</u>"),
    ("<mark>", "</mark>"),
    ("<code>", "</code>"),
)
_CLOSERS = (
    ("**", "**"),
    ("__", "__"),
    ("*", "*"),
    ("_", "_"),
    ("(", ")"),
    ("[", "]"),
    ("{", "}"),
    ("“", "”"),
    ("「", "」"),
    ("【", "】"),
    ("<b>", "</b>"),
    ("<strong>", "</strong>"),
    ('"', '"'),
    ("`", "`"),
    ("<p>", "</p>"),
)
_BOLD = re.compile(r"(?<![\w*])\*\*(?=[^\s*])([^*\n]++)(?<=\S)\*\*(?![\w*])")
_BOLD_WITH_APPOSITION = re.compile(
    r"\s*+\*\*(?P<answer>[^*\n]++)\*\*(?:,| [-–—])[ \t]++(?:the|a|an|as|which|who)[ \t](?P<rest>[^*\d$\\=;\n]*+)$"
)
_LIST_MARK = re.compile(r"[\s>]*+[*+-]\s")
_CLOSING_HOPE = "I hope it is correct"
_ABBREVIATION = re.compile(
    r"(?:(?:^|[^\w])(?:\w\.){1,10}\w|(?:^|[^\w])(?:dr|mr|mrs|ms|prof|st|mt|jr|sr|inc|ltd|co|corp|etc|vs|no|approx|ca|cf|fig"
    r"|eq|ft|gen|col|lt|rev|hon|ave|blvd|dept|est|ed|vol|pp|al|bros|assn))\Z",
    re.IGNORECASE,
)
_FACTORIAL = re.compile(r"(?:(?<![^\W\d_])[a-z]|[)}\]])\Z")
_ABOUT = re.compile(
    r"(?:about|approximately|approx\.?|roughly|around|circa|ca\.|exactly|precisely|just|simply|equal to|equals|is|are"
    r"|aproximadamente|environ|ungefähr|etwa|около|примерно|circa|约|約|大约|大約|=(?!=))(?![\w=])"
    + f"{SPACES}*+(?=\\S)",
    re.IGNORECASE,
)
HEDGE = re.compile(
    r"\b(?:not|no|never|or|nor|neither|either|but|if|unless|except|only|whether|may|maybe|perhaps|possibly|might|could"
    r"|would|wrong|incorrect|incorrectly|false|mistake|mistaken|error|actually|wait|instead|rather|sorry|hmm+"
    r"|alternatively|alternative|otherwise|else|correction|correct(?=ed| answer)|oops|unsure|unclear|doubt|guess|though"
    r"|although|however|also|cannot|unlikely|kidding|joke|opposite|oder|aber|nicht|ou|mais|pas|pero|sino|или|но|не)\b"
    rf"|n['’]t\b|[?？或但不错錯違]|(?<![^\W_])(?:{WRONG}|{WAIT})",
    re.IGNORECASE,
)
"""Words that may change, deny or add to what stands beside them."""

_REASON = re.compile(
    rf"(?P<mark>(?:[,，;:]|(?<!{SPACES})){SPACES}++(?:[-–—]++{SPACES}++)?|(?<!{SPACES}){SPACES}*+[—–,，]{SPACES}*+)"
    r"(?P<open>[(（\[])?"
    r"(?:(?P<because>because|due to)|(?P<since>since|which (?:is|are|was|were|means|represents)|that is|that's|i\.e\."
    r"|for a total of)|(?P<apposition>as|the|a|an|this|it|being))(?!\w)",
    re.IGNORECASE,
)
_AND_NOT = re.compile(
    r"(?:,[ \t]*+(?:and[ \t]++)?+not|(?<![ \t])(?:[ \t]*+\(not|,?[ \t]++(?:rather than|instead of)))[ \t]++"
    r"(?P<other>[^,;()]{1,40}+)\)?\Z",
    re.IGNORECASE,
)
_PLAIN_NUMBER = re.compile(r"\$?(?P<number>-?\d{1,30}(?:,\d{3}){0,9}(?:\.\d{1,30}|/[1-9]\d{0,29})?)\$?", re.ASCII)
_SENTENCE_END = re.compile(r"(?P<stop>[.!]|[。！।])(?P<space>[*_`\"”)]*+[ \t]++|(?<=[。！।])(?=.))")
_LABEL = re.compile(r"[(\[]?[A-Za-z][)\].:]?|\d{1,2}[.)]")
_REASON_SENTENCE = re.compile(r"[*_]*+(?:this is because|it is because|that is because|because|since)\b", re.IGNORECASE)
_COURTESY = re.compile(
    r"[*_]*+(?:i hope|hope (?:this|that|it)|(?:please )?(?:let me know|feel free)|thanks?|thank you|happy to|glad to"
    r"|is there anything|do you have|if you (?:have|need))\b"
    r"(?![^\n]*\b(?:answer (?:is|was)|but|wrong|instead|actually)\b)[^\n\d$\\]*+",
    re.IGNORECASE,
)
FORMULA = re.compile(
    r"\$\$(?P<a>[^$]++)\$\$|\$(?P<b>[^$\n]++)\$"
    r"|\\\((?P<c>(?:[^\\]|\\(?![()\[\]]))*+)\\\)|\\\[(?P<d>(?:[^\\]|\\(?![()\[\]]))*+)\\\]"
)
"""A formula between its delimiters, which are not part of its group."""
_COMMAND = re.compile(r"\\[A-Za-z]++|\\.")
_WORD = re.compile(r"[^\W\d_]{2,}")
_OPERATOR = re.compile("sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi|and|max|min|mod|gcd|lcm|inf|infty", re.IGNORECASE)
_CHOICE = re.compile(r"(?:(?:option|choice|letter)\s+)?[(\[]?[A-Za-z][)\].]?", re.IGNORECASE)
_IN_WORDS = re.compile(r"[^\w\\]*+(?:[^\W\d_]{2}|[IAa]\s++[^\W\d_]{2})")
_MAX_VALUE = 200
_MAX_REASONED = 2_000
_TRIED = 4


def without_end_tokens(text: str) -> str:
    """Remove end-of-turn tokens of chat templates, and white space, from the end of a text."""
    end = len(text)
    while True:
        while end and (text[end - 1].isspace() or text[end - 1] in _INVISIBLE):
            end -= 1
        tail = text[max(end - _LONGEST_END_TOKEN, 0) : end]
        token = _END_TOKEN.search(tail) if tail.endswith((">", "]")) else None
        if token is None:
            return text[:end]
        end -= len(token[0])


def plain_answer(answer: str, *, before: str = "", keeps_mark: bool = True) -> str:
    r"""Return what a one-line answer states, without decoration and reasons.

    Args:
        answer: the answer: `**73**.`, `about 72`, `B, because …`.
        before: what stands before it on its line. A mark that opens there is removed where it closes after the answer.
        keeps_mark: whether a `!` after a number is a factorial rather than an exclamation mark.
    """
    text = answer.partition(_CLOSING_HOPE)[0] if _CLOSING_HOPE in answer else answer
    if marked := _BOLD_WITH_APPOSITION.match(text):
        text = marked["answer"] if HEDGE.search(marked["rest"]) is None else text
    text = _BOLD.sub(r"\1", text)
    closers = open_marks(before)
    for _ in range(LAYERS):
        stripped = _without_marks(text, closers, keeps_mark)
        stripped = _without_contrast(_without_reason(stripped))
        if about := _ABOUT.match(stripped):
            stripped = stripped[about.end() :]
        if stripped == text:
            break
        text = stripped
    return text


def is_value(answer: str, *, words: int = 3) -> bool:
    """Whether an answer is a value: a number, a formula or a letter of a choice, with at most this many words.

    Words may follow a value, as units do; hedges may not.
    """
    if not answer or len(answer) > _MAX_VALUE or HEDGE.search(answer):
        return False
    if _CHOICE.fullmatch(answer):
        return True
    bare = _COMMAND.sub(" ", FORMULA.sub(" 0 ", answer))
    if _IN_WORDS.match(FORMULA.sub("0", answer)) or not (re.search(r"[\d=+*/^<>-]", bare) or "\\" in answer):
        return False
    return sum(_OPERATOR.fullmatch(word) is None for word in _WORD.findall(bare)) <= words


def open_marks(before: str) -> list[str]:
    """The marks that close what the text before an answer, on its line, opens."""
    counts = Counter(
        re.findall(
            r"\*\*|__|</?[a-z]+>|.", before[mark.end() if (mark := _LIST_MARK.match(before)) else 0 :], re.DOTALL
        )
    )
    closers = []
    for opening, closing in _CLOSERS:
        is_open = counts[opening] % 2 == 1 if opening == closing else counts[opening] > counts[closing]
        if is_open:
            closers.append(closing)
    return closers


def _without_marks(text: str, closers: list[str], keeps_mark: bool) -> str:
    text = without_end_tokens(text).lstrip().strip(_ENDS).strip()
    unmarked = text.rstrip("*_")
    if (ended := without_end_tokens(unmarked)) != unmarked.rstrip():  # an end token before the closing marks
        text = ended + text[len(unmarked) :]
    text = _without_emoji(text)
    if nested := _NESTED_BOLD.search(text):
        text = text[: nested.start()].lstrip("*")
    if text.startswith("****") and not text.endswith("****"):  # bold within bold, whose outer end was an end token
        text = text.strip("*")
    for opening, closing in _WRAPPERS:
        inside = text[len(opening) : len(text) - len(closing)]
        if (
            inside.strip()
            and text.startswith(opening)
            and text.endswith(closing)
            and _is_whole(inside, opening, closing)
        ):
            return inside.strip()
    if text.endswith("****"):  # the marks of an answer, and of the announcement around it
        return text[:-4].rstrip()
    for closing in closers:
        if text.endswith(closing) and len(text) > len(closing) and _closes_outside(text, closing):
            closers.remove(closing)
            return text[: -len(closing)].rstrip()
    for mark in ("**", "__"):
        if text.count(mark) == 1 and len(text) > 2:
            if text.endswith(mark):
                return text[:-2].rstrip()
            if text.startswith(mark):
                return text[2:].lstrip()
    return without_ending(_without_stop(text, keeps_mark))


def _is_whole(inside: str, opening: str, closing: str) -> bool:
    """Whether marks around a text belong to each other, and are not those of two texts: `"a" or "b"`."""
    if opening in ("*", "_") and inside[0] == opening:
        return False
    return opening not in inside and closing not in inside


def _closes_outside(text: str, closing: str) -> bool:
    opening = {")": "(", "]": "[", "}": "{", "”": "“", "」": "「", "】": "【"}.get(closing)
    return text.count(closing) % 2 == 1 if opening is None else text.count(closing) > text.count(opening)


def _without_emoji(text: str) -> str:
    if first := _EMOJI_FIRST.match(text):
        text = text[first.end() :] if first.end() < len(text) and not _NEGATIVE_EMOJI & set(first[0]) else text
    end = len(text)
    while end and (_EMOJI_LAST.fullmatch(text[end - 1]) or text[end - 1].isspace()):
        if text[end - 1] in _NEGATIVE_EMOJI:
            return text
        end -= 1
    return text[:end] if end else text


def _without_stop(text: str, keeps_mark: bool) -> str:
    """Remove punctuation from the end, but no ellipsis, no stop of an abbreviation and no factorial."""
    bare = text.rstrip("!?！？؟;,；，、")
    if "!" in text[len(bare) :] or "！" in text[len(bare) :]:
        marks = text[len(bare) :]
        if _FACTORIAL.search(bare) or "!" in bare or (keeps_mark and marks == "!" and bare[-1:].isdigit()):
            return text.rstrip("?？؟;,；，、") if marks.endswith(("?", "？", ";", ",")) else text
    if not bare:
        return text
    if bare.endswith((".", "。", "．", "।", "۔", ":", "：")) and not bare.endswith(("..", "。。", "::")):
        stopped = bare[:-1].rstrip()
        return bare if not stopped or (bare[-1] == "." and _ABBREVIATION.search(stopped[-20:])) else stopped
    if bare.endswith("\\\\"):
        return bare.rstrip("\\").rstrip()
    return bare.rstrip() or text


def _without_reason(text: str) -> str:
    """Remove sentences after the answer that add nothing, and a reason for it."""
    if len(text) > _MAX_REASONED:
        return text
    for sentence in islice(_SENTENCE_END.finditer(text), _TRIED):
        head, tail = text[: sentence.start()], text[sentence.end() :]
        if not _LABEL.fullmatch(head) and not _ABBREVIATION.search(head[-20:]):
            if _adds_nothing(head, tail):
                return head
            break
    for reason in islice(_REASON.finditer(text), _TRIED):
        head, tail = text[: reason.start()].rstrip(), text[reason.end() :]
        if not head or HEDGE.search(head):
            break
        if _is_reason(head, tail, reason):
            return head
    lower = lowered(text)
    for comma in islice(re.finditer(r"[,，、]\s*", lower), _TRIED):
        because = BECAUSE.match(lower, comma.end())
        if because and comma.start() and not HEDGE.search(text, because.end()):
            return text[: comma.start()].rstrip()
    return text


def _without_contrast(text: str) -> str:
    """Remove what the answer is not: `42, not 41`, `B (not C)`; both must be numbers or letters of choices."""
    contrast = _AND_NOT.search(text) if len(text) <= _MAX_VALUE else None
    if contrast is None:
        return text
    head, other = text[: contrast.start()], contrast["other"].strip()
    if _CHOICE.fullmatch(head) and _CHOICE.fullmatch(other):
        return head if head != other else text
    values = [_PLAIN_NUMBER.fullmatch(each) for each in (head, other)]
    numbers = [Fraction(value["number"].replace(",", "")) for value in values if value is not None]
    return head if len(numbers) == 2 and numbers[0] != numbers[1] else text


def _adds_nothing(head: str, tail: str) -> bool:
    """Whether the sentences after an answer neither change nor add to it."""
    if HEDGE.search(head):
        return False
    if _COURTESY.fullmatch(tail):  # "Let me know if you have questions!" has an "if", and changes nothing
        return True
    if HEDGE.search(tail):
        return False
    if _REASON_SENTENCE.match(tail):
        return True
    says_more = re.search(r"[\d$\\]", tail) is not None
    if not is_value(head) or says_more or not tail[:1].isupper():
        return False
    is_formula = head.endswith(("$", "\\)", "\\]"))
    return is_formula or len(tail.split()) > 2  # shorter ones may be a choice: "3. New York"


def _is_reason(head: str, tail: str, reason: re.Match[str]) -> bool:
    """Whether what follows an answer is a reason for it or describes it, and states no second answer."""
    if HEDGE.search(tail) or (head.count("$") % 2 == 1 and "$" in tail) or head.count("\\(") > head.count("\\)"):
        return False
    if reason["open"]:
        closing = {"(": ")", "（": "）", "[": "]"}[reason["open"]]
        if not tail.endswith(closing) or tail.count(closing) != tail.count(reason["open"]) + 1:
            return False
    is_set_apart = bool(reason["open"]) or reason["mark"].strip() != ""
    if reason["because"]:
        return True
    if not is_set_apart:  # "42 since 6 * 7 = 42", but not "42 since Monday"
        is_since = (reason["since"] or "").lower() == "since"
        return is_since and is_value(head, words=1) and re.search(r"=|\b(?:is|are|was|has|have)\b", tail) is not None
    if reason["since"]:
        return "=" not in tail or reason["since"].lower() == "since"
    return not reason["open"] and is_value(head, words=1) and re.search(r"[\d$\\=,;]", tail) is None
