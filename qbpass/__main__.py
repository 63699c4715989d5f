"""`python -m qbpass`."""

from qbpass.cli import main

main()
