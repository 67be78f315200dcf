"""`adjudge migrate`: bring the database schema to what this version needs."""

from adjudge_services.cli.output import give_up, out
from adjudge_services.settings import Settings
from rubric_store import migrations


def migrate() -> None:
    """Upgrade the database schema. SQLite files are upgraded when a process starts; PostgreSQL waits for this."""
    settings = Settings()
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    try:
        migrations.upgrade(settings.store_url)
    except Exception as error:  # noqa: BLE001 - drivers raise what they like; a person wants one line
        give_up(f"the database could not be migrated: {error}. Check ADJUDGE_DATABASE_URL")
    out.print(f"schema is at {migrations.current(settings.store_url)}")
