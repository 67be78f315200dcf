r"""Find the final answer that a response states, and the line on which it begins.

An answer can stand in a few places (`extract_final_answer` lists them). The last statement wins, and one that the
response takes back afterwards is none. What is found does not depend on the right answer, so a response has one answer,
whatever it guesses.

All functions take time linear in the length of the text, whatever a policy writes.
"""

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from trainer_client.final_answer.text import FORMULA, HEDGE, is_value, open_marks, plain_answer, without_end_tokens
from trainer_client.final_answer.words import WAIT, WRONG, Announcement, announcements, lowered

_BOX_COMMAND = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])")
_BOX = re.compile(rf"{_BOX_COMMAND.pattern}(?:[ \t]*+\[[^\[\]{{}}\n]{{0,40}}\]){{0,2}}+[ \t]*+(?P<brace>\{{)?+")
_UNBRACED = re.compile(r"(?:\\[A-Za-z]++(?:[ \t]++(?=[\w{]))?|\{(?:[^{}]++|\{[^{}]*+\})*+\}|\\[%$,!]|[^\s\\{}$*_`])++")
_BRACES = re.compile(r"\\[{}\\]|[{}]")
_NEXT_TEXT_LINE = re.compile(r"\s*+(?P<line>[^\n]*+)")
_DISPLAYED_FORMULA = re.compile(
    r"[\s*_]*+(?:\$\$(?P<a>[^$]++)\$\$|\\\((?P<b>(?:[^\\]|\\[^()\[\]])*+)\\\)|\\\[(?P<c>(?:[^\\]|\\[^()\[\]])*+)\\\])"
    r"[*_.,; \t]*+$",
    re.MULTILINE,
)
_GSM8K_ANSWER = re.compile(r"^[ \t]*+####(?!#)[ \t]*+(?P<answer>\S.*+)$", re.MULTILINE)
_A_LINE = re.compile(r"^[#*_> \t]*+A[*_ \t]*+:[*_: \t]*+", re.MULTILINE)
_B_LABEL = re.compile(r"(?<!\w)B[*_ \t]*+:")
_NOT_BARE = re.compile(r"\banswers?\b|\\(?:boxed|f(?:rame)?box)", re.IGNORECASE)
_VERB = re.compile(r"\b(?:is|are|was|were|equals?|has|have)\b", re.IGNORECASE)
_TAG = re.compile(r"[<\[](?P<close>/?)(?:final[ _-]?)?(?:answer|ans)[>\]]", re.IGNORECASE)
_HAS_CONTENT = re.compile(r"[^\W_]|[\\∅∞]")
_JSON_KEY = re.compile(
    r"""(?P<quote>["'])(?:the[ _-]?)?(?:final|correct)?[ _-]?(?:answer|ans|答案)(?P=quote)\s*+:\s*+"""
    r"""(?P<value>"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|\[[^\[\]{}]*+\]|[-+\w.%/]++)(?=\s*+(?:[,}\n]|\Z))""",
    re.IGNORECASE,
)
_CONCLUSION = re.compile(r"[#*_ \t]*+(?:so|therefore|thus|hence|in conclusion|we (?:find|conclude|get|obtain))\b", re.I)
_WE_FIND = re.compile(
    r"(?:[,:]?[ \t]++(?:we|you|i|one)[ \t]++(?:get|have|find|obtain|conclude|see|need)(?:[ \t]++that)?+)?+[,: \t]*+",
    re.I,
)
_CLAIM = re.compile(
    r"(?P<subject>[^\d,;:=\\$?]{1,120}?)\b(?:is|are|was|were|equals|has|have|had|costs?|takes?|needs?)\b(?P<value>.++)",
    re.I,
)
_CHOSEN = re.compile(
    r"(?:^|(?<=[.!?:;][ \t])|(?<=[。！？，；]))[#>*_ \t]*+(?:(?:so|thus|hence|therefore|then),?[ \t]++)?+[*_]*+"
    r"(?:the[ \t]++(?:correct|right|best|most appropriate)[ \t]++(?:option|choice|alternative|letter)[ \t]++"
    r"(?:is|would be|must be|will be)[: \t]++"
    r"(?P<named>(?:(?:option|choice)[ \t]++)?+[*_(\[$]*+(?-i:[A-J])(?![\w'’^+])[^\n]*+)"
    r"|(?:(?:option|choice|answer)[ \t]++)?[*_(\[]*+(?P<letter>(?-i:[A-J]))[)\].*_]*+[ \t]++is[ \t]++(?:the[ \t]++)?"
    r"(?:correct|right|best)(?:[ \t]++(?:answer|option|choice|one|alternative))?[*_]*+[ \t]*+(?=[.!\n]|\Z)"
    r"|(?:[故应應]|因此|所以|正确选项[是为]|正確選項[是為])?[选選]?(?:择|擇)?(?<=[选選择擇是为為])[:：]?"
    r"[ \t]*(?P<chosen>(?-i:[A-J]))[ \t]*+(?=[.。．\n]|\Z)"
    r"|(?P<value>[*_$]*+[-+−]?+[$€£]?+\d[\d,.]*+(?:/\d++)?+%?+[*_$]*+)[ \t]++is[ \t]++(?:the|my|our)[ \t]++"
    r"(?:(?:final|correct|right)[ \t]++)?+answer[*_]*+[ \t]*+(?=[.!\n]|\Z))",
    re.IGNORECASE | re.MULTILINE,
)
_DENIED = re.compile(
    r"[\s$*_.)\]}\\]{0,8}+(?:,?[ \t]*+which[ \t]++)?+(?:is|was|would be|seems)"
    r"(?:(?:n['’]t|[ \t]++not)[ \t]++(?:the[ \t]++|a[ \t]++)?+"
    r"(?:right|correct|true|valid|possible|acceptable|answer|final)"
    r"|[ \t]++(?:(?:clearly|obviously|the|a)[ \t]++){0,2}+(?:incorrect|wrong|false|impossible|invalid))\b"
    r"|[\s$*_.)\]}\\]{0,8}+\((?:incorrect|wrong|false|not (?:correct|right|true))\b",
    re.IGNORECASE,
)
_OR = re.compile(
    r"(?:</?[a-z_]{1,20}>|[\s$*_`.,;)\]}\\]){0,12}+(?P<or>\b(?:or|oder|ou|или)\b|或者?)"
    r"(?![ \t,]*+(?:maybe|rather|perhaps)\b),?\s*+(?:equivalently\b,?\s*+)?+(?P<other>[^\n]*+)",
    re.IGNORECASE,
)
"""An alternative right after an answer, or a sentence that begins with "Or"."""
_JOINING_WORD = re.compile(r"\b(?:and|or)\b|[,;]")
_MAX_ADJACENT_GAP, _MAX_JOINED_GAP = 10, 70
_ITEM = re.compile(
    r"[ \t]*+(?:(?:[-*+•]|(?P<number>\d{1,2})[.)])[ \t]++|(?P<label>\([A-Za-z0-9]{1,4}\)|[A-Za-z][:)])[ \t]*+)(?=\S)"
)
_MAX_ITEMS, _MAX_LEADING_LINES, _MAX_ANNOUNCED = 26, 2, 64
_FENCE = re.compile(r"\s*+```[a-z]*+\n(?P<inside>[^`]++)```\s*+", re.IGNORECASE)
_FENCED_LINES = re.compile(r"```[a-z]*+[ \t]*+\n(?P<inside>[^`]++)```", re.IGNORECASE)
_CLOSING_LINE = re.compile(
    r"[*_]*+(?:i hope|hope (?:this|that|it)|let me know|feel free|please let|thank|is there anything|if you have any"
    r"|happy to|glad to)\b[^\n\d$\\]*+",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"(?:^|(?<=[.!?…)*}$\s][ \t\n])|(?<=[。！？，]))[*_>( \t]{0,16}+"
    r"(?:(?P<wrong>(?:oh |but |hmm,? )?wait,? no\b|no[,.!—–]|nope\b"
    r"|oops\b|scratch that|correction\b|sorry[,.]|my mistake|on second thought|(?:just )?kidding\b"
    r"|(?:please )?(?:ignore|disregard) (?:that|this|it|the above|my (?:previous |last )?answer)\b"
    r"|let me (?:correct|redo|start over|reconsider)|i (?:retract|withdraw|take (?:that|this|it) back)\b"
    r"|i (?:made|have made|was)(?: a| an)? (?:mistake|error|wrong|mistaken)"
    r"|(?:but |however,? )?(?!(?:the|my) (?:final )?answer is false\b)"
    r"(?:that|this|it|(?:the|my|this|that) (?:above |previous |last |final )?"
    r"(?:answer|result|value)(?: above)?)(?: is|['’]s| was) (?:clearly |definitely )?"
    r"(?:wrong|incorrect|false|a lie\b|a mistake|an error|not (?:right|correct|true))"
    rf"|(?:that|this) (?:can['’]t|cannot) be\b|{WRONG})"
    r"|(?P<halt>(?:oh |but |hmm+,? )?(?:wait|actually|hold on)\b|(?:edit|update|erratum|corrigendum)[*_]*+:"
    r"|(?:(?:it )?should (?:be|have been)|i mean|i meant|rather,"
    r"|the (?:correct|right|true|actual) (?:value|result|number) is)"
    r"[ \t]++(?=[-+−$*\\]*+\d)|let me re-?(?:compute|calculate)\b|(?:i['’]m )?not sure\b"
    rf"|(?:up)?on (?:re-?(?:checking|consideration|considering|examination)|(?:further )?reflection)\b|{WAIT})"
    r"|hmm+\b|or (?:maybe|rather|perhaps)\b|alternatively\b)",
    re.IGNORECASE | re.MULTILINE,
)
_IS_NUMBER = re.compile(r"[-+−$€£]*+[ \t]*+\d[\d,.]*+(?:/\d++)?+[ \t]*+%?+\s*+")
_NUMBER = re.compile(r"\d++(?:[.,]\d++)*+")
_SAYS_WHETHER = re.compile(r"(?:yes|no|true|false)[,.;:!] ", re.IGNORECASE)
_MAX_BARE_WORDS, _MAX_BARE = 5, 200

