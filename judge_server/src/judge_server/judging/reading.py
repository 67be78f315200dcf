"""What a model said where it should have picked a label, for engines that cannot hold it to the labels.

A label counts where it stands as the answer: at the beginning ("Yes.", "**Step 3**", "7/10"), on a line that says so
("Final answer: no"), behind the mark `[RESULT]`, or in double brackets that end a line (`[[A]]`). Several such places
must agree, and no other label may be named in the same sentence. Everything else is a `parse` failure, also where a
reader would guess right (docs/decisions/0012). Characters that only format (U+200E and its kin) are not read.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from judge_server.judging.items import excerpt
from judge_server.ports import CallFailure, LabelChoice, TokenChoice

MAX_LABEL_TEXT_CHARACTERS = 20_000
"""The longest text that is read at all."""

_MARKS = dict.fromkeys(map(ord, '*_`#>"“”„«»[]{}'), " ") | {ord("−"): "-"}
_TOKEN = re.compile(
    r"(?<!\w)-?\d+(?:[.,]\d+)*"  # a number, whole
    r"|[^\W\d_]+(?:['’][^\W\d_]+)*"  # a word
    r"|[.!?]+(?=\s|$)"  # the end of a sentence
    r"|\n|[^\s\w]|\w"
)
_ANSWER_LINE = re.compile(
    r"^[^\S\n]*(?:[-•][^\S\n]+)?(?:(?:so|therefore|thus|hence)\b,?[^\S\n]*)?(?:(?:the|my)[^\S\n]+)?(?:final[^\S\n]+)?"
    r"(?:answer|verdict|decision|judge?ment|choice|rating|grade|score)[^\S\n]*(?:[:=]|is\b[^\S\n]*:?)",
    re.IGNORECASE | re.MULTILINE,
)
_RESULT = "[RESULT]"
"""What Prometheus writes before its label, wherever in a line."""
_BRACKETED = re.compile(
    r"^(?P<before>[^\n]*?)\[\[[^\S\n]*"
    r"(?:(?P<first>[^\W\d_])[^\S\n]*(?P<relation>>{1,2}|<{1,2}|=)[^\S\n]*(?P<second>[^\W\d_])|(?P<label>[^\[\]\n]{1,40}))"
    r"[^\S\n]*\]\][ \t\r.*_`\"]*$",
    re.MULTILINE,
)
"""What judges that compare write last: `[[A]]` (MT-Bench), `[[A>>B]]` and `[[A=B]]` (Arena-Hard, NeMo)."""
TIE = "="
"""What is read of `[[A=B]]`, where both are on offer."""
_NO_ANSWER = "it does not begin with an answer on offer"
_LEAD_WORDS = {"answer", "step", "option", "grade", "score", "rating"}
_DASH = re.compile(r"(?<=[^\S\n])[-–](?=\s)")
_STOPS = {".", "!", ",", ";", ":", "—", "(", "\n"}


@dataclass(frozen=True, slots=True)
class _Labels:
    """Labels by the words each may be written in, and the words that may lead to one."""

    by_words: dict[tuple[str, ...], str]
    lead: frozenset[str]

    def at(self, words: Sequence[str], start: int) -> tuple[str, int] | None:
        """The label written from `start` on, and where it ends; the longest one."""
        for length in range(min(max(map(len, self.by_words), default=0), len(words) - start), 0, -1):
            label = self.by_words.get(tuple(word.casefold() for word in words[start : start + length]))
            if label is not None:
                return label, start + length
        return None

    def bracketed(self, verdict: re.Match[str]) -> str:
        """A line that ends with a verdict in double brackets, as an answer's line; as it stands if it has none.

        What the line says before the verdict is dropped, unless it announces an answer and names another label.
        """
        label_text = verdict["label"]
        if label_text is None:
            first, relation, second = verdict["first"], verdict["relation"], verdict["second"]
            if len(set(self.by_words.values())) != 2 or {first, second} != set(self.by_words.values()):
                return verdict[0]
            label_text = TIE if relation == "=" else first if relation.startswith(">") else second
        elif not self.at(_TOKEN.findall(label_text), 0):
            return verdict[0]
        before = _ANSWER_LINE.sub("", plain := verdict["before"].translate(_MARKS))
        agrees = label_text == TIE or before == plain or self.named(_TOKEN.findall(before)) <= {label_text}
        return f"{'' if agrees else verdict['before']}\nanswer: {label_text}\n"

    def named(self, words: Sequence[str]) -> set[str]:
        """Every label that the words name. A lone letter names one only as it is spelled, since "a" is a word too."""
        exact = {label for label in self.by_words.values() if len(label) == 1 and label.isalpha()}
        hits = ((found, words[i]) for i in range(len(words)) if (found := self.at(words, i)))
        return {label for (label, _), word in hits if label not in exact or word == label}


def read_token_choice(text: str, token_choice: TokenChoice) -> tuple[str, str | None] | CallFailure:
    """The label that `text` gives as its answer, and that of the choice which follows; None if the menu has none.

    The label is `TIE` where the text says of both options of a menu of two that they are equal.
    """
    written = {
        words: o.label for o in token_choice.options for s in (o.label, *o.spellings) if (words := _fold_words(s))
    }
    return _read(text, _Labels(written, frozenset(_LEAD_WORDS)), token_choice.then)


def read_label_choice(text: str, choice: LabelChoice) -> str | CallFailure:
    """The label that `text` gives as its answer."""
    outcome = _read(text, _labels(choice), None)
    return outcome if isinstance(outcome, CallFailure) else outcome[0]


def _read(text: str, labels: _Labels, then: LabelChoice | None) -> tuple[str, str | None] | CallFailure:
    if len(text) > MAX_LABEL_TEXT_CHARACTERS:
        return CallFailure("parse", f"the judge wrote {len(text)} characters where a label was asked for")
    answers: list[tuple[str, str | None]] = []
    why = _NO_ANSWER
    for at_start, part in _places(text, labels):
        tie = part.strip() == TIE and then is None and not at_start
        answer = (TIE, None) if tie else _statement(_TOKEN.findall(part), labels, then)
        if isinstance(answer, str):
            why = answer
            if not at_start:
                return _failed(why, text)
        else:
            answers.append(answer)
    if not answers:
        return _failed(why, text)
    if len(set(answers)) > 1:
        return _failed("it gives more than one answer", text)
    return answers[0]


def _places(text: str, labels: _Labels) -> Iterator[tuple[bool, str]]:
    """Where an answer may stand: the beginning (true), then behind each line's "answer:" or `[RESULT]`."""
    written = text if text.isascii() else "".join(c for c in text if unicodedata.category(c) != "Cf")
    written = _BRACKETED.sub(labels.bracketed, written)
    plain = _DASH.sub("—", written.replace(_RESULT, "\nanswer: ").translate(_MARKS).strip())
    lines = list(_ANSWER_LINE.finditer(plain))
    starts = [0, *(line.end() for line in lines)]
    ends = [*(line.start() for line in lines), len(plain)]
    for start, end in zip(starts, ends, strict=True):
        if end > 0:
            yield start == 0, plain[start:end]


