"""What the service answers, records, recomputes and explains is what it was."""

import itertools

from tests.judge_server.golden_answers import differences, kept, made_now


async def test_a_wide_range_of_requests_is_answered_recorded_recomputed_and_explained_as_before() -> None:
    before, now = dict(kept()), dict(await made_now())
    assert before.keys() == now.keys()
    changed = (f"{name}{one}" for name, told in before.items() for one in differences(told, now[name]))
    assert not (shown := list(itertools.islice(changed, 20))), "\n".join(shown)


def test_any_difference_is_found_at_any_depth() -> None:
    before = {"status": 200, "groups": [{"reward": 0.5, "steps": [1, 2]}]}
    assert not list(differences(before, {"status": 200, "groups": [{"reward": 0.5, "steps": [1, 2]}]}))
    assert list(differences(before, {"status": 200, "groups": [{"reward": 0.25, "steps": [1]}]})) == [
        ".groups.0.reward: 0.5 became 0.25",
        ".groups.0.steps: [1, 2] became [1]",
    ]
    assert list(differences(before, {"groups": before["groups"]})) == [".status: 200 became None"]
