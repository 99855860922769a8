"""JAX scalars as values; run by ``test_values.py`` where JAX is there, in a process of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from loggers.values import check_step, plain


def test_jax_scalars_become_numbers():
    """A traced value is a problem of its own."""
    import jax
    import jax.numpy as jnp

    values, problems = plain(
        {"a": jnp.float32(0.5), "b": jnp.bfloat16(1.1), "c": jnp.array([3]), "d": jnp.array(True)}
    )
    seen: dict[str, Mapping[str, object]] = {}

    def traced(x):
        seen["values"], seen["problems"] = plain({"x": x, "y": 1.0})
        return x

    jax.jit(traced)(1.0)

    assert problems == {}
    assert values == {"a": 0.5, "b": 1.1015625, "c": 3, "d": 1}
    assert seen["values"] == {"y": 1.0}
    assert "cannot be read: ConcretizationTypeError" in seen["problems"]["x"]
    assert check_step(jnp.int32(7)) == 7


def jax_scalars():
    import jax.numpy as jnp
    import ml_dtypes

    return {
        "f32": jnp.float32(0.1),
        "one": jnp.array([[1.5]]),
        "bf16": jnp.bfloat16(1.1),
        "f16": jnp.float16(65504),
        "f8": jnp.array(0.3, ml_dtypes.float8_e4m3fn),
        "i8": jnp.int8(-5),
        "u16": jnp.uint16(65535),
        "i32": jnp.int32(-(2**31)),
        "u32": jnp.uint32(2**32 - 1),
        "bool": jnp.array(True),
        "inf": jnp.float32(-math.inf),
        "tiny": jnp.float32(1e-45),
        "zero": jnp.float32(-0.0),
    }


def check_packing():
    from loggers._devices import pack_jax, unpack_jax

    arrays = [*jax_scalars().values()]
    assert [repr(n) for n in unpack_jax(pack_jax(arrays), arrays)] == [repr(array.item()) for array in arrays]


def test_jax_scalars_travel_as_one_array():
    """By their bits: every dtype, minus zero, numbers that are not normal."""
    from loggers._devices import pack_jax, unpack_jax

    check_packing()
    nan = [jax_scalars()["f32"] * math.nan]
    assert math.isnan(unpack_jax(pack_jax(nan), nan)[0])


def test_wide_jax_scalars_are_never_narrowed():
    """64-bit arrays go as two words, also if the width was switched off since; words that are missing are seen."""
    import jax
    import jax.numpy as jnp

    from loggers._devices import pack_jax, unpack_jax

    with jax.enable_x64(True):
        wide = [jnp.float64(0.1), jnp.int64(2**62 + 1), jnp.uint64(2**64 - 1), jnp.int32(7)]
        packed = pack_jax(wide)
        check_packing()
    assert unpack_jax(packed, wide) == unpack_jax(pack_jax(wide), wide) == [0.1, 2**62 + 1, 2**64 - 1, 7]
    with pytest.raises(TypeError, match="lost half of their bits"):
        unpack_jax(packed[1:], wide)
    assert plain({"m": wide[0]}) == ({"m": 0.1}, {})


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_one_transfer_however_many_jax_scalars(monkeypatch, platform):
    """From a device that is not the host, which is all that is made up here; on the host nothing is packed."""
    read = []
    arrays = {**jax_scalars(), **{f"m{i}": value for i, value in enumerate(jax_scalars().values())}}
    expected = {name: array.item() for name, array in arrays.items()}
    cls = type(arrays["f32"])
    asarray, item = np.asarray, cls.item

    def counted(value, *args, **kwargs):
        if isinstance(value, cls):
            read.append(value)
        return asarray(value, *args, **kwargs)

    class Device:
        pass

    Device.platform = platform
    monkeypatch.setattr(cls, "devices", lambda array: {Device})
    monkeypatch.setattr(np, "asarray", counted)
    monkeypatch.setattr(cls, "item", lambda array: read.append(array) or item(array))
    values, problems = plain(arrays)

    assert problems == {}
    assert values == expected
    if platform == "gpu":
        assert [(str(array.dtype), array.shape) for array in read] == [("uint32", (len(arrays),))]
    else:
        assert {id(array) for array in read} == {id(array) for array in arrays.values()}


def test_a_jax_array_that_cannot_be_read_costs_only_itself():
    """Deleted, complex, keys: each is named."""
    import jax
    import jax.numpy as jnp

    gone = jnp.float32(2.0) + 1
    gone.delete()
    line = {"a": jnp.float32(0.5), "gone": gone, "z": jnp.complex64(1j), "key": jax.random.key(0)}
    values, problems = plain(line)

    assert values == {"a": 0.5}
    assert problems.keys() == {"gone", "z", "key"}
    assert "has been deleted" in problems["gone"]
