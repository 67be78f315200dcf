from typing import ClassVar

import pytest

from tests.trainer_client.fake_service import COMPARISONS, VERDICTS, ScriptedReply
from trainer_client import InvalidRequest, Pair

GROUP = {"id": "q17", "prompt": "x?", "responses": ["42"]}


class TestVerdicts:
    def test_the_request_follows_the_contract(self, service, connect):
        service.script(ScriptedReply(body=VERDICTS))
        connect(service.url, "run-3").verdicts(
            [GROUP], "math/quadratics@3", deadline_s=5, step=7, rationale=True, protocol="graded"
        )
        [asked] = service.asked
        assert (asked.method, asked.target) == ("POST", "/v1/verdicts")
        assert asked.json == {
            "run": "run-3",
            "step": 7,
            "rubric": "math/quadratics@3",
            "judging": {"rationale": True, "protocol": "graded"},
            "deadline_s": 5.0,
            "groups": [GROUP],
        }

    def test_the_answer_is_typed(self, service, connect):
        service.script(ScriptedReply(body=VERDICTS))
        [response] = connect(service.url).verdicts([GROUP], "r").groups[0].responses
        assert (response.verdicts[0].score, response.verdicts[0].rationale) == (1.0, "It says 42.")

    def test_an_invalid_request_is_refused_before_it_is_sent(self, service, connect):
        with pytest.raises(InvalidRequest, match="rubric"):
            connect(service.url).verdicts([GROUP])
        assert service.asked == []


class TestCompare:
    PAIR: ClassVar = {"id": "q17", "prompt": "x?", "a": "42", "b": [{"role": "assistant", "content": "43"}]}

    def test_the_request_follows_the_contract(self, service, connect):
        service.script(ScriptedReply(body=COMPARISONS))
        connect(service.url, "run-3").compare(
            [self.PAIR], "math/quadratics@3", question="Which is right?", deadline_s=5, step=7, think_tokens=64
        )
        [asked] = service.asked
        assert (asked.method, asked.target) == ("POST", "/v1/comparisons")
        assert asked.json == {
            "run": "run-3",
            "step": 7,
            "rubric": "math/quadratics@3",
            "question": "Which is right?",
            "judging": {"think_tokens": 64},
            "deadline_s": 5.0,
            "pairs": [self.PAIR],
        }

    def test_a_pair_alone_is_enough_and_may_be_a_model(self, service, connect):
        service.script(ScriptedReply(body=COMPARISONS))
        connect(service.url).compare([Pair.model_validate(self.PAIR)])
        assert service.asked[0].json == {"deadline_s": 60.0, "pairs": [self.PAIR]}

    def test_the_answer_is_typed(self, service, connect):
        service.script(ScriptedReply(body=COMPARISONS))
        answer = connect(service.url).compare([self.PAIR])
        assert (answer.win_rate, answer.pairs[0].preferred, answer.pairs[0].consistent) == (0.5, "tie", False)
        assert [order.first for order in answer.pairs[0].orders] == ["a", "b"]

    def test_an_invalid_request_is_refused_before_it_is_sent(self, service, connect):
        with pytest.raises(InvalidRequest, match=r"pairs\.0\.b"):
            connect(service.url).compare([{"id": "q17", "prompt": "x?", "a": "42"}])
        assert service.asked == []
