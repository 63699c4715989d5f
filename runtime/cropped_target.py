"""A decoder of the exported interface that can be rolled back: rejected rows are cut off its past."""

from __future__ import annotations

import numpy as np

from qbpass.runtime.serial_target import SerialTarget


class CroppedTarget(SerialTarget):
    """Past and present as exported, (1, Hkv, n, d). Cutting copies; nothing is cut where no row was rejected."""

    def rollback(self, length: int) -> None:
        import onnxruntime as ort

        if not 0 <= length <= self._length:
            raise ValueError(f"can't roll back from {self._length} to {length}")
        if length < self._length and self._shared is None:
            self._past = [
                ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value.numpy()[:, :, :length]), self._device, 0)
                for value in self._past
            ]
        self._length = length
