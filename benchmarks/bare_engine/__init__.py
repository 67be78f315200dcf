"""Adjudge against the engine it stands on: the same calls through the service, and by the plainest loop there is."""
