"""Measure several endpoints behind one judge, and the loss of one of them."""

import re

RESPONSE = re.compile(r"Response [0-9a-f]{8}")
"""The name inside each response, by which an endpoint counts the calls about it."""
