"""What torch with CUDA shows of its memory, for machines without a GPU. `use` plays an allocation.

The names, keys and classes are torch's. Each GPU is a pair of peaks.
"""

from torch import cuda as cuda
from torch import optim as optim

__version__ = "2.9.0"


class OutOfMemoryError(RuntimeError):
    pass
