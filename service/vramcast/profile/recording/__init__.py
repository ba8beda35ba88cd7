"""Records training steps without a GPU: what they allocate and free, in order, as a GPU would.

`record.py` composes the parts. `tracking.py` notes storages, `units.py` the repeated blocks. The rest makes the meta
device do what CUDA does: `kernels.py`, `attention.py`, `autocast.py`, `scratch.py`; and changes the network the way
libraries do: `checkpointing.py`, `lora.py`, `quantized.py`, `fused.py`, `experts.py`.
"""
