"""The processes of Adjudge: settings, wiring and the command line. No business rule lives here."""
