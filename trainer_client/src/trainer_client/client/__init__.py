"""`Client`, `AsyncClient`, and the requests and answers behind their methods."""
