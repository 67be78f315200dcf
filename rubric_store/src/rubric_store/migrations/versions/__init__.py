"""One file per revision, in order; what a released one does is never edited.

Each says `loses`, and one that does more than add also `works_from`: see `rubric_store.migrations.schema_status.Revision`.
"""
