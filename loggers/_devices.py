"""Scalars that live on a device, fetched together: one transfer per call, however many they are.

Reading tensors one by one makes the host wait for the device once per value. Neither torch nor JAX is
ever imported here: a program that has not loaded them has none of their arrays.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loggers._convert import kind, not_a_scalar


def loaded() -> bool:
    """Return whether there can be any such array in this process."""
    return "torch" in sys.modules or "jax" in sys.modules


def fetch(metrics: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[Any, str]]:
    """Fetch every torch and JAX value among ``metrics``.

    Returns:
        name -> Python number, and name -> problem. Names of other values are in neither.
    """
    values: dict[Any, Any] = {}
    problems: dict[Any, str] = {}
    for module, cls_name, read_all in (("torch", "Tensor", _read_torch), ("jax", "Array", _read_jax)):
        # a module that is just being imported may not have its class yet
        cls = getattr(sys.modules.get(module), cls_name, None)
        if cls is None:
            continue
        found = {}
        for name, value in metrics.items():
            if isinstance(value, cls):
                if math.prod(value.shape) == 1:
                    found[name] = value
                else:
                    problems[name] = not_a_scalar(value, tuple(value.shape))
        try:
            values.update(zip(found, read_all(list(found.values())), strict=True))
        except Exception:  # one bad array (traced, on the meta device, deleted): find out which
            for name, value in found.items():
                try:
                    values[name] = value.item()
                except Exception as error:
                    problems[name] = f"got {kind(value)} that cannot be read: {error!r}"
    return values, problems


def _read_jax(arrays: Sequence[Any]) -> list[Any]:
    numbers: list[Any] = [None] * len(arrays)
    by_device: dict[Any, list[int]] = {}
    for i, array in enumerate(arrays):
        devices = array.devices()
        if next(iter(devices)).platform == "cpu":  # as all of one array are
            numbers[i] = array.item()  # it lies in the host's memory already
        else:
            by_device.setdefault(frozenset(devices), []).append(i)
    for places in by_device.values():
        here = [arrays[i] for i in places]
        for i, number in zip(places, unpack_jax(pack_jax(here), here), strict=True):
            numbers[i] = number
    return numbers


def pack_jax(arrays: Sequence[Any]) -> Any:
    """Put size-1 arrays of any dtypes into one array of uint32 on their device, by their bits.

    Compiled once for each sequence of dtypes and shapes.
    """
    return _jax_packer()(tuple(arrays))


@functools.cache
def _jax_packer() -> Any:
    jax: Any = sys.modules["jax"]
    jnp = jax.numpy

    def words(array: Any) -> Any:
        if jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise TypeError("only .item() can read these")
        if array.dtype == jnp.bool_:
            return array.reshape(1).astype(jnp.uint32)
        word = jnp.dtype(f"uint{8 * min(array.dtype.itemsize, 4)}")
        return jax.lax.bitcast_convert_type(array.reshape(()), word).reshape(-1).astype(jnp.uint32)

    return jax.jit(lambda arrays: jnp.concatenate([words(array) for array in arrays]))


def unpack_jax(packed: Any, arrays: Sequence[Any]) -> list[int | float]:
    """Move what :func:`pack_jax` made of ``arrays`` to the host and return their values, in their order."""
    words = np.asarray(packed)  # the one transfer
    sizes = [array.dtype.itemsize for array in arrays]
    if len(words) != sum(max(size // 4, 1) for size in sizes):
        raise TypeError("64-bit arrays have lost half of their bits: jax_enable_x64 is off by now")
    numbers: list[int | float] = []
    start = 0
    for array, size in zip(arrays, sizes, strict=True):
        stop = start + max(size // 4, 1)
        scalar = words[start:stop].astype(f"uint{8 * min(size, 4)}").view(array.dtype)[0]
        numbers.append(scalar.item() if array.dtype.kind in "biu" else float(scalar))
        start = stop
    return numbers


def _read_torch(tensors: Sequence[Any]) -> list[Any]:
    numbers: list[Any] = [None] * len(tensors)
    by_device: dict[Any, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if tensor.is_cpu:
            numbers[i] = tensor.item()  # nothing to wait for, and far faster than packing
        else:
            by_device.setdefault(tensor.device, []).append(i)
    for places in by_device.values():
        here = [tensors[i] for i in places]
        for i, number in zip(places, unpack(pack(here), here), strict=True):
            numbers[i] = number
    return numbers


def pack(tensors: Sequence[Any]) -> Any:
    """Put scalars of any dtypes on one device into one int64 tensor there, by their bits.

    float64 goes as its 64 bits, narrower floats as the 32 bits of their exact float32 (some devices
    have no float64), integers and bools as int64. The order is that of :func:`_by_dtype`.
    """
    torch: Any = sys.modules["torch"]
    parts = []
    for dtype, places in _by_dtype(tensors).items():
        column = [tensors[i].detach().reshape(()) for i in places]
        if dtype.is_complex or column[0].is_quantized:
            raise TypeError("only .item() can read these")
        if dtype.is_floating_point and dtype.itemsize == 1:  # float8 can be converted, not stacked
            column = [scalar.to(torch.float32) for scalar in column]
        stacked = torch.stack(column)
        if dtype == torch.float64 or dtype == torch.uint64:
            parts.append(stacked.view(torch.int64))
        elif dtype.is_floating_point:
            parts.append(stacked.to(torch.float32).view(torch.int32).to(torch.int64))
        else:
            parts.append(stacked.to(torch.int64))
    return torch.cat(parts)


def unpack(packed: Any, tensors: Sequence[Any]) -> list[int | float]:
    """Move what :func:`pack` made of ``tensors`` to the host and return their values, in their order."""
    torch: Any = sys.modules["torch"]
    packed = packed.cpu()  # the one transfer
    numbers: list[int | float] = [0] * len(tensors)
    start = 0
    for dtype, places in _by_dtype(tensors).items():
        bits = packed[start : start + len(places)]
        start += len(places)
        if dtype == torch.float64:
            column = bits.view(torch.float64).tolist()
        elif dtype == torch.uint64:
            column = [number & 0xFFFF_FFFF_FFFF_FFFF for number in bits.tolist()]
        elif dtype.is_floating_point:
            column = bits.to(torch.int32).view(torch.float32).tolist()
        else:
            column = bits.tolist()
        for i, number in zip(places, column, strict=True):
            numbers[i] = number
    return numbers


def _by_dtype(tensors: Sequence[Any]) -> dict[Any, list[int]]:
    places: dict[Any, list[int]] = {}
    for i, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(i)
    return places
