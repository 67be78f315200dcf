"""The tags of a name, within a transaction that holds the name's lock."""

from collections.abc import Iterable

from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store import name_queries
from trainer_client.wire.rubrics import MAX_TAGS


async def add_tags(connection: AsyncConnection, project_id: str, name: str, tags: Iterable[str]) -> None:
    """Give a name these tags beside those it has; raises `ValueError` if that makes too many."""
    added = name_queries.add_tags(connection.dialect.name, project_id, name, sorted(set(tags)))
    if not (await connection.execute(added)).all():
        return
    count = len((await connection.execute(name_queries.tags(project_id, [name]))).all())
    if count > MAX_TAGS:
        raise ValueError(f"tags: {name} would have {count} tags; a rubric has at most {MAX_TAGS}, so replace them")


async def tags_of(connection: AsyncConnection, project_id: str, name: str) -> str:
    """The tags of a name in one line, sorted; empty where it has none."""
    return " ".join([row.tag for row in await connection.execute(name_queries.tags(project_id, [name]))])


async def replace_tags(connection: AsyncConnection, project_id: str, name: str, tags: Iterable[str]) -> None:
    """Give a name these tags in place of those it has."""
    await connection.execute(name_queries.remove_tags(project_id, name))
    if wanted := sorted(set(tags)):
        await connection.execute(name_queries.add_tags(connection.dialect.name, project_id, name, wanted))