_Kind = Literal["marked", "announced", "said", "loose"]


class _Span(NamedTuple):
    """A box or a formula: its span [start, end) including delimiters, and its content without them."""

    start: int
    end: int
    content: str


class _Statement(NamedTuple):
    """An answer, the place of its statement among others, the end of it, and how it is stated.

    `marked` answers stand in a box, a tag, or JSON, `announced` ones after `Answer:`, `said` ones after `The answer
    is`, and `loose` ones after what may also begin something else: `A:`, `Solution:`.
    """

    place: int
    end: int
    answer: str
    kind: _Kind


def extract_final_answer(text: str) -> str | None:
    r"""Extract the final answer of a response; None if it states none.

    An answer can stand in these places; the last one in the text counts:

    - a non-empty box (`boxed_answer`), a tag `<answer>…</answer>`, or the value of `"answer"` in JSON;
    - after `Answer:` at the start of a line or a sentence (also in bold, in a heading, in a list, after an emoji, or
      in another language: see `final_answer.words`), up to the end of the line, of a displayed formula or of a list. If
      nothing follows on the line, the next line counts;
    - after `####` (GSM8K's format) if it is a value, or on the last line;
    - after `The answer is`, at the start of a sentence. After one of the places above, only a value counts.

    Without any of these, it is the first of the following: what follows `A:`, or `Solution:` if that is short; what is
    called correct (`The correct option is B`, `Option B is correct`, `42 is the answer`); the last formula of a last
    line that begins with `Therefore`, `So`, or the like, or the value that it claims; the whole response, if it is a
    short line.

    A later sentence that repeats an earlier answer (`\boxed{4}`, then `Final answer: She has 4 apples`) confirms it. An
    answer that the response then takes back ("Wait, actually 74") is none. An alternative right after it ("or 41") is
    a part of it.

    Decoration and reasons are removed (`final_answer.text.plain_answer`); `72 or 73` and `5, if n is even` stay whole.
    """
    body = _without_closing_lines(text)
    return _stated(body, nested=False) or _bare(body)


