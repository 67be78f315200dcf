"""The two bases of every message: what comes in is strict, what goes out may grow.

A request with a field we do not know is refused, so that a misspelt option never passes silently. An answer with a
field a client does not know is read all the same, so that two versions can live side by side.
"""

from pydantic import BaseModel, ConfigDict


class Request(BaseModel):
    """A message to the service: unknown fields and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Answer(BaseModel):
    """A message from the service: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)
