"""Names for the arrays that everything here is made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int32]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
