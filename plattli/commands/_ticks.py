"""Round numbers for the axes of a picture."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Return at most ``most`` (at least 3) round, evenly spaced numbers in ``low .. high``.

    Args:
        low, high: the range, ``low < high``.
        most: how many there is room for.
        whole: only integers.
    """
    step = 10.0 ** math.floor(math.log10((high - low) / max(most, 1)))
    if whole:
        step = max(step, 1.0)
    for factor in (1, 2, 5, 10, 20, 50):
        first, last = math.ceil(low / (step * factor) - 1e-9), math.floor(high / (step * factor) + 1e-9)
        if last - first < max(most, 3):
            # + 0.0: no minus in front of a zero
            return [at * step * factor + 0.0 for at in range(first, last + 1)]
    return []


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most ``most`` numbers in ``low .. high``, both above 0, for a logarithmic axis."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [
            digit * 10.0**power
            for power in range(first, last + 1)
            for digit in digits
            if low * (1 - 1e-9) <= digit * 10.0**power <= high * (1 + 1e-9)
        ]
        if 2 <= len(found) <= most:
            return found
    # many decades: every second, third, …; or less than one: what a linear axis would have
    decades = [10.0**power for power in range(first, last + 1) if low <= 10.0**power <= high]
    if len(decades) > 1:
        return decades[:: math.ceil(len(decades) / most)]
    return [tick for tick in ticks(low, high, most) if tick > 0]


def labels(numbers: Sequence[float]) -> list[str]:
    """Return the numbers as text, with as many digits as they need and no more."""
    sizes = [abs(number) for number in numbers if number]
    if sizes and max(sizes) < 1e7 and min(sizes) >= 1e-4 and max(sizes) < 1e5 * min(sizes):
        spellings = [f".{digits}f" for digits in range(10)]
    else:
        spellings = [f".{digits}g" for digits in range(1, 18)]
    for spelling in spellings:
        texts = [format(number, spelling) for number in numbers]
        pairs = zip(texts, numbers, strict=True)
        if all(math.isclose(float(text), number, rel_tol=1e-7) for text, number in pairs):
            break
    # 1e-06 -> 1e-6
    return [re.sub(r"e([+-])0*", lambda sign: "e-" if sign[1] == "-" else "e", text) for text in texts]
