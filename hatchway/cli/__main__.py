"""`python -m hatchway.cli`: the same command, whatever is on PATH."""

from hatchway.cli import main

main()
