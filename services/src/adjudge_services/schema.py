"""Where the schema that a process finds stands, in words, and what to do where the process cannot run on it."""

from rubric_store.migrations import SchemaStatus


def describe_schema_status(found: SchemaStatus) -> str:
    """Where a database stands and what to do about it, in a sentence."""
    if found.state == "current":
        return f"the database is at revision {found.revision}, which is this version's"
    if found.state == "behind":
        where = f"it is at revision {found.revision}, and should be at" if found.revision else "it is empty, and needs"
        return f"the database schema is not the one this version needs: {where} {found.head}; run: adjudge migrate"
    if found.state == "ahead":
        return (
            f"the database is at revision {found.revision}, which a newer version made; this version, of revision "
            f"{found.head}, works on it"
        )
    needed = f" (it needs revision {found.works_from} or later)" if found.works_from else ""
    return (
        f"the database is at revision {found.revision}, which a newer version made, and this version, of revision "
        f"{found.head}, does not work on it{needed}; install the newer version again, or take the schema back with it: "
        f"adjudge migrate down {found.head}"
    )
