"""Which judge a command asks: one that starts in this process, or one of a running service by its name."""

from typing import Any, NamedTuple

from pydantic import ValidationError

from adjudge_services.settings import CombinedJudgeSettings, Settings
from trainer_client.wire.problems import field_errors

MEMBERS_OF_CASCADE = ("small", "large")
"""The names of a cascade's judges while it is measured, by which ADJUDGE_CALIBRATIONS names them."""


class ChosenJudge(NamedTuple):
    """Where a judge is asked.

    Attributes:
        url: the running service that has it; None if one is started in this process.
        settings: the settings of a service in this process.
        name: the judge's name in requests; None for the service's default judge.
    """

    url: str | None
    settings: Settings
    name: str | None


def choose_judge(judge: str | None, url: str | None, settings: Settings) -> ChosenJudge:
    """Read `--judge`: an engine URL, a cascade or panel of URLs as JSON, or the name of a judge of the service.

    Args:
        judge: what the user wrote; None for the default judge.
        url: the service; if a judge is named and there is no URL, that of the settings.
        settings: the settings of a service in this process.

    Raises:
        ValueError: it begins like JSON but is neither a cascade nor a panel.
    """
    if judge is None:
        return ChosenJudge(url, settings, None)
    if "://" not in judge:
        return ChosenJudge(url or settings.url, settings, judge)
    return ChosenJudge(None, settings.model_copy(update=_engines(judge)), None)


def combined_judge(judge: str) -> CombinedJudgeSettings:
    """Read a cascade or panel of engine URLs, written as in the settings. Raises `ValueError` if it is invalid."""
    try:
        given = CombinedJudgeSettings.model_validate_json(judge)
    except ValidationError as error:
        raise ValueError(f"{judge} is not a cascade or panel: {field_errors(error.errors())[0].message}") from None
    named = [member for member in given.members if "://" not in member]
    if named:
        raise ValueError(f"{named[0]!r} is not an engine URL, of which a cascade or panel to measure here is made")
    return given


def judge_label(judge: str) -> str:
    """Return what tables call a judge: its name or URL, or those of a cascade's or panel's judges."""
    if not judge.startswith("{"):
        return judge
    given = combined_judge(judge)
    how = given.band or given.weights or given.dawid_skene or "equal weights"
    written = how if isinstance(how, str) else " to ".join(map(str, how)) if given.cascade else f"weights {how}"
    return f"{'cascade' if given.cascade else 'panel'}({', '.join(given.members)}; {written})"


def _engines(judge: str) -> dict[str, Any]:
    """Return the settings of a service with this judge as its default."""
    if not judge.startswith("{"):
        return {"engine_url": judge, "engines": {}}
    given = combined_judge(judge)
    names = MEMBERS_OF_CASCADE if given.cascade else tuple(f"judge-{n}" for n in range(1, len(given.members) + 1))
    default = given.model_copy(update={"cascade" if given.cascade else "panel": names})
    return {"engines": {"default": default, **dict(zip(names, given.members, strict=True))}}
