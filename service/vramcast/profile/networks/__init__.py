"""The networks of the catalog, by library and family.

Configurations are written out so that building the catalog needs no access to a hub. Only fields that shape the network
appear. Parameter counts are pinned in tests/forecast/parameters.csv.
"""
