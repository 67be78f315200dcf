"""Parts of evolving rubrics: groups collected over ranks, figures of criteria, and assembled rubrics."""

from hypothesis import given
from hypothesis import strategies as st

from trainer_client.trl.evolution import (
    SEEN_GROUPS,
    SHARED_PROMPT,
    GroupHistory,
    SeenGroup,
    assemble_rubric,
    can_evolve,
    measure_discrimination,
    merge_histories,
)
from trainer_client.wire import Criterion, Group, ResponseReward

names = st.sampled_from(["a", "b", "c", "d"])


def seen(reference, place, responses, prompt=None):
    group = Group.model_validate({"id": f"{reference}{place}", "prompt": prompt or reference, "responses": responses})
    return SeenGroup(reference, place, group, tuple(None for _ in responses))


@st.composite
def batches(draw):
    """Generation batches: the rubrics of their groups in order, with four responses each."""
    return draw(st.lists(st.lists(names, min_size=1, max_size=3, unique=True), min_size=1, max_size=6))


@given(batches(), st.integers(1, 3))
def test_ranks_with_parts_of_groups_collect_the_history_of_one_process(drawn, most):
    """Two ranks hold the halves of each batch, so that a group may be split between them."""
    alone, ranks = GroupHistory({}, {}), [GroupHistory({}, {}), GroupHistory({}, {})]
    for number, references in enumerate(drawn, 1):
        rows = [(reference, f"{number}-{reference}-{n}") for reference in references for n in range(4)]
        half = len(rows) // 2
        shares = [list(enumerate(rows)), list(enumerate(rows))[:half], list(enumerate(rows))[half:]]
        made = []
        for share in shares:
            groups = {}
            for place, (reference, text) in share:
                groups.setdefault(reference, (place, []))[1].append(text)
            made.append(
                [
                    SeenGroup(
                        reference,
                        (number, place),
                        Group.model_validate({"id": f"{number}{reference}", "prompt": reference, "responses": texts}),
                        (None,) * len(texts),
                    )
                    for reference, (place, texts) in groups.items()
                ]
            )
        alone = alone.with_groups(made[0], most)
        ranks = [rank.with_groups(own, most) for rank, own in zip(ranks, made[1:], strict=True)]
    assert merge_histories(ranks, most) == merge_histories([alone], most)


@given(st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=4))
def test_a_rubric_of_several_prompts_is_recognised_across_ranks(prompts):
    shares = [
        GroupHistory({}, {}).with_groups([seen("r", (1, n), ["1"], prompt)], 4) for n, prompt in enumerate(prompts)
    ]
    merged = merge_histories(shares, 4)
    assert merged.shared == (["r"] if len(set(prompts)) > 1 else [])
    assert (merged.prompts["r"] == SHARED_PROMPT) == (len(set(prompts)) > 1)


def test_the_history_survives_a_json_round_trip():
    one = seen(
        "r", (3, 8), ["It is 7.", [{"role": "assistant", "content": "Seven."}]], [{"role": "user", "content": "?"}]
    )
    assert SEEN_GROUPS.validate_json(SEEN_GROUPS.dump_json([one], exclude_none=True)) == [one]


def test_only_references_without_a_version_can_evolve():
    assert [can_evolve(one) for one in ("r", "team/r@production", "r@latest", "r@3", "sha256:" + "1" * 64)] == [
        True, True, True, False, False,
    ]  # fmt: skip


def answer(score, criterion="new"):
    verdict = {"criterion": criterion, "status": "failed" if score is None else "ok", "score": score}
    if score is None:
        verdict["failure"] = {"kind": "timeout", "detail": "it took too long"}
    return ResponseReward.model_validate({"reward": score, "status": "scored", "verdicts": [verdict]})


scored = st.lists(st.tuples(st.floats(0, 1), st.sampled_from([True, False, None])), min_size=1, max_size=8)


@given(scored, st.sampled_from([1.0, -1.0]))
def test_figures_are_the_spread_and_the_difference_between_right_and_wrong_inverted_for_mistakes(drawn, weight):
    criterion = Criterion(id="new", description="Is so.", weight=weight)
    figures = measure_discrimination(criterion, [answer(score) for score, _ in drawn], [known for _, known in drawn])
    scores = [score for score, _ in drawn]
    assert figures.spread == max(scores) - min(scores)
    right, wrong = ([score for score, known in drawn if known is side] for side in (True, False))
    if not right or not wrong:
        assert figures.difference is None
    else:
        assert abs(figures.difference - weight * (sum(right) / len(right) - sum(wrong) / len(wrong))) < 1e-12


def test_a_criterion_without_a_verdict_on_every_response_has_no_figures():
    criterion = Criterion(id="new", description="Is so.")
    assert measure_discrimination(criterion, [answer(1.0), answer(None)], [None, None]) is None
    assert measure_discrimination(criterion, [answer(1.0), answer(0.0, "other")], [None, None]) is None


@given(st.integers(0, 5), st.integers(1, 4), st.integers(1, 6), st.data())
def test_an_assembled_rubric_respects_the_limit_of_evolved_criteria(evolved, new, most, data):
    first = Criterion(id="own", description="Is so.")
    old = [Criterion(id=f"old-{n}", description="Is so.") for n in range(evolved)]
    added = [Criterion(id=f"new-{n}", description="Is so.") for n in range(new)]
    room = max(0, most - new)
    made = [first, *old[max(0, evolved - room) :], *added]
    accepted = data.draw(st.lists(st.sampled_from(added), min_size=1, unique_by=lambda one: one.id))
    content = assemble_rubric([first, *old], made, accepted)
    ids = [one.id for one in content.criteria]
    assert ids[0] == "own"
    assert ids[len(ids) - len(accepted) :] == [one.id for one in accepted]
    stay = ids[1 : len(ids) - len(accepted)]
    assert stay == [one.id for one in old][evolved - len(stay) :]
    assert len(stay) + len(accepted) == max(len(accepted), min(evolved + len(accepted), most)) or new > most
