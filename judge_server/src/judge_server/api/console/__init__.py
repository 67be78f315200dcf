"""The console: pages of the api under `/console` that show what the judge saw, decided and cost.

The pages are made on the server and work without JavaScript; HTMX, a file of this service, makes them pleasant. They
are no routes of the API: the OpenAPI document does not have them.
"""

from judge_server.api.console.app import create_console, load_templates

__all__ = ["create_console", "load_templates"]
