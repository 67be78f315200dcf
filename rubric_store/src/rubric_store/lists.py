"""Lists of what the store holds: rubrics by name, by tag and by the words of their criteria, and their histories."""

import re
from collections import defaultdict
from collections.abc import Sequence

from rubric_store import name_queries, queries
from rubric_store.connected import BaseRepository
from rubric_store.paging import (
    UNKNOWN_CURSOR,
    CursorError,
    check_limit,
    name_from_cursor,
    number_from_cursor,
    to_cursor,
)
from rubric_store.rows import summary_of
from rubric_store.search import words_of
from trainer_client.wire import RubricAliases, RubricHistory, RubricPage, RubricSummary

_NAME_CHARACTERS = re.compile(r"[a-z0-9._/-]*")
_Tags = defaultdict[str, list[str]]
_Aliases = defaultdict[str, dict[str, int]]


class ListMixin(BaseRepository):
    """The part of `RubricStore` that lists. A page costs the same wherever it is."""

    async def list(
        self,
        project_id: str,
        *,
        prefix: str = "",
        tag: str | None = None,
        text: str = "",
        after: str | None = None,
        limit: int = 100,
    ) -> RubricPage:
        """Rubrics by name in code point order, each with the version its bare name stands for.

        Args:
            project_id: whose rubrics.
            prefix: only names that begin with this text, taken literally.
            tag: only rubrics that have this tag.
            text: only rubrics whose criteria, taken together, have for each word of this text a word that begins
                with it, whatever its case; see `rubric_store.search`. A text without a word finds nothing.
            after: the `next_cursor` of the page before; None for the first page.
            limit: rubrics a page, 1 to 500.

        Raises:
            CursorError: no page gave this cursor out.
            ValueError: the limit is out of range.
        """
        check_limit(limit)
        name = None if after is None else name_from_cursor(after)
        words = words_of([text])
        if not _NAME_CHARACTERS.fullmatch(prefix) or (text and not words) or "\0" in (tag or ""):
            return RubricPage(rubrics=())
        page = name_queries.page(
            project_id, self._engine.dialect.name, prefix=prefix, tag=tag, words=words, after=name, limit=limit + 1
        )
        rows = await self._read(page)
        names = [row.name for row in rows[:limit]]
        tags, aliases = await self._labels(project_id, names)
        summaries = [
            RubricSummary(**row._mapping, tags=tuple(tags[row.name]), aliases=aliases[row.name]) for row in rows[:limit]
        ]
        return RubricPage(rubrics=tuple(summaries), next_cursor=to_cursor(names[-1]) if rows[limit:] else None)

    async def history(
        self, project_id: str, name: str, *, after: str | None = None, limit: int = 100
    ) -> RubricHistory | None:
        """The versions of a rubric, the newest first; None if there is no such rubric.

        Args:
            project_id: whose rubrics.
            name: the rubric.
            after: the `next_cursor` of the page before; None for the first page.
            limit: versions a page, 1 to 500.

        Raises:
            CursorError: no page gave this cursor out.
            ValueError: the limit is out of range.
        """
        check_limit(limit, "versions")
        before = None if after is None else number_from_cursor(after)
        rows = await self._read(queries.history(project_id, name, before=before, limit=limit + 1))
        if not rows and after is not None:
            raise CursorError(UNKNOWN_CURSOR)
        if not rows:
            return None
        tags, aliases = await self._labels(project_id, [name])
        return RubricHistory(
            name=name,
            tags=tuple(tags[name]),
            versions=tuple([summary_of(row, aliases[name]) for row in rows[:limit]]),
            next_cursor=to_cursor(str(rows[limit - 1].version)) if rows[limit:] else None,
        )

    async def aliases(self, project_id: str, name: str) -> RubricAliases:
        """The aliases of a rubric; none where there is no such rubric."""
        _, aliases = await self._labels(project_id, [name])
        return RubricAliases(name=name, aliases=aliases[name])

    async def _labels(self, project_id: str, names: Sequence[str]) -> tuple[_Tags, _Aliases]:
        """The tags and the aliases of names."""
        tags: _Tags = defaultdict(list)
        aliases: _Aliases = defaultdict(dict)
        async with self._connect() as connection:
            for row in await connection.execute(name_queries.tags(project_id, names)):
                tags[row.name].append(row.tag)
            for row in await connection.execute(name_queries.aliases(project_id, names)):
                aliases[row.name][row.alias] = row.version
        return tags, aliases
