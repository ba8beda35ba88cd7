"""`vramcast demo`: the service on a small cluster in memory, and a scripted day of training pods played through it."""
