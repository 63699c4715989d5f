"""The code in docs/sampling.md is right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from sampled_requests import STOP, VOCABULARY, generated

from qbpass.runtime.sampling.noise import uniform_V
from qbpass.runtime.sampling.settings import Sampling

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "sampling.md").read_text(encoding="utf-8")
NOISE, PROCESSOR = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def names_of(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def test_the_numbers_of_a_position_are_those_that_are_drawn_with() -> None:
    numbers = names_of(NOISE)["numbers"](2**63 + 5, 77, 1000)
    assert numbers.tobytes() == uniform_V(2**63 + 5, 77, 1000).tobytes()


def test_the_processor_of_the_example_does_what_it_is_called() -> None:
    processor = names_of(PROCESSOR)["NoTokenThrice"]()
    tokens = generated(Sampling(0, bias={STOP: -np.inf}, processors=(processor,)), (1, 2), limit=2 * VOCABULARY - 2)
    assert sorted(tokens.token_ids) == sorted([*range(VOCABULARY - 1)] * 2)


def test_every_step_is_a_setting() -> None:
    named = re.findall(
        r"`(\w+)`", "".join(line.split("|")[2] for line in TEXT.splitlines() if re.match(r"\| \d+ ", line))
    )
    assert set(named) | {"stop_ids"} == set(Sampling.__dataclass_fields__)
