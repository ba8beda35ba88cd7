from hypothesis import HealthCheck, settings

# A shared machine stalls for longer than any example takes; what is slow is seen in --durations.
settings.register_profile("vramcast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vramcast")
