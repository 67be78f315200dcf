"""One file per revision, in order. What a released revision does to a database never changes.

Each declares `loses`; one that does more than add also declares `works_from`, see
`rubric_store.migrations.schema_status.Revision`.
"""
