"""A test that sets a private name or a constant of our packages is found; `make lint` looks for them in all tests."""

import pytest

from tests.patched_names import defined_names, patched_names

OURS = frozenset({"_pause", "_now", "_LIMIT", "LIMIT_S"})


def test_the_private_names_and_constants_of_a_module_are_known() -> None:
    source = (
        "LIMIT_S = 1.0\n_now = monotonic\nname = 2\n"
        "class _Hidden:\n    def __init__(self):\n        self._size = self.size = 0\n    def _read(self): ...\n"
    )
    assert set(defined_names(source)) == {"LIMIT_S", "_now", "_Hidden", "_size", "_read"}


@pytest.mark.parametrize(
    "source",
    [
        'monkeypatch.setattr(module, "_pause", pause)',
        'monkeypatch.setattr("judge_server.api.LIMIT_S", 0.1)',
        'patch.setattr("judge_server.api._pause", 0.1)',
        'monkeypatch.delattr(module, "_LIMIT")',
        'setattr(module, "LIMIT_S", 0.1)',
        'with mock.patch.object(module, "_now", later): ...',
        'with mock.patch("rubric_store.clock._now", later): ...',
        "module.LIMIT_S = 0.1",
        "engine._now, other = later, 1",
        "engine.pool._LIMIT += 1",
        "monkeypatch.setattr(Spool.__init__, '__defaults__', (6000,))",
    ],
)
def test_setting_one_is_found(source: str) -> None:
    assert len(list(patched_names(source, OURS))) == 1


@pytest.mark.parametrize(
    "source",
    [
        'monkeypatch.setattr(module, "pause", pause)',
        'monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)',
        'monkeypatch.setattr("datasets.config.LIMIT_S", 1)',
        'monkeypatch.setenv("LIMIT_S", "1")',
        "class Engine(ScriptedEngine):\n    def __init__(self):\n        self._now = 0",
        "assert engine._now == LIMIT_S",
        "LIMIT_S = 0.5",
    ],
)
def test_public_names_those_of_others_and_a_tests_own_may_be_set(source: str) -> None:
    assert list(patched_names(source, OURS)) == []
