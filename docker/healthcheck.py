"""Exits with 0 if GET of the URL is answered with 200 within three seconds: `python healthcheck.py URL`."""

import sys
from urllib.error import URLError
from urllib.request import urlopen

try:
    with urlopen(sys.argv[1], timeout=3) as answer:  # noqa: S310 - whoever wrote the health check wrote the URL
        status = answer.status
except (URLError, OSError) as error:
    sys.exit(f"{sys.argv[1]}: {error}")
sys.exit(0 if status == 200 else f"{sys.argv[1]}: {status}")
