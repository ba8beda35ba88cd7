from vramcast.forecast.summary import MATCH_MARGIN as DOUBT
from vramcast.forecast.summary import layers_of, match_catalog

__all__ = ["DOUBT", "layers_of", "match_catalog"]
