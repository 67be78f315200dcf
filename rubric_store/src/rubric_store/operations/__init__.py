"""Operations in chunks on SQLite or PostgreSQL: their state, the leases on their chunks, and their results."""
