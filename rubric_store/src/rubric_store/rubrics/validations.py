"""`ValidationMixin`: the verdicts of validity judges on published versions. Rows are added and never changed."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, func, insert, select

from rubric_store.repository import BaseRepository
from rubric_store.rubrics import queries
from rubric_store.rubrics.tables import rubric_validations as passes
from trainer_client.wire import Reference
from trainer_client.wire.rubrics import CriterionValidity, RubricValidation

_COLUMNS = [passes.c[name] for name in RubricValidation.model_fields]


class ValidationMixin(BaseRepository):
    """The part of `RubricStore` that stores validity verdicts."""

    async def add_validation(
        self,
        project_id: str,
        name: str,
        version: int,
        *,
        judge: str,
        model: str,
        template_digest: str,
        items: Sequence[CriterionValidity],
    ) -> RubricValidation:
        """Store one more pass over a version's criteria.

        Raises:
            LookupError: the version does not exist.
            ValueError: the items are not the version's criteria in their order.
        """
        async with self._begin_locked(project_id, name) as connection:
            result = await connection.execute(queries.version(project_id, Reference(name, version, None)))
            row = result.one_or_none()
            if row is None:
                raise LookupError(f"there is no {name}@{version}")
            if [item.criterion for item in items] != [criterion["id"] for criterion in row.criteria]:
                raise ValueError(f"the items must be the criteria of {name}@{version}, each once and in their order")
            last = (await connection.execute(_last_number(project_id, name, version))).scalar_one()
            validation = RubricValidation(
                name=name,
                version=version,
                judge=judge,
                model=model,
                template_digest=template_digest,
                created_at=datetime.now(UTC),
                items=tuple(items),
            )
            values = {**dict(validation), "items": [item.model_dump(mode="json") for item in validation.items]}
            await connection.execute(insert(passes).values(project_id=project_id, pass_number=last + 1, **values))
        return validation

    async def validations(self, project_id: str, name: str, version: int) -> tuple[RubricValidation, ...]:
        """The newest pass of each judge over a version, newest first; empty if the version does not exist."""
        rows = await self._read(_newest_by_judge(project_id, name, version))
        return tuple([RubricValidation.model_validate(dict(row._mapping)) for row in rows])


def _last_number(project_id: str, name: str, version: int) -> Select[Any]:
    """The number of a version's last pass; 0 if there is none."""
    return select(func.coalesce(func.max(passes.c.pass_number), 0)).where(*_version_filter(project_id, name, version))


def _newest_by_judge(project_id: str, name: str, version: int) -> Select[Any]:
    same_version = _version_filter(project_id, name, version)
    newest = select(func.max(passes.c.pass_number)).where(*same_version).group_by(passes.c.judge)
    return (
        select(*_COLUMNS).where(*same_version, passes.c.pass_number.in_(newest)).order_by(passes.c.pass_number.desc())
    )


def _version_filter(project_id: str, name: str, version: int) -> tuple[Any, ...]:
    return (passes.c.project_id == project_id, passes.c.name == name, passes.c.version == version)
