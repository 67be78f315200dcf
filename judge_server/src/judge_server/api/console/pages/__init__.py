"""The pages of the console, a module each with its own router."""
