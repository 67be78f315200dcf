"""Labels: given, queued, and what they say of the judge."""
