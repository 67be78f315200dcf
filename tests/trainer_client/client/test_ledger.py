"""Recomputing the rewards of a run, reading its verdicts and reports."""

from typing import ClassVar

import pytest

from tests.trainer_client.fake_service import ScriptedReply, problem, stream
from trainer_client import ConnectionFailed, InvalidRequest, JudgingFailed, NotReady, RubricRefused, ServerError
from trainer_client.errors import MismatchedAnswer


class TestRecompute:
    START: ClassVar = {"start": {"run": "r", "requests": 1, "verdicts": 2}}
    GROUP: ClassVar = {
        "group": {
            "request_id": "req-1",
            "step": 3,
            "id": "q\u2028 17",
            "rubric": None,
            "responses": [{"position": 0, "reward": 0.5, "status": "scored"}],
        }
    }
    SUMMARY: ClassVar = {
        "summary": {
            "run": "r",
            "mode": "points",
            "on_failure": "skip",
            "requests": 1,
            "responses": 1,
            "verdicts": 2,
            "missing": 0,
            "scored": 1,
            "partial": 0,
            "unscored": 0,
            "mean_reward": 0.5,
        }
    }

    def test_the_request_follows_the_contract(self, service, connect):
        service.script(stream(self.START, self.SUMMARY))
        rules = {"mode": "points", "on_failure": "skip", "weights": {"c1": 2}, "first_step": 1, "length_penalty": {}}
        list(connect(service.url, "r").recompute(budgets={"pitfall": -2}, protocol=None, **rules))
        [asked] = service.asked
        assert (asked.method, asked.target, asked.headers["Accept"]) == (
            "POST",
            "/v1/rewards/recompute",
            "application/x-ndjson",
        )
        assert asked.json == {
            "run": "r",
            "first_step": 1,
            "reward": {"mode": "points", "length_penalty": {}},
            "on_failure": "skip",
            "weights": {"c1": 2.0},
            "budgets": {"pitfall": -2.0},
        }

    def test_the_run_may_differ_from_the_clients_run(self, service, connect):
        service.script(stream({"summary": self.SUMMARY["summary"] | {"run": "other"}}))
        list(connect(service.url, "r").recompute("other"))
        assert service.asked[0].json["run"] == "other"

    @pytest.mark.parametrize("piece", [None, 1, 7])
    def test_lines_are_typed_however_the_stream_is_split(self, service, connect, piece):
        service.script(stream(self.START, self.GROUP, self.SUMMARY, piece=piece))
        start, group, summary = connect(service.url).recompute("r")
        assert start.start.verdicts == 2
        assert (group.group.id, group.group.responses[0].reward) == ("q\u2028 17", 0.5)
        assert summary.summary.mean_reward == 0.5

    def test_invalid_rules_are_refused_before_they_are_sent(self, service, connect):
        with pytest.raises(InvalidRequest, match="first_step"):
            list(connect(service.url).recompute("r", first_step=3, last_step=2))
        assert service.asked == []

    def test_a_problem_is_raised_whether_it_is_the_answer_or_a_line(self, service, connect):
        service.script(problem("unsuitable-rubric", 422))
        with pytest.raises(RubricRefused):
            list(connect(service.url).recompute("r"))
        service.script(stream(self.START, {"problem": problem("judging-failed", 502).body}))
        with pytest.raises(JudgingFailed):
            list(connect(service.url).recompute("r"))

    def test_a_truncated_answer_is_an_error(self, service, connect):
        service.script(stream(self.START, self.GROUP))
        with pytest.raises(ConnectionFailed, match="cut off before its summary"):
            list(connect(service.url).recompute("r"))

    def test_an_unknown_line_is_an_error(self, service, connect):
        service.script(stream(b"<html>\n"))
        with pytest.raises(ServerError, match="not a valid RecomputeEvent"):
            list(connect(service.url).recompute("r"))


class TestExport:
    ROW: ClassVar = {"row": {"prompt": "Why?", "chosen": "So.", "rejected": "\u2028", "margin": 0.5}}
    SUMMARY: ClassVar = {"summary": {"run": "a/b", "rows": 1, "responses": 2}}

    def test_rows_come_as_they_arrive_and_the_summary_last(self, service, connect):
        service.script(stream(self.ROW, self.SUMMARY))
        row, last = connect(service.url, "a/b").export(as_="pairs", all_pairs=True, min_margin=0.25, rubric=None)
        [asked] = service.asked
        assert asked.method == "GET"
        assert asked.target == "/v1/runs/a%2Fb/export?as=pairs&all_pairs=true&min_margin=0.25"
        assert row.row == self.ROW["row"]
        assert (last.summary.rows, last.summary.tied) == (1, 0)

    def test_an_export_that_ends_early_is_an_error(self, service, connect):
        service.script(stream(self.ROW))
        with pytest.raises(ConnectionFailed, match="cut off before its summary"):
            list(connect(service.url, "a/b").export())
        service.script(stream(self.ROW, {"problem": problem("not-ready", 503).body}))
        with pytest.raises(NotReady):
            list(connect(service.url, "a/b").export())


