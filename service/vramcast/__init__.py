"""vramcast: GPU scheduling that knows what a training job needs before it runs."""

__version__ = "0.1.0"
