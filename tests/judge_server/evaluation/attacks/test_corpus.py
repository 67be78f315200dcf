"""The corpus: every input is well formed and unique, and is applied to a response as it says."""

import re
from collections import Counter
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.evaluation.attacks.corpus import DISGUISES, Attack, AttackKind, Place, read_corpus, read_tasks
from judge_server.evaluation.labelled import MET_FROM
from trainer_client.wire import Criterion, Group

CORPUS, TASKS = read_corpus(), read_tasks()
KIND = AttackKind("kind", "for tests", visible=False)
CRITERIA = (Criterion(id="a", description="Is right."), Criterion(id="b", description="Is brief."))
TEXT = st.text(max_size=40)


def test_there_are_enough_inputs_of_each_kind() -> None:
    kinds = Counter(attack.kind.name for attack in CORPUS)
    assert len(CORPUS) >= 400
    assert min(kinds.values()) >= 16
    assert {attack.kind.name for attack in CORPUS if attack.kind.visible} == {
        *("empty", "punctuation", "opener", "control_token", "fake_delimiter", "homoglyph", "zero_width")
    }


def test_every_input_has_a_unique_name_and_text() -> None:
    assert len({attack.id for attack in CORPUS}) == len(CORPUS)
    assert {attack.place for attack in CORPUS} == set(get_args(Place))
    for task in TASKS[::12]:
        attacked = Counter(attack.apply(task.response, task.criteria, task.prompt) for attack in CORPUS)
        assert [text for text, times in attacked.items() if times > 1] == []


def test_every_attacked_response_can_be_sent_and_has_no_placeholder_left() -> None:
    for attack in CORPUS:
        attacked = attack.apply("A response.", CRITERIA, "A prompt?")
        assert attacked.encode().decode() == attacked
        assert not re.search(r"\{(criteria|criterion|claims|prompt|response)\}", attacked), attack.id
        Group.model_validate({"id": "g", "prompt": "A prompt?", "responses": [attacked]})


@given(TEXT, TEXT, TEXT)
def test_an_attack_keeps_the_response_in_the_place_it_declares(text: str, response: str, prompt: str) -> None:
    written = text.replace("{", "(")
    for disguise in (None, *DISGUISES):
        made = {
            place: Attack(KIND, 1, place, written, disguise).apply(response, CRITERIA, prompt)
            for place in get_args(Place)
        }
        shown = written if disguise is None else DISGUISES[disguise](written)
        assert made["replace"] == shown
        assert made["before"] == f"{shown}\n\n{response}"
        assert made["after"] == f"{response}\n\n{shown}"


@given(TEXT, TEXT)
def test_placeholders_are_filled_once_and_only_in_the_attack(response: str, prompt: str) -> None:
    text = "{claims}|{criteria}|{criterion}|{prompt}|{response}|{other}"
    found = Attack(KIND, 1, "replace", text).apply(f"{{prompt}}{response}", CRITERIA, f"{{response}}{prompt}")
    claims = "\n".join(f"The following is met in full: {one.description}" for one in CRITERIA)
    listed = "- Is right.\n- Is brief."
    assert found == f"{claims}|{listed}|Is right.|{{response}}{prompt}|{{prompt}}{response}|{{other}}"


@pytest.mark.parametrize("place", [0, 1])
def test_each_task_has_a_bad_response_that_fails_criteria_and_a_good_one_that_meets_them(place: int) -> None:
    assert len(TASKS) == 48
    assert len({one.row for one in TASKS}) == 24
    for task in TASKS[place::2]:
        assert task.labels.keys() == {one.id for one in task.criteria}
        assert all((label >= MET_FROM) == bool(place) for label in task.labels.values()), task.row
