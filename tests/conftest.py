from hypothesis import HealthCheck, settings

# A shared machine can stall for longer than any example takes. Use --durations to find slow tests.
settings.register_profile("vramcast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vramcast")
