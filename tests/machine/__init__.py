"""Two vramcasts, two schedulers and an API server in virtual time, driven step by step in any legal order."""
