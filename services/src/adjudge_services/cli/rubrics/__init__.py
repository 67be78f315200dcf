"""`adjudge rubrics`: the rubric store from the command line."""

from typing import Final

from adjudge_services.cli.lazy import CommandSource, lazy_app

_FOLDER: Final = __name__

COMMANDS: Final = {
    "publish": CommandSource(
        f"{_FOLDER}.changes:publish",
        "Publish a file as the next version of a rubric. Criteria that are published already make no new version.",
    ),
    "show": CommandSource(
        f"{_FOLDER}.show:show", "Show a version: its origin, whether it is in use, and its criteria."
    ),
    "list": CommandSource(f"{_FOLDER}.show:list_rubrics", "List rubrics by name, each with its current version."),
    "search": CommandSource(
        f"{_FOLDER}.show:search", "List the rubrics whose criteria contain all of the given words, ignoring case."
    ),
    "history": CommandSource(f"{_FOLDER}.show:history", "List the versions of a rubric, newest first."),
    "diff": CommandSource(
        f"{_FOLDER}.show:diff",
        "Show which criteria were added, removed, reworded, reweighted, otherwise changed or moved.",
    ),
    "alias": CommandSource(
        f"{_FOLDER}.changes:alias",
        "Point an alias to a version; without a version, show the versions that aliases point to.",
    ),
    "tag": CommandSource(f"{_FOLDER}.changes:tag", "Replace the tags of a rubric; without tags, show them."),
    "retire": CommandSource(
        f"{_FOLDER}.changes:retire",
        "Retire a version: it stays readable, but judging by it is rejected with the reason.",
    ),
    "discriminate": CommandSource(
        f"{_FOLDER}.discriminate:discriminate",
        "Judge responses known to be good or bad, and report how well the rubric tells them apart.",
    ),
    "import": CommandSource(
        f"{_FOLDER}.files:import_rubrics",
        "Publish every rubric in the given files. Exits with 1 if any file is rejected.",
    ),
    "export": CommandSource(
        f"{_FOLDER}.files:export",
        "Write rubrics as files. Reports what the format cannot hold, and rejects rubrics that it cannot express.",
    ),
    "lint": CommandSource(
        f"{_FOLDER}.lint:lint_rubrics",
        "Check rubrics without asking a model. Exits with 1 on an error, with 2 if a rubric cannot be read.",
    ),
    "validate": CommandSource(
        f"{_FOLDER}.validate:validate",
        "Have a model judge whether criteria are true, about their question and of the right kind; store its verdicts.",
    ),
}

app = lazy_app(COMMANDS, help="Manage rubrics: publish, find, compare, check, import and export them.")