class TestRecorded:
    VERDICT: ClassVar = {
        "run": "r",
        "step": 3,
        "group": "q17",
        "response": 0,
        "rubric": None,
        "verdict": {"criterion": "c1", "status": "ok", "score": 1.0},
        "request_id": "req-1",
        "at": "2026-01-01T00:00:00Z",
    }

    def test_all_pages_are_fetched(self, service, connect):
        first = {"verdicts": [self.VERDICT, self.VERDICT], "next_cursor": "next"}
        service.script(ScriptedReply(body=first), ScriptedReply(body={"verdicts": [self.VERDICT], "next_cursor": None}))
        found = list(connect(service.url, "r").recorded_verdicts(step=3, status="ok", criterion=None, texts=True))
        assert [each.verdict.score for each in found] == [1.0] * 3
        asked = [one.target for one in service.asked]
        assert asked == [
            "/v1/verdicts?run=r&limit=500&step=3&status=ok&texts=true",
            "/v1/verdicts?run=r&limit=500&step=3&status=ok&texts=true&after=next",
        ]

    def test_without_a_run_the_verdicts_of_the_unnamed_run_are_read(self, service, connect):
        service.script(ScriptedReply(body={"verdicts": [], "next_cursor": None}))
        assert list(connect(service.url).recorded_verdicts()) == []
        assert service.asked[0].target == "/v1/verdicts?run=&limit=500"


class TestRuns:
    FIGURES: ClassVar = {
        "requests": 1,
        "responses": 2,
        "scored": 2,
        "partial": 0,
        "unscored": 0,
        "mean_reward": 0.5,
        "verdicts": 4,
        "failed": 1,
        "failures": {"timeout": 1},
        "cached": 0,
        "judge_calls": 4,
        "prompt_tokens_computed": 30,
        "prompt_tokens_reused": 20,
        "tokens_written": 4,
        "mean_seconds": 1.5,
        "modes": ["points"],
    }
    RUN: ClassVar = {
        **FIGURES,
        "run": "r",
        "first_at": "2026-01-01T00:00:00Z",
        "last_at": "2026-01-01T00:01:00Z",
        "last_step": 2,
        "protocols": ["binary"],
        "judges": ["m"],
        "rubrics": 1,
    }
    CRITERION: ClassVar = {"criterion": "c1", "verdicts": 4, "failed": 1, "pass_rate": 1.0, "mean_score": 0.75}

    def report(self, *steps, next_cursor=None, run="r"):
        """A page of a run's steps, as the service sends it."""
        told = [{**self.FIGURES, "step": step, "std_reward": 0.1, "criteria": [self.CRITERION]} for step in steps]
        rubric = {"digest": "sha256:" + "0" * 64, "name": "math", "version": 1}
        return ScriptedReply(
            body={
                "run": self.RUN | {"run": run or None},
                "rubrics": [rubric],
                "criteria": [self.CRITERION],
                "criteria_count": 1,
                "steps": told,
                "next_cursor": next_cursor,
            }
        )

    def test_all_pages_of_runs_are_fetched(self, service, connect):
        service.script(
            ScriptedReply(body={"runs": [self.RUN, self.RUN], "next_cursor": "next"}),
            ScriptedReply(body={"runs": [{**self.RUN, "run": None}], "next_cursor": None}),
        )
        assert [run.run for run in connect(service.url).runs()] == ["r", "r", None]
        assert [one.target for one in service.asked] == ["/v1/runs", "/v1/runs?after=next"]

    def test_a_report_includes_the_steps_of_all_its_pages(self, service, connect):
        service.script(self.report(1, 2, next_cursor="next"), self.report(None))
        found = connect(service.url, "r").run_report(first_step=1, criterion=["c1", "c 2"], rubric=None)
        assert [step.step for step in found.steps] == [1, 2, None]
        assert (found.next_cursor, found.steps[0].criteria[0].pass_rate) == (None, 1.0)
        assert found.rubrics[0].version == 1
        asked = [one.target for one in service.asked]
        assert asked == [
            "/v1/runs/r?limit=500&first_step=1&criterion=c1&criterion=c+2",
            "/v1/runs/r?limit=500&first_step=1&criterion=c1&criterion=c+2&after=next",
        ]

    @pytest.mark.parametrize(
        ("name", "segment"), [("a/b ?#%", "a%2Fb%20%3F%23%25"), ("", ""), ("..", "%2E%2E"), ("ü", "%C3%BC")]
    )
    def test_a_run_may_have_any_name(self, service, connect, name, segment):
        service.script(self.report(1, run=name))
        connect(service.url, "another").run_report(name)
        assert service.asked[0].target == f"/v1/runs/{segment}?limit=500"

    def test_an_audit_names_each_run_to_compare_with(self, service, connect):
        nothing = {"value": None, "low": None, "high": None, "prompts": 0}
        part = {"first_step": None, "last_step": None, "responses": 0, "prompts": 0}
        told = {
            "run": "a/b",
            "answer": "unknown",
            "early": part,
            "late": part,
            "reward": {"early": nothing, "late": nothing, "rise": nothing},
            "newly_credited": None,
            "rejected": None,
            "criteria_count": 0,
        } | {name: [] for name in ("findings", "notes", "judges", "references", "criteria", "conflicts")}
        service.script(ScriptedReply(body=told), ScriptedReply(body=told))
        assert connect(service.url, "a/b").audit_run(against=["c", "d&e"]).answer == "unknown"
        with pytest.raises(MismatchedAnswer):
            connect(service.url, "c").audit_run()
        assert [one.target for one in service.asked] == [
            "/v1/runs/a%2Fb/audit?against=c&against=d%26e",
            "/v1/runs/c/audit",
        ]

    def test_the_monitors_of_a_run_are_requested(self, service, connect):
        told = {
            "run": "a/b",
            "first_step": 0,
            "last_step": 7,
            "monitors": ["unscored"],
            "findings": [],
            "thresholds": {},
        }
        service.script(ScriptedReply(body=told), ScriptedReply(body=told | {"run": "c"}))
        assert connect(service.url, "a/b").run_monitors().last_step == 7
        assert connect(service.url, "a/b").run_monitors("c", until_step=7).findings == ()
        assert [one.target for one in service.asked] == ["/v1/runs/a%2Fb/monitors", "/v1/runs/c/monitors?until_step=7"]
