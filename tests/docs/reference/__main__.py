"""`python -m tests.docs.reference`."""

from tests.docs.reference import main

main()
