"""The agent on a GPU node: the driver's memory by process, as memory by pod, for Prometheus."""