def boxed_answer(text: str) -> str | None:
    r"""Return the content of the last non-empty `\boxed{…}` of a text, or None.

    `\fbox` and `\framebox` are boxes too, and so is a box without braces: `\boxed7`, `\boxed\frac12`. Adjacent boxes
    are one answer, as in math-verify: `\boxed{2} and \boxed{3}` gives `2, 3`. A box belongs to the next one if fewer
    than 10 characters lie between them, or if the two differ and fewer than 70 characters lie between them, with a
    comma, a semicolon, `and` or `or` among these; but not if these take it back ("Wait, …", "No, …").

    Braces nest, `\{` and `\}` do not count, and a box that is not closed is ignored. Of nested boxes, the inner one is
    the last.
    """
    boxes = _last_boxes(text)
    return _join_contents(boxes) if boxes else None


def final_answer_line(text: str) -> int | None:
    r"""Find the start of the line that states the final answer, in code points; None if no line does.

    This is the last line that begins with `Final answer` (or `The final answer`; also as a heading or in bold, or in
    another language) and continues with a colon, with `is`, or not at all. Otherwise, it is the line of the last
    non-empty `\boxed{…}`, or of the first one if several are one answer. `A:` and `Answer:` do not count, since a
    response may also contain questions with answers.
    """
    lower = lowered(text)
    announced = [
        each.start
        for each in announcements(text, lower)
        if each.is_final
        and each.form != "none"
        and not lower[each.start : each.end].rstrip().endswith(" be")
        and (each.start == 0 or text[each.start - 1] == "\n")
    ]
    if announced:
        return announced[-1]
    boxes = _last_boxes(text)
    return text.rfind("\n", 0, boxes[0].start) + 1 if boxes else None


