"""Random numbers that belong to a position: the same whoever asks, in whatever order, and however often.

Sources: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011), for the generator, numpy's Philox4x64-10;
the exponential race is the Gumbel-max trick without a logarithm (Efraimidis and Spirakis, 2006).
"""

from __future__ import annotations

import numpy as np

from qbpass.runtime.sampling.scratch import scratch

MAX_SEED = 2**64 - 1

#: A call draws from counters upward of its own. The position is therefore the counter's second word: with the first
#: one, position p + 1 would be given position p's numbers again, shifted by the four of a block.
_POSITION_SHIFT = 64


def uniform_V(seed: int, position: int, count: int) -> np.ndarray:
    """(count,) float64 in [0, 1), one a token id, of a position in the whole sequence, prompt included.

    seed: 0 to MAX_SEED. Valid until this thread asks again.
    """
    generator = np.random.Generator(np.random.Philox(key=seed, counter=position << _POSITION_SHIFT))
    return generator.random(out=scratch("noise", count))


def race(weights: np.ndarray, uniform: np.ndarray) -> int:
    """The index i at which E_i / weights[i] is least, E = -log(uniform): i is drawn in proportion to its weight.

    weights: float64, not negative, in any scale; one of weight 0 never wins against one that has some. Of equal values
    the first index. uniform: overwritten.
    """
    with np.errstate(divide="ignore", over="ignore"):  # of weight 0, or u = 0: an infinite time
        times = np.log(uniform, out=uniform)
        np.negative(times, out=times)
        times /= weights
    return int(times.argmin())
