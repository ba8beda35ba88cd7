"""Recordings against measured runs, slice by slice. See `__main__.py`."""