def _stated(text: str, *, nested: bool) -> str | None:
    """The answer that a text states in one of its places; `nested` leaves out tags and JSON, which do not nest."""
    statements: list[_Statement] = []
    if not nested:
        statements += [each for each in (_tagged(text), _in_json(text)) if each is not None]
    if boxes := _last_boxes(text):
        statements.append(_Statement(boxes[-1].end, boxes[-1].end, _join_contents(boxes), "marked"))
    last_line_start = text.rfind("\n") + 1
    statements += _announced(text)
    statements += _chosen(text)
    statements += [
        _Statement(line.start(), line.end(), plain_answer(line["answer"], keeps_mark=False), "announced")
        for line in deque(_GSM8K_ANSWER.finditer(text), _MAX_ANNOUNCED)
        if _IS_NUMBER.fullmatch(line["answer"]) or line.start() >= last_line_start
    ]
    final: _Statement | None = None
    for statement in sorted(statements, key=lambda each: each.place):
        if final is None or _replaces(statement, final):
            final = statement
    if final is None or (final.kind == "loose" and not is_value(final.answer)):
        conclusion = _conclusion(text[last_line_start:])
        return conclusion if final is None or conclusion is not None else final.answer
    if _is_taken_back(text, final):
        return None
    if (found := _OR.match(text, final.end)) is None:
        return final.answer
    other = without_end_tokens(found["other"])
    is_alternative = bool(other) if found["or"].islower() else is_value(plain_answer(other), words=0)
    return f"{final.answer} or {other}" if is_alternative else final.answer


def _replaces(new: _Statement, old: _Statement) -> bool:
    """Whether a statement counts rather than an earlier one."""
    if new.kind == "loose":
        return old.kind == "loose"
    if new.kind == "marked" or old.kind == "loose" or is_value(new.answer):
        return True
    if new.kind == "said":
        return old.kind == "said"
    repeats = len(new.answer) > len(old.answer) and re.search(
        rf"(?<!\w){re.escape(old.answer[:200])}(?!\w)", new.answer
    )
    return not repeats or HEDGE.search(new.answer) is not None


def _is_taken_back(text: str, statement: _Statement) -> bool:
    """Whether the text after a statement takes its answer back, and does not come to the same one again."""
    if _DENIED.match(text, statement.end):
        return True
    doubt = _TAKEN_BACK.search(text, max(statement.end - 1, 0))
    if doubt is None:
        return False
    rest = text[doubt.end() :]
    own, others = _NUMBER.findall(statement.answer), _NUMBER.findall(rest)
    if own:
        return others[-1] not in own if others else doubt["wrong"] is not None
    return re.search(rf"(?<!\w){re.escape(statement.answer[:200])}(?!\w)", rest) is None


