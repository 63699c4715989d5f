"""Logits are read in the type the graph gives them in, or not at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from qbpass.models.errors import ContractError
from qbpass.runtime.element_types import logits_dtype


@dataclass
class Output:
    name: str
    type: str


class Session:
    def __init__(self, *outputs: Output):
        self.outputs = outputs

    def get_outputs(self) -> tuple[Output, ...]:
        return self.outputs


@pytest.mark.parametrize(("kind", "dtype"), [("tensor(float)", np.float32), ("tensor(float16)", np.float16)])
def test_the_named_output_decides(kind: str, dtype: type) -> None:
    assert logits_dtype(Session(Output("other", "tensor(int64)"), Output("logits", kind)), "logits") == dtype


def test_a_type_that_numpy_has_no_array_of_is_refused_in_one_line() -> None:
    with pytest.raises(ContractError, match=r"tensor\(bfloat16\)") as raised:
        logits_dtype(Session(Output("logits", "tensor(bfloat16)")), "logits")
    assert "\n" not in str(raised.value)
