"""What a reply means: a verdict, or a failure that says why it is none. Nothing is guessed.

Masses are checked before anything is made of them: an endpoint may answer with numbers that are no probabilities.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from judge_server.judging.calibration import SATISFIED_FROM, UNSCALED, PlattScaling
from judge_server.judging.items import Item, ItemForm, read_items
from judge_server.judging.reading import TIE, read_choice, read_menu
from judge_server.ports import MASS_ROUNDING, CallFailed, Choice, Finding, Menu, Reply

MIN_CHOICE_MASS = 0.02
"""The least probability that a judge must put on all choices together, unless a judge is given another."""


def impossible(masses: Sequence[float], choices: int) -> str:
    """What makes these no probabilities of `choices` choices, in words; empty where they can be."""
    if len(masses) != choices:
        return f"{len(masses)} probabilities for {choices} choices"
    wrong = next((mass for mass in masses if not 0.0 <= mass <= 1.0 + MASS_ROUNDING), None)
    if wrong is not None:
        return f"a probability of {wrong:g}"
    total = math.fsum(masses)
    return f"probabilities that add up to {total:.6g}" if total > 1.0 + MASS_ROUNDING else ""


def _mass_on_choices(menu: Menu, reply: Reply, masses: tuple[float, ...], least: float) -> float | CallFailed:
    """The mass of all choices together, where it can be one and is at least `least`."""
    wrong = impossible(masses, len(menu.options))
    if wrong:
        return CallFailed("engine", f"the judge's answer has {wrong}, which cannot be; check its endpoint")
    total = math.fsum(masses)
    if total > 0 and total >= least:
        return total
    labels = menu.options[0].label, menu.options[-1].label
    named = " or ".join(labels) if len(menu.options) == 2 else f"a grade from {labels[0]} to {labels[1]}"
    said = f"; it said {reply.text[:80]!r}" if reply.text else ""
    if not total > 0:
        return CallFailed("parse", f"the judge put no probability on {named}{said}")
    return CallFailed(
        "parse",
        f"the judge put a probability of {total:.2g} on {named}, and min_choice_mass is {least:g}: it would rather "
        f"have said something else{said}",
    )


def read_yes_no(
    menu: Menu, reply: Reply, scaling: PlattScaling = UNSCALED, min_choice_mass: float = MIN_CHOICE_MASS
) -> Finding | CallFailed:
    """Turn a reply to a menu of two into a verdict about its first option.

    raw_probability = mass of the first / mass of both, menu_mass is that denominator, and probability is the raw one
    calibrated by `scaling`: satisfied from one half on. Where the engine reads no masses, what the model said decides,
    and there is no probability; the score is 0.5 where it said that both options are equal. A menu_mass below
    `min_choice_mass`, or a step that was not offered, is a `parse` failure; masses that cannot be probabilities are an
    `engine` failure.

    A step is the one that the model named after the option of greatest mass, also where calibration turns the verdict.
    """
    if reply.masses is None:
        return _read_said(menu, reply)
    menu_mass = _mass_on_choices(menu, reply, reply.masses, min_choice_mass)
    if isinstance(menu_mass, CallFailed):
        return menu_mass
    yes, no = reply.masses
    raw = yes / menu_mass
    probability = scaling.calibrate(raw)
    step = None
    if menu.then is not None:
        label = menu.options[0 if yes >= no else 1].label
        chosen = _chosen(menu, menu.then, label, reply)
        if isinstance(chosen, CallFailed):
            return chosen
        step = int(chosen)
    return Finding(
        1.0 if probability >= SATISFIED_FROM else 0.0,
        probability,
        min(menu_mass, 1.0),
        step,
        rationale=reply.reasoning,
        raw_probability=raw,
    )


def _chosen(menu: Menu, then: Choice, label: str, reply: Reply) -> str | CallFailed:
    chosen = reply.chosen
    if chosen is None and reply.text is not None:
        said = read_menu(reply.text, menu)
        if isinstance(said, CallFailed):
            return said
        if said[0] != label:
            return CallFailed("parse", f"the judge leans to {label} and says {said[0]}")
        chosen = said[1]
    if chosen not in then.labels:
        return CallFailed("parse", f"the judge named step {chosen!r}, which was not on offer")
    return chosen


def _read_said(menu: Menu, reply: Reply) -> Finding | CallFailed:
    said = read_menu(reply.text or "", menu)
    if isinstance(said, CallFailed):
        return said
    label, then = said
    step = None if menu.then is None or then is None else int(then)
    if label == TIE:
        return Finding(0.5, rationale=reply.reasoning)
    return Finding(1.0 if label == menu.options[0].label else 0.0, step=step, rationale=reply.reasoning)


def read_grade(answer: Menu | Choice, reply: Reply, min_choice_mass: float = MIN_CHOICE_MASS) -> Finding | CallFailed:
    """Turn a reply into a grade. score = grade / highest grade.

    From masses m_g, the grade is the expected one, E[g] = sum of g m_g / sum of m_g, and menu_mass is that sum of
    masses. Where the engine reads none, and for a choice, the grade is the one that the judge said or picked. Masses
    are refused as in `read_yes_no`.
    """
    labels = answer.labels if isinstance(answer, Choice) else tuple(offered.label for offered in answer.options)
    highest = int(labels[-1])
    if isinstance(answer, Menu) and reply.masses is not None:
        total = _mass_on_choices(answer, reply, reply.masses, min_choice_mass)
        if isinstance(total, CallFailed):
            return total
        # Each mass is divided before it is multiplied, so that all mass on one grade gives exactly that grade.
        expected = sum(int(label) * (mass / total) for label, mass in zip(labels, reply.masses, strict=True))
        grade, menu_mass = min(expected, float(highest)), min(total, 1.0)
    else:
        said = _read_label(answer, reply) if isinstance(answer, Choice) else read_menu(reply.text or "", answer)
        if isinstance(said, CallFailed):
            return said
        grade, menu_mass = float(said if isinstance(said, str) else said[0]), None
    return Finding(grade / highest, None, menu_mass, grade=grade, rationale=reply.reasoning)


def read_rating(answer: Menu, reply: Reply, min_choice_mass: float = MIN_CHOICE_MASS) -> Finding | CallFailed:
    """Turn a reply of one digit from 0 to 9 into a rating from 1 to 10.

    rating = digit + 1, of the expected digit where masses are read (see `read_grade`).
    score = (rating - 1) / 9 (RGR-GRPO's Likert baseline) = digit / 9.
    """
    finding = read_grade(answer, reply, min_choice_mass)
    if isinstance(finding, CallFailed) or finding.grade is None:
        return finding
    return replace(finding, grade=finding.grade + 1)


def _read_label(answer: Choice, reply: Reply) -> str | CallFailed:
    if reply.chosen is None:
        return read_choice(reply.text or "", answer)
    if reply.chosen not in answer.labels:
        return CallFailed("parse", f"the judge answered {reply.chosen!r}, which was not on offer")
    return reply.chosen


def read_written(forms: tuple[ItemForm, ...], reply: Reply) -> list[Finding | CallFailed]:
    """Turn what was written of several criteria into a verdict on each. score = points awarded / points there are.

    Points awarded outside 0..points there are make the score 0 or 1, and stay what they are in `grade` (Rubric-Grounded
    RL, section 3.1, clips as well).
    """
    items = read_items(reply.text or "", reply.cut, forms)
    return [_from_item(form, item) for form, item in zip(forms, items, strict=True)]


def _from_item(form: ItemForm, item: Item | CallFailed) -> Finding | CallFailed:
    if isinstance(item, CallFailed):
        return item
    graded = form.value != "satisfied"
    score = min(1.0, max(0.0, item.value / form.high)) if graded else item.value
    return Finding(score, step=item.step, grade=item.value if graded else None, rationale=item.reason)