def _statement(words: Sequence[str], labels: _Labels, then: LabelChoice | None) -> tuple[str, str | None] | str:
    """The answer that the words begin with, or why they are none."""
    found = labels.at(words, _skip_lead(words, labels.lead))
    if found is None:
        return _NO_ANSWER
    label, end = found
    end = _skip_scale(words, end, label, labels)
    if not _stands_alone(words, end, label):
        return f"{label!r} does not stand alone as the answer"
    second = None
    if then is not None:
        choice = _labels(then)
        chosen = choice.at(words, _skip_lead(words, choice.lead | {"in", "at"}, skip=_STOPS | {"#"}, start=end))
        if chosen is None:
            return f"it says {label!r} and then none of the choices on offer"
        second, end = chosen
        end = _skip_scale(words, end, second, choice)
        if not _stands_alone(words, end, second, {")"}):
            return f"{second!r} does not stand alone as the answer"
        if (choice.named(_sentence(words, end)) | _labels_after_lead(words[end:], choice)) - {second}:
            return f"it names another choice besides {second!r}"
    if labels.named(_sentence(words, end)) - {label}:
        return f"it names another answer besides {label!r}"
    if (sentence_end := end + len(_sentence(words, end))) < len(words) and "?" in words[sentence_end]:
        return "it asks instead of answering"
    return label, second


def _skip_lead(
    words: Sequence[str], lead: frozenset[str], skip: frozenset[str] | set[str] = frozenset({":", "\n"}), start: int = 0
) -> int:
    while start < len(words) and (words[start] in skip or words[start].casefold() in lead):
        start += 1
    return start


def _labels_after_lead(words: Sequence[str], labels: _Labels) -> set[str]:
    """Every label that stands behind a word that leads to one ("step 2"), in any sentence."""
    led = (labels.at(words, i + 1) for i, word in enumerate(words) if word.casefold() in labels.lead)
    return {found[0] for found in led if found}


def _skip_scale(words: Sequence[str], end: int, label: str, labels: _Labels) -> int:
    """Behind "/10", "of 10" or "out of 10", where 10 is the greatest label."""
    numbers = [int(name) for name in labels.by_words.values() if name.lstrip("-").isdecimal()]
    if label.isdecimal() and numbers:
        for scale in (["/"], ["of"], ["out", "of"]):
            if [*words[end : end + len(scale) + 1]] == [*scale, str(max(numbers))]:
                return end + len(scale) + 1
    return end


def _stands_alone(words: Sequence[str], end: int, label: str, also: set[str] | frozenset[str] = frozenset()) -> bool:
    """Whether a label ends here. "2. The" may be the head of a list, so a number takes no full stop before words."""
    if end >= len(words):
        return True
    stop = words[end]
    if stop == "." and label.lstrip("-").isdecimal():
        return end + 1 >= len(words) or words[end + 1] == "\n"
    return stop in _STOPS | also


def _sentence(words: Sequence[str], start: int) -> Sequence[str]:
    """From `start` to the end of its sentence, without the mark that ends it."""
    for end in range(start, len(words)):
        if words[end] == "\n" or words[end][0] in ".!?":
            return words[start:end]
    return words[start:]


def _labels(choice: LabelChoice) -> _Labels:
    lead = frozenset(word for word in _fold_words(choice.lead) if word.isalpha())
    return _Labels({_fold_words(label): label for label in choice.labels}, lead | _LEAD_WORDS)


def _fold_words(written: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(written.casefold().strip()))


def _failed(why: str, text: str) -> CallFailure:
    shown = excerpt(text)
    return CallFailure("parse", f"{why}; the judge wrote {shown!r}" if shown else "the judge wrote nothing")
