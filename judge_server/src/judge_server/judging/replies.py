"""Read a judge's reply as a verdict or a failure, and combine votes into one verdict. Nothing is guessed.

Probability masses are checked first, because an endpoint may return numbers that are not probabilities.

An engine that cannot hold a model to the labels on offer returns text instead. A label in it counts only as a stated
answer: at the beginning ("Yes.", "**Step 3**", "7/10"), on a line that announces it ("Final answer: no"), after the
mark `[RESULT]`, or in double brackets that end a line (`[[A]]`). If there are several such places they must agree. The
same sentence must name no other label, and the text after it must not end with one. Anything else is a `parse` failure,
even if a reader would guess right (docs/decisions/0012). Formatting characters (U+200E and the like) are ignored.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from judge_server.judging.calibration import UNSCALED, ProbabilityMap
from judge_server.judging.items import Item, ItemForm, excerpt, read_items
from judge_server.ports import MASS_TOLERANCE, CallFailure, JudgeResult, LabelChoice, Reply, TokenChoice
from trainer_client.steps import WHOLE_RESPONSE

MIN_CHOICE_MASS = 0.02
"""The default for the least probability that a judge must put on all choices together."""


def invalid_masses(masses: Sequence[float], choices: int) -> str:
    """Return why these cannot be the probabilities of `choices` choices, in words; empty if they can."""
    if len(masses) != choices:
        return f"{len(masses)} probabilities for {choices} choices"
    for mass in masses:
        if not 0.0 <= mass <= 1.0 + MASS_TOLERANCE:
            return f"a probability of {mass:g}"
    total = math.fsum(masses)
    return f"probabilities that add up to {total:.6g}" if total > 1.0 + MASS_TOLERANCE else ""


def _choice_mass(
    token_choice: TokenChoice, reply: Reply, masses: tuple[float, ...], least: float
) -> float | CallFailure:
    """Return the mass of all choices together, or a failure if it is invalid or less than `least`."""
    invalid = invalid_masses(masses, len(token_choice.options))
    if invalid:
        return CallFailure("engine", f"the judge's answer has {invalid}, which is impossible; check its endpoint")
    total = math.fsum(masses)
    if total > 0 and total >= least:
        return total
    labels = token_choice.options[0].label, token_choice.options[-1].label
    named = " or ".join(labels) if len(token_choice.options) == 2 else f"a grade from {labels[0]} to {labels[1]}"
    quote = f"; it said {reply.text[:80]!r}" if reply.text else ""
    if not total > 0:
        return CallFailure("parse", f"the judge put no probability on {named}{quote}")
    return CallFailure(
        "parse",
        f"the judge put a probability of only {total:.2g} on {named} (min_choice_mass is {least:g}), so it tended "
        f"to say something else{quote}",
    )


def read_yes_no(
    token_choice: TokenChoice,
    reply: Reply,
    scaling: ProbabilityMap = UNSCALED,
    min_choice_mass: float = MIN_CHOICE_MASS,
) -> JudgeResult | CallFailure:
    """Read a reply to a choice of two tokens as a verdict about the first option.

    raw_probability = mass of the first option / mass of both; choice_mass is that denominator. probability is the raw
    one calibrated by `scaling`; the verdict is satisfied from the map's threshold on. If the engine reads no masses,
    the model's text decides and there is no probability; the score is 0.5 if it says that both options are equal.

    A choice_mass below `min_choice_mass`, or a step that was not offered, is a `parse` failure. Masses that cannot be
    probabilities are an `engine` failure. The step is the one named after the option of greatest mass, even if
    calibration turns the verdict.
    """
    if reply.masses is None:
        return _read_from_text(token_choice, reply)
    choice_mass = _choice_mass(token_choice, reply, reply.masses, min_choice_mass)
    if isinstance(choice_mass, CallFailure):
        return choice_mass
    yes, no = reply.masses
    raw = yes / choice_mass
    probability = scaling.calibrate(raw)
    step = None
    if token_choice.then is not None:
        label = token_choice.options[0 if yes >= no else 1].label
        chosen = _chosen(token_choice, token_choice.then, label, reply)
        if isinstance(chosen, CallFailure):
            return chosen
        step = int(chosen)
    return JudgeResult(
        1.0 if probability >= scaling.threshold else 0.0,
        probability,
        _known_mass(reply, choice_mass),
        step,
        rationale=reply.reasoning,
        raw_probability=raw,
    )


def _known_mass(reply: Reply, total: float) -> float | None:
    """Return the mass on the choices; None if the engine reports only their shares."""
    return None if reply.masses_normalized else min(total, 1.0)


def _chosen(token_choice: TokenChoice, then: LabelChoice, label: str, reply: Reply) -> str | CallFailure:
    chosen = reply.chosen
    if chosen is None and reply.text is not None:
        answer = read_token_choice(reply.text, token_choice)
        if isinstance(answer, CallFailure):
            return answer
        if answer[0] != label:
            return CallFailure("parse", f"the judge puts more probability on {label} but says {answer[0]}")
        chosen = answer[1]
    if chosen not in then.labels:
        return CallFailure("parse", f"the judge named step {chosen!r}, which was not on offer")
    return chosen


_CLOSING = re.compile('[<"]')
"""What closes a verdict after a lead: a tag, or the quote of a JSON string."""


def _read_from_text(token_choice: TokenChoice, reply: Reply) -> JudgeResult | CallFailure:
    text = reply.text or ""
    if lead_end := token_choice.lead_end(text):
        rest = text[lead_end:]
        if token_choice.lead.splitlines()[-1].strip() in rest:
            return CallFailure("parse", f"the judge gave more than one verdict: {text[:80]!r}")
        text = _CLOSING.split(rest, maxsplit=1)[0]
    answer = read_token_choice(text, token_choice)
    if isinstance(answer, CallFailure):
        return answer
    label, then = answer
    step = None if token_choice.then is None or then is None else int(then)
    if label == TIE:
        return JudgeResult(0.5, rationale=reply.reasoning)
    return JudgeResult(1.0 if label == token_choice.options[0].label else 0.0, step=step, rationale=reply.reasoning)


def read_grade(
    answer: TokenChoice | LabelChoice, reply: Reply, min_choice_mass: float = MIN_CHOICE_MASS
) -> JudgeResult | CallFailure:
    """Read a reply as a grade. score = grade / highest grade.

    From masses m_g, the grade is the expected one, E[g] = sum of g m_g / sum of m_g, and choice_mass is the sum of the
    masses. Without masses, and for a label choice, the grade is the one that the judge said or picked. Masses are
    checked as in `read_yes_no`.
    """
    labels = answer.labels if isinstance(answer, LabelChoice) else tuple(offered.label for offered in answer.options)
    highest = int(labels[-1])
    if isinstance(answer, TokenChoice) and reply.masses is not None:
        total = _choice_mass(answer, reply, reply.masses, min_choice_mass)
        if isinstance(total, CallFailure):
            return total
        # Divide each mass before multiplying, so that all mass on one grade gives exactly that grade.
        expected = sum(int(name) * (mass / total) for name, mass in zip(labels, reply.masses, strict=True))
        grade, choice_mass = min(expected, float(highest)), _known_mass(reply, total)
    else:
        label = (
            _read_label(answer, reply)
            if isinstance(answer, LabelChoice)
            else read_token_choice(reply.text or "", answer)
        )
        if isinstance(label, CallFailure):
            return label
        grade, choice_mass = float(label if isinstance(label, str) else label[0]), None
    return JudgeResult(grade / highest, None, choice_mass, grade=grade, rationale=reply.reasoning)


def read_rating(
    answer: TokenChoice, reply: Reply, min_choice_mass: float = MIN_CHOICE_MASS
) -> JudgeResult | CallFailure:
    """Read a reply of one digit from 0 to 9 as a rating from 1 to 10.

    rating = digit + 1, where the digit is the expected one if masses are read (see `read_grade`).
    score = (rating - 1) / 9 (RGR-GRPO's Likert baseline) = digit / 9.
    """
    result = read_grade(answer, reply, min_choice_mass)
    if isinstance(result, CallFailure) or result.grade is None:
        return result
    return replace(result, grade=result.grade + 1)


def _read_label(answer: LabelChoice, reply: Reply) -> str | CallFailure:
    if reply.chosen is None:
        return read_label_choice(reply.text or "", answer)
    if reply.chosen not in answer.labels:
        return CallFailure("parse", f"the judge answered {reply.chosen!r}, which was not on offer")
    return reply.chosen


def read_json_output(forms: tuple[ItemForm, ...], reply: Reply) -> list[JudgeResult | CallFailure]:
    """Read a JSON answer about several criteria as a verdict on each. score = points awarded / points possible.

    If the points awarded lie outside 0..points possible, the score is clipped to 0 or 1 (as in Rubric-Grounded RL,
    section 3.1) and `grade` keeps them unchanged.
    """
    items = read_items(reply.text or "", reply.cut, forms)
    return [_from_item(form, item) for form, item in zip(forms, items, strict=True)]


def _from_item(form: ItemForm, item: Item | CallFailure) -> JudgeResult | CallFailure:
    if isinstance(item, CallFailure):
        return item
    graded = form.value != "satisfied"
    score = min(1.0, max(0.0, item.value / form.high)) if graded else item.value
    return JudgeResult(score, step=item.step, grade=item.value if graded else None, rationale=item.reason)


def combine_votes(votes: Sequence[JudgeResult | CallFailure]) -> JudgeResult | CallFailure:
    """Combine the votes on a criterion into one verdict.

    Yes/no votes are decided by majority; a tie is a no. If some votes failed, the verdict stands only if they could not
    have turned it; otherwise it fails as they did, with `parse` only if all failed votes were unreadable. A grade or
    rating is the mean, and fails if any vote failed. Step and rationale come from the winning side: the step it names
    most often (the first of several), and the rationale of its first vote. Probabilities (raw and calibrated) and
    choice masses are averaged over the votes that have them.
    """
    if len(votes) == 1:
        return votes[0]
    given = [vote for vote in votes if isinstance(vote, JudgeResult)]
    failed = sorted((vote for vote in votes if isinstance(vote, CallFailure)), key=lambda vote: vote.kind == "parse")
    if not given:
        return failed[0]
    if any(vote.grade is not None for vote in given):
        return failed[0] if failed else _mean(given)
    yes = [vote for vote in given if vote.score == 1.0]
    no = [vote for vote in given if vote.score != 1.0]
    satisfied = len(yes) > len(no) + len(failed)
    if not satisfied and len(yes) + len(failed) > len(no):
        kind = failed[0].kind
        return CallFailure(
            kind, f"{len(failed)} of {len(votes)} votes failed and could have turned the verdict: {failed[0].detail}"
        )
    winners = yes if satisfied else no
    side = winners or given
    return replace(
        side[0],
        score=1.0 if satisfied else 0.0,
        probability=_average([vote.probability for vote in given]),
        raw_probability=_average([vote.raw_probability for vote in given]),
        choice_mass=_average([vote.choice_mass for vote in given]),
        step=_most_named([vote.step for vote in side]),
    )


def combine_turns(
    turns: Sequence[tuple[int, JudgeResult | CallFailure]], *, avoided: bool
) -> JudgeResult | CallFailure:
    """Combine the verdicts on single turns into one on the response.

    A criterion is satisfied if it is in every turn; one that a good response avoids, if it is in any turn. The verdict
    is that of the turn which decides it, with its number as the step: of several, the one with the lowest probability,
    or for `avoided` the highest. If no turn alone decides, the probability is still the lowest (highest), and the step
    is 0. A grade is the mean. If turns failed, the verdict stands only if another turn decides it.

    Args:
        turns: the number of each turn, and its outcome.
        avoided: whether a good response avoids the criterion.
    """
    given = [(turn, one) for turn, one in turns if isinstance(one, JudgeResult)]
    failed = [one for _, one in turns if isinstance(one, CallFailure)]
    if any(one.grade is not None for _, one in given):
        return failed[0] if failed else replace(_mean([one for _, one in given]), step=WHOLE_RESPONSE)
    deciding = [(turn, one) for turn, one in given if (one.score == 1.0) == avoided]
    if failed and not deciding:
        return failed[0]
    sign = -1.0 if avoided else 1.0
    turn, extreme = min(deciding or given, key=lambda pair: sign * probability_of(pair[1]))
    return replace(extreme, step=turn if deciding else WHOLE_RESPONSE)


def probability_of(result: JudgeResult) -> float:
    """Return the probability of a verdict, or its score if it has none."""
    return result.score if result.probability is None else result.probability


def _mean(given: Sequence[JudgeResult]) -> JudgeResult:
    return replace(
        given[0],
        score=sum(vote.score for vote in given) / len(given),
        grade=_average([vote.grade for vote in given]),
        choice_mass=_average([vote.choice_mass for vote in given]),
    )


def _average(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known else None


def _most_named(steps: Sequence[int | None]) -> int | None:
    return Counter(steps).most_common(1)[0][0]


MAX_LABEL_TEXT_CHARACTERS = 20_000
"""The longest text that is read at all."""

_MARKS = dict.fromkeys(map(ord, '*_`#>"“”„«»[]{}'), " ") | {ord("−"): "-"}
_TOKEN = re.compile(
    r"(?<!\w)-?\d+(?:[.,]\d+)*"  # a number, whole
    r"|[^\W\d_]+(?:['’][^\W\d_]+)*"  # a word
    r"|(?<![.!?])[.!?]++(?=\s|$)"  # the end of a sentence
    r"|\n|[^\s\w]|\w"
)
_ANSWER_LINE = re.compile(
    r"^[^\S\n]*(?:[-•][^\S\n]+)?(?:(?:so|therefore|thus|hence)\b,?[^\S\n]*)?(?:(?:the|my)[^\S\n]+)?(?:final[^\S\n]+)?"
    r"(?:answer|verdict|decision|judge?ment|choice|rating|grade|score)[^\S\n]*(?:[:=]|is\b[^\S\n]*:?)",
    re.IGNORECASE | re.MULTILINE,
)
_RESULT = "[RESULT]"
"""What Prometheus writes before its label, anywhere in a line."""

_BRACKETED = re.compile(
    r"^(?P<before>[^\n]*?)\[\[[^\S\n]*+"
    r"(?:(?P<first>[^\W\d_])[^\S\n]*+(?P<relation>>{1,2}|<{1,2}|=)[^\S\n]*+(?P<second>[^\W\d_])"
    r"|(?P<label>[^\[\]\n]{1,40}))"
    r"[^\S\n]*+\]\][ \t\r.*_`\"]*$",
    re.MULTILINE,
)
"""What comparing judges write last: `[[A]]` (MT-Bench), `[[A>>B]]` and `[[A=B]]` (Arena-Hard, NeMo)."""

TIE = "="
"""The label read from `[[A=B]]`, if both are on offer."""

_NO_ANSWER = "it does not begin with an answer on offer"
_LEAD_WORDS = {"answer", "step", "option", "grade", "score", "rating"}
_DASH = re.compile(r"(?<=[^\S\n])[-–](?=\s)")
_STOPS = {".", "!", ",", ";", ":", "—", "(", "\n"}


@dataclass(frozen=True, slots=True)
class _Labels:
    """Labels by the words that may spell each, and the words that may lead to one."""

    by_words: dict[tuple[str, ...], str]
    lead: frozenset[str]

    def at(self, words: Sequence[str], start: int) -> tuple[str, int] | None:
        """Return the longest label written from `start` on, and where it ends."""
        for length in range(min(max(map(len, self.by_words), default=0), len(words) - start), 0, -1):
            label = self.by_words.get(tuple(word.casefold() for word in words[start : start + length]))
            if label is not None:
                return label, start + length
        return None

    def bracketed(self, verdict: re.Match[str]) -> str:
        """Rewrite a line that ends with a label in double brackets as an answer line; leave any other line unchanged.

        The text before the brackets is dropped, unless it announces an answer and names another label.
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

    def last(self, words: Sequence[str]) -> str | None:
        """Return the longest label that the words end with. One letter or number must follow a mark: "see point 3"."""
        end = next((i for i in range(len(words), 0, -1) if words[i - 1][-1].isalnum()), 0)
        for start in range(max(0, end - max(map(len, self.by_words), default=0)), end):
            if (found := self.at(words, start)) is not None and found[1] == end:
                is_word = len(found[0]) > 1 and not found[0].lstrip("-").isdecimal()
                return found[0] if is_word or words[start - 1] in _STOPS else None
        return None

    def named(self, words: Sequence[str]) -> set[str]:
        """Return every label that the words name. A single letter must match in case, because "a" is a word too."""
        exact = {label for label in self.by_words.values() if len(label) == 1 and label.isalpha()}
        hits = ((found, words[i]) for i in range(len(words)) if (found := self.at(words, i)))
        return {label for (label, _), word in hits if label not in exact or word == label}


def read_token_choice(text: str, token_choice: TokenChoice) -> tuple[str, str | None] | CallFailure:
    """Read the label that `text` gives as its answer, and that of the label choice that follows (None without one).

    The label is `TIE` if the text says that both of two options are equal.
    """
    written = {
        words: o.label for o in token_choice.options for s in (o.label, *o.spellings) if (words := _fold_words(s))
    }
    return _read(text, _Labels(written, frozenset(_LEAD_WORDS)), token_choice.then)


def read_label_choice(text: str, choice: LabelChoice) -> str | CallFailure:
    """Read the label that `text` gives as its answer."""
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
    """Yield the places of possible answers: the beginning (True), then after each "answer:" or `[RESULT]`."""
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
    """Return the answer that the words begin with, or why there is none."""
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
    if labels.last(words[sentence_end:]) not in (None, label):
        return f"it says {label!r} and ends with another answer"
    return label, second


def _skip_lead(
    words: Sequence[str], lead: frozenset[str], skip: frozenset[str] | set[str] = frozenset({":", "\n"}), start: int = 0
) -> int:
    while start < len(words) and (words[start] in skip or words[start].casefold() in lead):
        start += 1
    return start


def _labels_after_lead(words: Sequence[str], labels: _Labels) -> set[str]:
    """Return every label that follows a leading word ("step 2"), in any sentence."""
    led = (labels.at(words, i + 1) for i, word in enumerate(words) if word.casefold() in labels.lead)
    return {found[0] for found in led if found}


def _skip_scale(words: Sequence[str], end: int, label: str, labels: _Labels) -> int:
    """Skip "/10", "of 10" or "out of 10", if 10 is the greatest label."""
    numbers = [int(name) for name in labels.by_words.values() if name.lstrip("-").isdecimal()]
    if label.isdecimal() and numbers:
        for scale in (["/"], ["of"], ["out", "of"]):
            if [*words[end : end + len(scale) + 1]] == [*scale, str(max(numbers))]:
                return end + len(scale) + 1
    return end


def _stands_alone(words: Sequence[str], end: int, label: str, also: set[str] | frozenset[str] = frozenset()) -> bool:
    """Whether a label ends here. A number followed by ". " and words does not: it may number a list item."""
    if end >= len(words):
        return True
    stop = words[end]
    if stop == "." and label.lstrip("-").isdecimal():
        return end + 1 >= len(words) or words[end + 1] == "\n"
    return stop in _STOPS | also


def _sentence(words: Sequence[str], start: int) -> Sequence[str]:
    """Return the words from `start` to the end of the sentence, without its final mark."""
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
