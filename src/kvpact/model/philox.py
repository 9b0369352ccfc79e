"""Draws without a stream: a pure function of seed, choice and output position, so there is no state to roll back.

The generator is Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11), exactly:

- key, two 64-bit words: `(seed, choice)`;
- counter, four 64-bit words, lowest first: `(output_position + 1, 0, 0, 0)`. NumPy steps a counter before it takes
  four words from it, so it is given `output_position`;
- the draw is word 0 of these four: its upper 53 bits, times 2**-53. Words 1 to 3 are not used.
"""

from __future__ import annotations

import numpy as np


def uniform(seed: int, choice: int, output_position: int) -> float:
    """A number in [0, 1), on a grid of 2**-53. seed: 64 bits unsigned. choice: index among n. output_position: from 0."""
    assert 0 <= seed < 2**64
    assert choice >= 0
    assert output_position >= 0
    key = np.array([seed, choice], dtype=np.uint64)
    word = np.random.Philox(key=key, counter=output_position).random_raw()
    return float((int(word) >> 11) * 2.0**-53)