def _without_closing_lines(text: str) -> str:
    """The text without end tokens, white space and courtesies ("Let me know …") at its end."""
    text = without_end_tokens(text)
    for _ in range(_MAX_LEADING_LINES):
        before, line_break, last = text.rpartition("\n")
        if not line_break or not _CLOSING_LINE.fullmatch(last.strip()):
            break
        text = without_end_tokens(before)
    return text


def _bare(text: str) -> str | None:
    """A response that is nothing but a short answer; None if it is anything else."""
    fence = _FENCE.fullmatch(text)
    body = (fence["inside"] if fence else text).strip()
    if formula := _DISPLAYED_FORMULA.fullmatch(body):
        return _content_of(formula) or None
    if "\n" in body or len(body) > _MAX_BARE or _NOT_BARE.search(body):
        return None
    answer = plain_answer(body)
    if _HAS_CONTENT.search(answer) is None:
        return None
    is_words = len(answer.split()) <= _MAX_BARE_WORDS and _VERB.search(answer) is None
    says = is_words or _SAYS_WHETHER.match(answer) or (not body.endswith(("?", "？")) and _states_one(answer))
    return answer if is_value(answer) or says else None


def _states_one(sentence: str) -> bool:
    """Whether a sentence says what something is, in few words and without doubt: `The capital is Paris`."""
    claim = _CLAIM.fullmatch(sentence)
    if claim is None or HEDGE.search(claim["subject"]):
        return False
    value = claim["value"].strip()
    is_sure = HEDGE.search(value) is None or value.casefold() in ("true", "false")
    return is_sure and 0 < len(value.split()) <= _MAX_BARE_WORDS and _VERB.search(value) is None


def _tagged(text: str) -> _Statement | None:
    """The content of the last tag `<answer>` that is not empty; one in angle brackets may lack its end."""
    end = len(text)
    is_closed = False
    for tag in reversed(list(_TAG.finditer(text))):
        if not tag["close"] and (is_closed or tag[0][0] == "<"):
            content = text[tag.end() : end].partition("</")[0] if not is_closed else text[tag.end() : end]
            if _HAS_CONTENT.search(content):
                return _Statement(end, end, _content(content, is_cut=not is_closed), "marked")
        is_closed, end = bool(tag["close"]), tag.start()
    return None


def _content(text: str, *, is_cut: bool = False) -> str:
    """The answer in a tag or a text of JSON: what it states, or else all of it, or its first line if it was cut off."""
    stripped = without_end_tokens(text).strip()
    if stated := _stated(stripped, nested=True) or _bare(stripped):
        return stated
    return plain_answer(stripped.partition("\n")[0] if is_cut else stripped)


def _in_json(text: str) -> _Statement | None:
    """The value of the last `"answer"` in JSON."""
    last = deque(_JSON_KEY.finditer(text), 1)
    if not last:
        return None
    found = last[0]
    value = found["value"]
    if value[0] in "\"'":
        inside = value[1:-1]
        try:
            decoded = json.loads(f'"{inside}"') if value[0] == '"' else inside
        except ValueError:
            decoded = inside
        value = _content(inside if re.search(r"[\x00-\x08\x0b-\x1f]", decoded) else decoded)
    elif value[0] == "[":
        value = value[1:-1].replace('"', "").strip()
    return _Statement(found.end(), found.end(), value, "marked") if value.strip() and value != "null" else None


