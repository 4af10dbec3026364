"""torch's settings of the whole process, changed for one block of code and restored after it.

    threads   of one operation on the CPU. Matrix products round differently with another number of threads
    tf32      whether an NVIDIA GPU may take float32 matrix products and convolutions in TF32

Both belong to the process, so a lock lets one block at a time change them. A thread that starts while a block
runs gets the block's number of threads and keeps it; torch has no way to ask for the number from before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

_LOCK = RLock()


@contextmanager
def torch_settings(threads: int | None = None, tf32: bool | None = None) -> Iterator[None]:
    """Sets what is given while the block runs; None leaves a setting as it is."""
    products = torch.backends.cuda.matmul, torch.backends.cudnn
    with _LOCK:
        before = torch.get_num_threads(), [kind.allow_tf32 for kind in products]
        try:
            if threads is not None:
                torch.set_num_threads(threads)
            if tf32 is not None:
                _allow_tf32([tf32] * 2)
            yield
        finally:
            if threads is not None:
                torch.set_num_threads(before[0])
            if tf32 is not None:
                _allow_tf32(before[1])


def _allow_tf32(allowed: list[bool]) -> None:
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = allowed
