"""`python -m vramcast` is the same as `vramcast`."""

from vramcast.cli import main

main()