def _announced(text: str) -> list[_Statement]:
    """The last answers that the text announces, in order."""
    lower = lowered(text)
    found = deque(announcements(text, lower), _MAX_ANNOUNCED)
    starts = [*[each.start for each in found], len(text)][1:]
    statements = []
    for announcement, limit in zip(found, starts, strict=True):
        answer, end = _announced_answer(text, announcement, limit)
        if answer and (kind := _kind(announcement, answer, is_last=not text[end:].strip())):
            statements.append(_Statement(announcement.end, end, answer, kind))
    for line in deque(_A_LINE.finditer(text), _MAX_ANNOUNCED):
        letter = Announcement(line.start(), line.end(), is_final=False, is_solution=True, form="colon")
        answer, end = _announced_answer(text, letter, len(text))
        following = _NEXT_TEXT_LINE.match(text, end)
        if answer and not _B_LABEL.search(answer) and not (following and _B_LABEL.match(following["line"])):
            statements.append(_Statement(line.end(), end, answer, "loose"))
    return statements


def _chosen(text: str) -> list[_Statement]:
    """What the text calls correct: `The correct option is (B)`, `Option B is correct`, `42 is the answer`.

    Of several letters or values that are called so, none counts.
    """
    found = deque(_CHOSEN.finditer(text), _MAX_ANNOUNCED)
    chosen = {each["letter"] or each["chosen"] or each["value"] for each in found} - {None}
    return [
        _Statement(
            each.end(),
            each.end(),
            each["letter"] or each["chosen"] or plain_answer(each["named"] or each["value"], keeps_mark=False),
            "loose",
        )
        for each in found
        if each["named"] or len(chosen) == 1
    ]


def _kind(announcement: Announcement, answer: str, *, is_last: bool) -> _Kind | None:
    """How an announced answer is stated; None if the words announced nothing."""
    is_short = is_value(answer) or len(answer.split()) <= _MAX_BARE_WORDS
    if announcement.form == "none":
        return "announced" if is_value(answer, words=0) else None
    if announcement.is_solution:
        return "loose" if is_value(answer) or (is_short and announcement.form == "colon") else None
    if announcement.form == "heading":  # a worked solution may follow
        return "announced" if is_short or is_last else "loose"
    return "announced" if announcement.form == "colon" else "said"


def _announced_answer(text: str, announcement: Announcement, limit: int) -> tuple[str, int]:
    """The answer after an announcement and where it ends; empty if there is none before `limit`."""
    start = announcement.end
    if formula := _DISPLAYED_FORMULA.match(text, start, limit):
        answer = _content_of(formula)
        if answer and "\n" in formula[0].strip():
            return answer, formula.end()
    line_start = max(text.rfind("\n", 0, start) + 1, announcement.start)
    line_end = text.find("\n", start)
    line_end = len(text) if line_end < 0 else line_end
    end = min(line_end, limit)
    before = text[line_start:start]
    unmarked = before.rstrip("*_ \t")
    if not {"*", "**", "_", "__"} & set(open_marks(unmarked)):  # the marks begin the answer: `Answer: **73** eggs`
        start, before = line_start + len(unmarked), unmarked
    answer = plain_answer(text[start:end], before=before, keeps_mark=False)
    if _HAS_CONTENT.search(answer):
        if end == line_end and (label := _ITEM.match(answer)) and label["label"]:
            items, end = _items(text, end)
            return " ".join([answer, *items]), end
        return answer, end
    return ("", end) if end < line_end else _next_lines(text, line_end, limit)


def _next_lines(text: str, line_end: int, limit: int) -> tuple[str, int]:
    """The answer on the lines after an announcement: a formula, a line, or a list."""
    for _ in range(_MAX_LEADING_LINES):
        following = _NEXT_TEXT_LINE.match(text, line_end, limit)
        if following is None or not following["line"]:
            break
        if formula := _DISPLAYED_FORMULA.match(text, following.start("line"), limit):
            return _content_of(formula), formula.end()
        if fence := _FENCED_LINES.match(text, following.start("line"), limit):
            return fence["inside"].strip(), fence.end()
        if (item := _ITEM.match(following["line"])) and (item["number"] or "1") == "1":
            items, end = _items(text, following.start("line") - 1)
            return (" " if item["label"] else ", ").join(items), end
        line_end = following.end()
        answer = plain_answer(following["line"], keeps_mark=False)
        introduces = (
            following["line"].rstrip("*_ \t\r").endswith((":", "：")) and len(answer.split()) <= _MAX_BARE_WORDS
        )
        if _HAS_CONTENT.search(answer) and not introduces:
            return answer, line_end
    return "", line_end


