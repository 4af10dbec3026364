"""A study as a folder of cells that survives a stop at any moment.

run.json               which study this is; a folder of another one is refused
cells/NAME.npz         what one cell measured, as named arrays; written whole or not at all
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..files import write_whole
from .folder import Ledger, write_npz


@dataclass(frozen=True)
class CellFolder:
    """The cells of one study."""

    folder: Path

    @classmethod
    def begin(
        cls, folder: Path, kind: str, config: Mapping[str, Any], made_with: Mapping[str, str]
    ) -> CellFolder:
        """Begins a folder, or goes on with one of the same kind and configuration."""
        ledger = Ledger(folder, kind)
        with ledger.opened():
            ledger.begin({"config": config, "made_with": made_with})
            (folder / "cells").mkdir(exist_ok=True)
        return cls(folder)

    def __contains__(self, name: str) -> bool:
        return self._path(name).is_file()

    def save(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        buffer = BytesIO()
        write_npz(buffer, {}, {key: value.cpu().numpy() for key, value in tensors.items()})
        write_whole(self._path(name), buffer.getvalue())

    def load(self, name: str) -> dict[str, Tensor]:
        with np.load(self._path(name), allow_pickle=False) as archive:
            return {key: torch.from_numpy(archive[key]) for key in archive.files}

    def _path(self, name: str) -> Path:
        return self.folder / "cells" / f"{name}.npz"
