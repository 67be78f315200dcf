"""What a reply means: a verdict, or a failure that says why it is none. Nothing is guessed.

Masses are checked before anything is made of them: an endpoint may answer with numbers that are no probabilities.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from judge_server.judging.calibration import SATISFIED_THRESHOLD, UNSCALED, PlattScaling
from judge_server.judging.items import Item, ItemForm, read_items
from judge_server.judging.reading import TIE, read_label_choice, read_token_choice
from judge_server.ports import MASS_TOLERANCE, CallFailure, JudgeResult, LabelChoice, Reply, TokenChoice

MIN_CHOICE_MASS = 0.02
"""The least probability that a judge must put on all choices together, unless a judge is given another."""


def invalid_masses(masses: Sequence[float], choices: int) -> str:
    """What makes these no probabilities of `choices` choices, in words; empty where they can be."""
    if len(masses) != choices:
        return f"{len(masses)} probabilities for {choices} choices"
    wrong = next((mass for mass in masses if not 0.0 <= mass <= 1.0 + MASS_TOLERANCE), None)
    if wrong is not None:
        return f"a probability of {wrong:g}"
    total = math.fsum(masses)
    return f"probabilities that add up to {total:.6g}" if total > 1.0 + MASS_TOLERANCE else ""


def _choice_mass(
    token_choice: TokenChoice, reply: Reply, masses: tuple[float, ...], least: float
) -> float | CallFailure:
    """The mass of all choices together, where it can be one and is at least `least`."""
    wrong = invalid_masses(masses, len(token_choice.options))
    if wrong:
        return CallFailure("engine", f"the judge's answer has {wrong}, which cannot be; check its endpoint")
    total = math.fsum(masses)
    if total > 0 and total >= least:
        return total
    labels = token_choice.options[0].label, token_choice.options[-1].label
    named = " or ".join(labels) if len(token_choice.options) == 2 else f"a grade from {labels[0]} to {labels[1]}"
    said = f"; it said {reply.text[:80]!r}" if reply.text else ""
    if not total > 0:
        return CallFailure("parse", f"the judge put no probability on {named}{said}")
    return CallFailure(
        "parse",
        f"the judge put a probability of {total:.2g} on {named}, and min_choice_mass is {least:g}: it would rather "
        f"have said something else{said}",
    )


def read_yes_no(
    token_choice: TokenChoice, reply: Reply, scaling: PlattScaling = UNSCALED, min_choice_mass: float = MIN_CHOICE_MASS
) -> JudgeResult | CallFailure:
    """Turn a reply to a menu of two into a verdict about its first option.

    raw_probability = mass of the first / mass of both, choice_mass is that denominator, and probability is the raw one
    calibrated by `scaling`: satisfied from one half on. Where the engine reads no masses, what the model said decides,
    and there is no probability; the score is 0.5 where it said that both options are equal. A choice_mass below
    `min_choice_mass`, or a step that was not offered, is a `parse` failure; masses that cannot be probabilities are an
    `engine` failure.

    A step is the one that the model named after the option of greatest mass, also where calibration turns the verdict.
    """
    if reply.masses is None:
        return _read_said(token_choice, reply)
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
        1.0 if probability >= SATISFIED_THRESHOLD else 0.0,
        probability,
        min(choice_mass, 1.0),
        step,
        rationale=reply.reasoning,
        raw_probability=raw,
    )


def _chosen(token_choice: TokenChoice, then: LabelChoice, label: str, reply: Reply) -> str | CallFailure:
    chosen = reply.chosen
    if chosen is None and reply.text is not None:
        said = read_token_choice(reply.text, token_choice)
        if isinstance(said, CallFailure):
            return said
        if said[0] != label:
            return CallFailure("parse", f"the judge leans to {label} and says {said[0]}")
        chosen = said[1]
    if chosen not in then.labels:
        return CallFailure("parse", f"the judge named step {chosen!r}, which was not on offer")
    return chosen


def _read_said(token_choice: TokenChoice, reply: Reply) -> JudgeResult | CallFailure:
    said = read_token_choice(reply.text or "", token_choice)
    if isinstance(said, CallFailure):
        return said
    label, then = said
    step = None if token_choice.then is None or then is None else int(then)
    if label == TIE:
        return JudgeResult(0.5, rationale=reply.reasoning)
    return JudgeResult(1.0 if label == token_choice.options[0].label else 0.0, step=step, rationale=reply.reasoning)


def read_grade(
    answer: TokenChoice | LabelChoice, reply: Reply, min_choice_mass: float = MIN_CHOICE_MASS
) -> JudgeResult | CallFailure:
    """Turn a reply into a grade. score = grade / highest grade.

    From masses m_g, the grade is the expected one, E[g] = sum of g m_g / sum of m_g, and choice_mass is that sum of
    masses. Where the engine reads none, and for a choice, the grade is the one that the judge said or picked. Masses
    are refused as in `read_yes_no`.
    """
    labels = answer.labels if isinstance(answer, LabelChoice) else tuple(offered.label for offered in answer.options)
    highest = int(labels[-1])
    if isinstance(answer, TokenChoice) and reply.masses is not None:
        total = _choice_mass(answer, reply, reply.masses, min_choice_mass)
        if isinstance(total, CallFailure):
            return total
        # Each mass is divided before it is multiplied, so that all mass on one grade gives exactly that grade.
        expected = sum(int(label) * (mass / total) for label, mass in zip(labels, reply.masses, strict=True))
        grade, choice_mass = min(expected, float(highest)), min(total, 1.0)
    else:
        said = (
            _read_label(answer, reply)
            if isinstance(answer, LabelChoice)
            else read_token_choice(reply.text or "", answer)
        )
        if isinstance(said, CallFailure):
            return said
        grade, choice_mass = float(said if isinstance(said, str) else said[0]), None
    return JudgeResult(grade / highest, None, choice_mass, grade=grade, rationale=reply.reasoning)


def read_rating(
    answer: TokenChoice, reply: Reply, min_choice_mass: float = MIN_CHOICE_MASS
) -> JudgeResult | CallFailure:
    """Turn a reply of one digit from 0 to 9 into a rating from 1 to 10.

    rating = digit + 1, of the expected digit where masses are read (see `read_grade`).
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
    """Turn what was written of several criteria into a verdict on each. score = points awarded / points there are.

    Points awarded outside 0..points there are make the score 0 or 1, and stay what they are in `grade` (Rubric-Grounded
    RL, section 3.1, clips as well).
    """
    items = read_items(reply.text or "", reply.cut, forms)
    return [_from_item(form, item) for form, item in zip(forms, items, strict=True)]


def _from_item(form: ItemForm, item: Item | CallFailure) -> JudgeResult | CallFailure:
    if isinstance(item, CallFailure):
        return item
    graded = form.value != "satisfied"
    score = min(1.0, max(0.0, item.value / form.high)) if graded else item.value
    return JudgeResult(score, step=item.step, grade=item.value if graded else None, rationale=item.reason)
