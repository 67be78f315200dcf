"""A JSON object of the caller's own, bounded, so that what is kept with a rubric cannot outgrow the rubric."""

import json
from typing import Annotated

from pydantic import AfterValidator, JsonValue

MAX_JSON_BYTES = 65_536


def _check_size(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except RecursionError:
        raise ValueError("this object is nested too deeply; keep what matters near its top") from None
    except UnicodeEncodeError:
        raise ValueError("this text holds half a surrogate pair, which is no character") from None
    except ValueError:
        raise ValueError("JSON has no infinite numbers and no NaN; write null") from None
    if size > MAX_JSON_BYTES:
        raise ValueError(f"this object is {size} bytes as JSON; at most {MAX_JSON_BYTES} are kept")
    return value


JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_check_size)]
"""A mapping of text to JSON values, at most 64 KiB as JSON."""
