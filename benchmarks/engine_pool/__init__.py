"""What several endpoints behind one judge bring, and what it costs when one of them dies."""

import re

RESPONSE = re.compile(r"Response [0-9a-f]{8}")
"""How a response names itself, so that an endpoint can count the calls about it."""
