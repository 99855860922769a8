"""The ``dtype=`` of a read: what stored values are handed out as."""

from __future__ import annotations

from typing import Any

import numpy as np

from plattli.errors import ConversionError, DtypeError, ValueRangeError

Array = np.ndarray[Any, np.dtype[Any]]
_INT64 = np.dtype(np.int64)


def check(dtype: Any) -> np.dtype[Any] | str:
    """Return a requested dtype in its checked form.

    Raises:
        TypeError: neither ``"standard"``, ``"storage"`` nor a NumPy dtype.
    """
    if isinstance(dtype, str) and dtype in ("standard", "storage"):
        return dtype
    if dtype is None:  # which NumPy would take for float64
        raise TypeError("dtype must be 'standard', 'storage' or a NumPy dtype, got None")
    checked: np.dtype[Any] = np.dtype(dtype)
    return checked


def result_dtype(dtype: np.dtype[Any] | str, stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return what values stored as ``stored`` become for a checked request."""
    if isinstance(dtype, np.dtype):
        return dtype
    return _INT64 if dtype == "standard" and stored.kind in "iu" else stored


def convert(values: Array, dtype: np.dtype[Any] | str, metric: str, run: str) -> Array:
    """Return ``values`` as the requested dtype.

    Integers are exact or an error. Floats are rounded as NumPy rounds them.

    Args:
        values: [n], as stored.
        dtype: what :func:`check` returned.
        metric, run: for the message.

    Raises:
        ValueRangeError: an integer outside the range of the requested integer type.
        ConversionError: a fraction, an infinity or NaN that was requested as an integer.
        DtypeError: JSON values that were requested as integers.
    """
    target = result_dtype(dtype, values.dtype)
    if target == values.dtype:
        return values
    where = f"metric {metric!r} (run {run!r})"
    if target.kind in "iu":
        _check_integers(values, target, where)
    try:
        return values.astype(target)
    except (TypeError, ValueError) as error:
        error.add_note(f"while converting {where} from {values.dtype} to {target}")
        raise


def _check_integers(values: Array, target: np.dtype[Any], where: str) -> None:
    if values.dtype.kind not in "biuf":
        raise DtypeError(f"{where} holds {values.dtype} values, which cannot be read as {target}")
    if not len(values) or values.dtype.kind == "b":
        return
    info = np.iinfo(target)
    if values.dtype.kind == "f":
        broken = values[~np.isfinite(values) | (values != np.trunc(values))]
        if len(broken):
            raise ConversionError(f"{where} holds {broken[0]}, which is not an integer: read it as a float")
    low, high = values.min(), values.max()
    # int() because comparing a float64 with the largest int64 would round the latter up
    if int(low) < info.min or int(high) > info.max:
        outside = low if int(low) < info.min else high
        raise ValueRangeError(
            f"{where} holds {outside}, which does not fit {target}: read it with a wider dtype, "
            "dtype=object or dtype='storage'"
        )
