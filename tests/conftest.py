import os

from hypothesis import HealthCheck, settings

# The same examples in every run, so that a failure belongs to the change and not to the day. For a search with others:
# RANDOM_EXAMPLES=1 python -m pytest ...
settings.register_profile(
    "vramcast",
    # A shared machine can stall for longer than any example takes. Use --durations to find slow tests.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="RANDOM_EXAMPLES" not in os.environ,
)
settings.load_profile("vramcast")
