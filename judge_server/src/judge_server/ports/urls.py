"""The options of the URLs by which adapters are chosen, such as those of engines and caches."""

from typing import Self
from urllib.parse import SplitResult, parse_qsl

from pydantic import BaseModel, ConfigDict, ValidationError


class UrlOptions(BaseModel):
    """The `?name=value` options of an adapter's URL, which a subclass declares as its fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, url: SplitResult) -> Self:
        """Read the options of a URL. Raises `ValueError` for an unknown option or value; the message says which."""
        try:
            return cls.model_validate_strings(dict(parse_qsl(url.query)))
        except ValidationError as error:
            first = error.errors()[0]
        names = [field.alias or name for name, field in cls.model_fields.items()]
        option = ".".join(map(str, first["loc"][:1]))
        if first["type"] == "extra_forbidden":
            raise ValueError(f"{url.geturl()}: unknown option {option!r}; it takes {', '.join(names)}")
        place = f"{option}={first['input']}: " if option else ""
        raise ValueError(f"{url.geturl()}: {place}{first['msg'].removeprefix('Value error, ')}")
