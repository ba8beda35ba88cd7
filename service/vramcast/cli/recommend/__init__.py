"""`vramcast recommend`: asks Prometheus for the history by windows, and prints what `vramcast.recommend` says."""
