"""`kubectl vramcast`: the service's answers, through the API server, with the rights of whoever asks.

It runs on people's own machines, from an archive without dependencies, so it imports nothing but the standard library
and `vramcast.__version__`, and keeps to what Python 3.9 has.
"""
