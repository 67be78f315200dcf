"""A calibration set for tests: maps for the scripted engine and the shipped templates."""

from judge_server.judging.calibration import Calibration, CalibrationSet, FittedCalibration, ProbabilityMap
from tests.judge_server.support import prepared

DEFAULT, OF_PITFALLS = ProbabilityMap(2.0, -1.0), ProbabilityMap(1.0, 2.0)
CALIBRATION = Calibration("test-v1", "sha256:0", 100, DEFAULT, {"pitfall": OF_PITFALLS})
SCRIPTED = "none"
"""The digest of the scripted engine's weights."""


def fitted(**changed: object) -> CalibrationSet:
    """A set with one calibration, by default for `binary`."""
    templates = prepared("stepwise" if changed.get("protocol") == "stepwise" else "binary").single_templates.digest
    fields = {"weights": ("other", SCRIPTED), "protocol": "binary", "templates": templates, "calibration": CALIBRATION}
    return CalibrationSet(maps=(FittedCalibration.model_validate(fields | changed),))
