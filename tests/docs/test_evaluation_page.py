"""The reference of evaluations lists every reader, every defence, and the attacks as they are in the corpus."""

from collections import Counter
from typing import get_args

from judge_server.evaluation.attacks.corpus import read_corpus
from judge_server.evaluation.data_sets import READERS
from tests.docs.pages import ROOT, table
from trainer_client.wire.judging import DEFAULT_DEFENCES, Defence

PAGE = ROOT / "docs/reference/evaluation.md"


def test_every_reader_of_a_public_data_set_is_listed() -> None:
    listed = " ".join(row["reader"] for row in table(PAGE, "Readers of public data sets"))
    assert {name for name in READERS if f"`{name}`" in listed} == set(READERS) - {"jsonl"}


def test_every_defence_is_listed_with_whether_it_is_on_by_default() -> None:
    listed = {row["defence"].strip("`"): row["by default"] for row in table(PAGE, "Defences")}
    assert listed == {name: "yes" if name in DEFAULT_DEFENCES else "no" for name in get_args(Defence)}


def test_the_kinds_of_attack_are_those_of_the_corpus() -> None:
    corpus = read_corpus()
    counted = Counter(attack.kind.name for attack in corpus)
    visible = {attack.kind.name: "yes" if attack.kind.visible else "no" for attack in corpus}
    listed = [
        (row["kind"].strip("`"), int(row["inputs"]), row["a program can see it"]) for row in table(PAGE, "Attacks")
    ]
    assert sorted(listed) == sorted((name, counted[name], visible[name]) for name in counted)


def test_the_number_of_attacks_is_that_of_the_corpus() -> None:
    page = (ROOT / "docs/how-to/test-a-judge-against-attacks.md").read_text(encoding="utf-8")
    assert f"all {len(read_corpus())} attacks" in page
