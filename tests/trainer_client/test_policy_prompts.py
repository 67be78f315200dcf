"""Prompts of the papers' training: SRaR's step format, RuscaRL's scaffold in the system message."""

import json

import pytest

from trainer_client.refine import BOXED_INSTRUCTION, refinement_prompt
from trainer_client.scaffold import scaffold_text, scaffolded_prompt
from trainer_client.steps import STEP_FORMAT, has_format, with_step_format

GOOD = {"description": "Names the dose", "weight": 3}
BAD = {"description": "Recommends aspirin", "weight": -7.5}
SCAFFOLD = """For this answer, keep the following in mind.

Points to include:
- Names the dose (3 points)
- Is polite (1 point)

Points to avoid:
- Recommends aspirin (-7.5 points)

Answer the way you would on your own: never mention these points, or that you were given any."""


def test_the_scaffold_may_show_the_points_of_each_criterion():
    assert scaffold_text([GOOD, BAD, {"description": "Is polite"}], weights=True) == SCAFFOLD


def test_a_scaffold_goes_into_the_system_message():
    chat = [{"role": "system", "content": "You are a doctor."}, {"role": "user", "content": "How much?"}]
    before = json.dumps(chat)
    told = scaffolded_prompt(chat, [GOOD], place="system", weights=True)
    assert told == [
        {"role": "system", "content": "You are a doctor.\n\n" + scaffold_text([GOOD], weights=True)},
        {"role": "user", "content": "How much?"},
    ]
    assert json.dumps(chat) == before


def test_a_chat_without_a_system_message_gets_one_for_the_scaffold():
    chat = [{"role": "user", "content": "How much?"}]
    assert scaffolded_prompt(chat, [GOOD], place="system") == [
        {"role": "system", "content": scaffold_text([GOOD])},
        *chat,
    ]
    assert scaffolded_prompt(chat, [], place="system") is chat


def test_in_a_text_the_scaffold_is_appended_whatever_its_place_in_a_chat():
    assert scaffolded_prompt("How much?", [GOOD], place="system") == scaffolded_prompt("How much?", [GOOD])


def test_a_scaffold_with_an_unknown_place_is_refused():
    with pytest.raises(ValueError, match="system message is not plain text"):
        scaffolded_prompt([{"role": "system", "content": [{}]}], [GOOD], place="system")
    with pytest.raises(ValueError, match="place is 'above'; use one of user, system"):
        scaffolded_prompt("How much?", [GOOD], place="above")


def test_the_step_format_precedes_the_problem():
    assert with_step_format("Is 7 prime?") == STEP_FORMAT + "Is 7 prime?"
    assert STEP_FORMAT == (
        'Work out the following problem. Write your solution as several steps, and begin each of them with "### Step '
        'N:", where N is its number: "### Step 1:", then "### Step 2:", and so on. End with the final '
        "answer in \\boxed{}.\n\nProblem:\n"
    )


def test_a_response_that_follows_the_step_format_earns_the_format_reward():
    assert has_format("### Step 1: 7 is odd.\n### Step 2: So it is.\n\\boxed{yes}")


def test_in_a_chat_the_step_format_precedes_the_last_user_message():
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Is 7 prime?", "name": "ann"},
    ]
    before = json.dumps(chat)
    assert with_step_format(chat) == [
        *chat[:2],
        {"role": "user", "content": STEP_FORMAT + "Is 7 prime?", "name": "ann"},
    ]
    assert json.dumps(chat) == before


@pytest.mark.parametrize("prompt", ["Is 7 prime?", [{"role": "user", "content": "Is 7 prime?"}]])
def test_the_step_format_is_not_added_twice(prompt):
    once = with_step_format(prompt)
    assert with_step_format(once) == once


@pytest.mark.parametrize("chat", [[], [{"role": "system", "content": "Hi"}], [{"role": "user", "content": [{}]}]])
def test_a_chat_without_a_user_message_gets_no_step_format(chat):
    with pytest.raises(ValueError, match="user message"):
        with_step_format(chat)


def test_a_refinement_prompt_may_use_the_papers_wording():
    assert refinement_prompt("What is x?", "4", [GOOD], instruction=BOXED_INSTRUCTION).endswith(BOXED_INSTRUCTION)
    assert "\\boxed{}" in BOXED_INSTRUCTION