def _items(text: str, line_break: int) -> tuple[list[str], int]:
    """The items of the list whose first line follows this line break, and where the last one ends."""
    items: list[str] = []
    while line_break < len(text) and len(items) < _MAX_ITEMS:
        end = text.find("\n", line_break + 1)
        end = len(text) if end < 0 else end
        line = text[line_break + 1 : end]
        item = _ITEM.match(line)
        if item is None:
            break
        items.append(plain_answer(line if item["label"] else line[item.end() :], keeps_mark=False))
        line_break = end
    return items, line_break


def _conclusion(line: str) -> str | None:
    """The last formula of a last line that concludes, or what it claims to be a value; None if it does neither."""
    start = _CONCLUSION.match(line)
    if start is None:
        return None
    formulas = [_Span(each.start(), each.end(), _content_of(each)) for each in FORMULA.finditer(line)]
    if formulas:
        return _join_contents(_joined_to_first(line, reversed(formulas))) or None
    claim = plain_answer(line[(_WE_FIND.match(line, start.end()) or start).end() :], keeps_mark=False)
    if len(claim) > _MAX_BARE or HEDGE.search(claim):
        return None
    stated = _CLAIM.fullmatch(claim)
    return claim if is_value(claim) or (stated and is_value(stated["value"].strip())) else None


def _last_boxes(text: str) -> list[_Span]:
    """The last non-empty box and the ones before that are joined to it, in order; empty if there are none."""
    return _joined_to_first(text, _boxes_from_the_end(text))


def _boxes_from_the_end(text: str) -> Iterator[_Span]:
    """Yield the non-empty boxes that contain no other such box, the last one first, reading the text backwards."""
    closing: list[int] = []  # braces after `end` that close a brace before it, the nearest one last
    end = start_of_last = len(text)
    starts = [each.start() for each in _BOX_COMMAND.finditer(text)]
    for start in reversed(starts):
        box = _BOX.match(text, start)
        opening: list[int] = []
        unopened: list[int] = []
        for brace in _BRACES.finditer(text, box.end() if box else start, end):
            if brace[0] == "{":
                opening.append(brace.start())
            elif brace[0] == "}" and opening:
                opening.pop()
            elif brace[0] == "}":
                unopened.append(brace.start())
        del closing[max(len(closing) - len(opening), 0) :]
        closing += reversed(unopened)
        if box and box["brace"]:
            if closing:
                close = closing.pop()
                content = text[box.end() : close].strip() if close < start_of_last else ""
                if content:
                    start_of_last = start
                    yield _Span(start, close + 1, content)
        elif box and (unbraced := _UNBRACED.match(text, box.end(), end)):
            content = unbraced[0].rstrip(".,;:!?")
            if content:
                start_of_last = start
                yield _Span(start, unbraced.start() + len(content), content)
        end = start


def _content_of(formula: re.Match[str]) -> str:
    """The formula without its delimiters: the only group that matched."""
    return formula[formula.lastgroup or 0].strip()


def _joins_following(text: str, place: _Span, following: _Span) -> bool:
    """Whether a box or formula forms one answer with the one that follows it; not if that one corrects it."""
    if following.start - place.end >= _MAX_JOINED_GAP:
        return False
    between = text[place.end : following.start]
    if any(doubt["wrong"] or doubt["halt"] for doubt in _TAKEN_BACK.finditer(between)):
        return False
    return len(between) < _MAX_ADJACENT_GAP or (
        place.content != following.content and _JOINING_WORD.search(between) is not None
    )


def _joined_to_first(text: str, from_the_end: Iterable[_Span]) -> list[_Span]:
    """The first of these spans, which begin with the last of the text, and those that form one answer with it."""
    kept: list[_Span] = []
    for place in from_the_end:
        if kept and not _joins_following(text, place, kept[-1]):
            break
        kept.append(place)
    return kept[::-1]


def _join_contents(places: Sequence[_Span]) -> str:
    """Join the contents by commas, without consecutive duplicates."""
    contents = [place.content for place in places]
    return ", ".join(each for index, each in enumerate(contents) if index == 0 or each != contents[index - 1])
