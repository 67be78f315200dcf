"""One file per revision, in order; a released one is never edited."""
