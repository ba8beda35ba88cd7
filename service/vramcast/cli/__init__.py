"""What the program does besides serving: each command of `vramcast` that reads, writes or shows something."""
