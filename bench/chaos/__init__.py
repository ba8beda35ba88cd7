"""Faults at scale on a real control plane. Start reading at run.py; the command is in __main__.py."""
