"""A database's schema as sorted lines, the same on every server version, read from the catalogue."""

from sqlalchemy import Connection, create_engine, make_url, text

_SQLITE = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY tbl_name, type DESC, name"
_COLUMNS = """
    SELECT format('%s.%s %s%s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
        CASE WHEN co.collname <> 'default' THEN format(' COLLATE "%s"', co.collname) ELSE '' END,
        CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    LEFT JOIN pg_collation co ON co.oid = a.attcollation
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY c.relname COLLATE "C", a.attnum"""
_CONSTRAINTS = """
    SELECT format('%s CONSTRAINT %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype IN ('p', 'u', 'f', 'c')
        AND NOT (SELECT relispartition FROM pg_class WHERE oid = conrelid)
    ORDER BY conrelid::regclass::text COLLATE "C", conname COLLATE "C" """
_INDEXES = """
    SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
        AND NOT (SELECT relispartition FROM pg_class WHERE oid = format('%I', tablename)::regclass)
    ORDER BY indexname COLLATE "C" """
_PARTITIONS = """
    SELECT format('%s PARTITION BY %s: %s', partrelid::regclass, pg_get_partkeydef(partrelid),
        string_agg(pg_get_expr(c.relpartbound, c.oid), ', ' ORDER BY c.oid))
    FROM pg_partitioned_table JOIN pg_inherits ON inhparent = partrelid JOIN pg_class c ON c.oid = inhrelid
    WHERE NOT EXISTS (SELECT FROM pg_index WHERE indexrelid = partrelid) GROUP BY partrelid ORDER BY 1"""


def sync_url(url: str) -> str:
    """The store's URL for a blocking engine."""
    return make_url(url.replace("sqlite+aiosqlite", "sqlite")).render_as_string(hide_password=False)


def dump_schema(url: str) -> str:
    """The schema of a database, one line per item."""
    engine = create_engine(sync_url(url))
    try:
        with engine.connect() as connection:
            return "\n".join(_lines(connection)) + "\n"
    finally:
        engine.dispose()


def _lines(connection: Connection) -> list[str]:
    postgres = connection.dialect.name == "postgresql"
    queries = (_COLUMNS, _CONSTRAINTS, _INDEXES, _PARTITIONS) if postgres else (_SQLITE,)
    dumped = [row[0] for query in queries for row in connection.execute(text(query))]
    return [line.rstrip() for item in dumped for line in item.replace("\t", "    ").splitlines()]
