"""The HTTP APIs: of the service (`/v1`, the console, health), and of a judge process. They contain no judging rules."""
