from vramcast.forecast.physics import bound_factor

__all__ = ["bound_factor"]
