"""`python -m vramcast.kubectl`."""

from vramcast.kubectl.main import main

main()
