"""One file per revision, in order. A released revision is never edited.

Each declares `loses`; one that does more than add also declares `works_from`, see
`rubric_store.migrations.schema_status.Revision`.
"""
