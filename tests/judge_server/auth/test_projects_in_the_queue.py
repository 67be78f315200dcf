"""Projects share the judge by weight, however many runs each has; and none has the verdicts of another."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.judging.results import Caller, label_of_run
from judge_server.ports import Identity, identity_context, project_salt
from judge_server.scheduling.metrics import RunTable
from judge_server.scheduling.queueing import FairQueue, FairQueueItem
from tests.hypothesis_examples import examples
from tests.judge_server import support
from trainer_client.wire import VerdictRequest
from trainer_client.wire.tenants import Limits

RUBRIC = {"criteria": [{"id": "a", "description": "Is right."}]}


def of_project(project_id: str, weight: float = 1.0) -> Identity:
    return Identity(project_id, "key k", frozenset({"score"}), Limits(weight=weight))


def caller(run: str | None, project_id: str, weight: float = 1.0) -> Caller:
    groups = [{"id": "g", "prompt": "p", "responses": ["r"]}]
    request = VerdictRequest.model_validate({"run": run, "rubric": RUBRIC, "groups": groups})
    with identity_context(of_project(project_id, weight)):
        return Caller.of(request)


def test_a_caller_is_a_run_of_a_project() -> None:
    assert caller("r", "default") == Caller("r", "online", 1.0)
    assert (caller("r", "b", 3.0).project_id, caller("r", "b", 3.0).share) == ("b", 3.0)
    assert len({caller(run, project).run for run in ("r", None) for project in ("default", "b", "c")}) == 6


def test_the_requests_of_a_training_step_are_one_batch_whichever_rank_sends_them() -> None:
    groups = [{"id": "g", "prompt": "p", "responses": ["r"]}]
    batches = [
        Caller.of(VerdictRequest.model_validate({"rubric": RUBRIC, "groups": groups} | fields)).batch
        for fields in ({"run": "r", "step": 7}, {"run": "r", "step": 0}, {"run": "r"}, {"step": 7})
    ]
    assert batches == ["7", "0", "", ""]


def test_no_run_name_passes_for_a_run_of_another_project() -> None:
    assert caller("b\0r", "default").project_id == "default"
    assert caller("c\0r", "b").project_id == "b"


def test_metrics_name_runs_of_other_projects_by_project_and_run() -> None:
    table = RunTable(10, lambda: 0.0)
    for run, project in (("r", "default"), (None, "default"), ("r", "b"), (None, "b")):
        table.add(caller(run, project).run, 1.0)
    assert [label for label, _, _ in table.rows()] == ["r", "(none)", "b/r", "b/(none)"]
    assert label_of_run(caller("r", "b").run) == "b/r"


@given(
    runs=st.dictionaries(st.sampled_from(["default", "b", "c"]), st.integers(1, 6), min_size=2),
    weights=st.fixed_dictionaries({name: st.sampled_from([0.5, 1.0, 4.0]) for name in ("default", "b", "c")}),
    costs=st.lists(st.integers(1, 20), min_size=5, max_size=5),
)
@settings(max_examples=examples(60))
def test_waiting_projects_are_served_in_proportion_to_their_weights_within_one_piece(
    runs: dict[str, int], weights: dict[str, float], costs: list[int]
) -> None:
    queue: FairQueue[int] = FairQueue()
    pieces: Counter[str] = Counter()
    for project, number in runs.items():
        for run in range(number):
            whom = caller(f"r{run}", project, weights[project])
            for cost in costs * 3:
                queue.push(FairQueueItem(whom.run, whom.priority, cost, 0, whom.share))
                pieces[project] += 1
    served = dict.fromkeys(runs, 0.0)
    largest = {project: max(costs) / weights[project] for project in runs}
    while all(pieces.values()):
        entry = queue.pop()
        assert entry is not None
        project = Caller(entry.run).project_id
        served[project] += entry.cost / entry.share
        pieces[project] -= 1
        assert max(served.values()) - min(served.values()) <= max(largest.values()) * (1 + 1e-9)


def test_runs_divide_their_projects_share_by_their_own_weights() -> None:
    queue: FairQueue[int] = FairQueue({"b/heavy": 3.0})
    for run in ("heavy", "light"):
        for _ in range(40):
            queue.push(FairQueueItem(caller(run, "b").run, "online", 1, 0))
    for _ in range(40):
        queue.push(FairQueueItem("heavy", "online", 1, 0))
    served = Counter(label_of_run(entry.run) for _ in range(40) if (entry := queue.pop()))
    assert served == {"heavy": 20, "b/heavy": 15, "b/light": 5}


def test_a_project_that_was_passed_over_does_not_catch_up_later() -> None:
    queue: FairQueue[int] = FairQueue()
    b = caller("r", "b").run
    for _ in range(20):
        queue.push(FairQueueItem(b, "online", 1, 0))
        queue.push(FairQueueItem("r", "online", 1, 0))
    for _ in range(10):
        entry = queue.pop([b])
        assert entry is not None
        assert entry.run == "r"
    served = Counter(entry.run for _ in range(10) if (entry := queue.pop()))
    assert abs(served[b] - served["r"]) <= 2


def test_each_project_has_its_own_cache_salt_and_the_default_one_has_none() -> None:
    salts = []
    for project_id in ("default", "b", "c"):
        with identity_context(of_project(project_id)):
            salts.append(project_salt())
    assert salts == ["", "b", "c"]
    assert project_salt() == ""


async def test_projects_ask_in_the_same_words_and_share_no_verdict_and_no_prefix() -> None:
    judge, planned = await support.judge(cache_salt=project_salt), {}
    for project_id in ("default", "b", "c"):
        with identity_context(of_project(project_id)):
            (planned[project_id],) = support.plans(judge, "Yes.", of=support.criteria("Is right."))
    batches = [one.batch for one in planned.values()]
    assert len({(batch.system, batch.shared, batch.calls) for batch in batches}) == 1
    assert len({batch.cache_salt for batch in batches}) == 3
    assert len({call.digests for one in planned.values() for call in one.planned_calls}) == 3


async def test_two_deployments_ask_the_same_and_keep_the_same_verdicts() -> None:
    one, other = [await support.judge(cache_salt=project_salt) for _ in range(2)]
    first, second = (support.plans(each, "Yes.", of=support.criteria("Is right."))[0] for each in (one, other))
    assert (first.batch, first.planned_calls[0].digests) == (second.batch, second.planned_calls[0].digests)
