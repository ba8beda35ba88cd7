"""Hides a development tool from the services under test, on their PYTHONPATH.

The Kubernetes client imports it where it is installed, which takes a second of CPU at every start. The image does not
have it.
"""

raise ImportError("not in the image")
