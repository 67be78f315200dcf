"""Change rubrics in the store for `adjudge rubrics`."""

from rich.markup import escape

from adjudge_services.cli.output import exit_with_error, out
from judge_server import rubrics as changes
from judge_server.rubrics import PROJECT_ID, find_rubric
from rubric_store import RubricStore
from trainer_client.wire import RubricTags, RubricVersion


async def read_aliases(name: str, store: RubricStore) -> dict[str, int]:
    """The aliases of a rubric."""
    await find_rubric(store, PROJECT_ID, name)
    return (await store.aliases(PROJECT_ID, name)).aliases


async def move_alias(name: str, alias: str, version: int, expected: int | None, store: RubricStore) -> int | None:
    """Move the alias; return the version that it pointed to before."""
    current = (await store.aliases(PROJECT_ID, name)).aliases.get(alias)
    before = current if expected is None else expected
    await changes.move_alias(store, PROJECT_ID, name, alias, version, expected=before)
    return current


async def remove_alias(name: str, alias: str, expected: int | None, store: RubricStore) -> int:
    """Remove an alias; return the version that it pointed to."""
    current = (await changes.alias_of(store, PROJECT_ID, name, alias)).version
    await changes.remove_alias(store, PROJECT_ID, name, alias, expected=expected or current)
    return current


async def change_tags(name: str, tags: list[str] | None, clear: bool, store: RubricStore) -> RubricTags:
    """Replace the tags if any are given, or all are to go; return them."""
    if tags or clear:
        return await changes.replace_tags(store, PROJECT_ID, name, tags or [])
    return RubricTags(name=name, tags=(await changes.history(store, PROJECT_ID, name, limit=1)).tags)


async def retire_version(
    reference: str, reason: str | None, store: RubricStore
) -> tuple[RubricVersion, RubricVersion, list[str]]:
    """Retire or restore a version; return it, the name's current version, and the aliases that point to it."""
    version = await changes.retire(store, PROJECT_ID, reference, reason)
    aliases = (await store.aliases(PROJECT_ID, version.name)).aliases
    current = await find_rubric(store, PROJECT_ID, version.name)
    return version, current, [one for one, number in aliases.items() if number == version.version]


def print_version(version: RubricVersion, *, added: bool, has_extras: bool) -> None:
    """Print what became of a published version."""
    what = "published" if added else "unchanged:"
    out.print(
        f"{what} {escape(version.reference)}  {version.digest[:19]}…  {len(version.criteria)} criteria",
        highlight=False,
    )
    if version.retirement:
        out.print(f"[yellow]this version is retired[/]: {escape(version.retirement.reason)}", highlight=False)
    elif has_extras and not added:
        out.print("its metadata, lineage and parent stay as they were published", style="dim", highlight=False)


def read_pairs(given: list[str]) -> dict[str, str]:
    """Read pairs that are written as KEY=VALUE."""
    pairs = [text.partition("=") for text in given]
    for key, sign, _ in pairs:
        if not (key and sign):
            exit_with_error(f"--meta takes KEY=VALUE, not {key!r}")
    return {key: value for key, _, value in pairs}
