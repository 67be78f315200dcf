"""The judging protocols: which menu a criterion's question offers, and what a reply to it means.

`binary` asks yes or no. `stepwise` asks yes or no and then for the step. Neither parses free text: a reply is a
distribution over the menu, so nothing a response says can make a verdict that is not on it.
"""

from collections.abc import Sequence

from judge_server.ports import Call, CallFailed, Choice, Finding, Option, Reply
from trainer_client.wire import Protocol

YES = Option("yes", ("yes", "Yes", "YES", " yes", " Yes", " YES"))
NO = Option("no", ("no", "No", "NO", " no", " No", " NO"))
MENU = (YES, NO)

WHOLE_RESPONSE, NO_STEP = 0, -1


def step_choice(step_numbers: Sequence[int]) -> Choice:
    """The steps a verdict may name: those the response has, 0 for the whole of it, -1 for none."""
    return Choice(", step ", tuple(str(n) for n in (*step_numbers, WHOLE_RESPONSE, NO_STEP)))


def make_call(protocol: Protocol, question: str, step_numbers: Sequence[int]) -> Call:
    """The call that asks one criterion's question of a response with these steps."""
    return Call(question, MENU, step_choice(step_numbers) if protocol == "stepwise" else None)


def read_reply(call: Call, reply: Reply) -> Finding | CallFailed:
    """Turn a reply into a verdict.

    probability = mass(yes) / (mass(yes) + mass(no)); the criterion is satisfied from one half on. menu_mass is that
    denominator. A reply without any mass on the menu, or with a step that was not offered, is a `parse` failure.
    """
    yes, no = reply.masses
    menu_mass = yes + no
    if not menu_mass > 0:
        return CallFailed("parse", "the judge put no probability on yes or no")
    step = None
    if call.then is not None:
        if reply.chosen not in call.then.labels:
            return CallFailed("parse", f"the judge named step {reply.chosen!r}, which was not on offer")
        step = int(reply.chosen)
    probability = yes / menu_mass
    return Finding(1.0 if probability >= 0.5 else 0.0, probability, min(menu_mass, 1.0), step)
