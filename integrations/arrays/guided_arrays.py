"""CFG and the cap for NumPy, JAX, MLX, PyTorch, or any array of the array API standard.

    m_c, m_u   posterior means with and without the condition; the first axis counts samples
    v_c, v_u   velocities on the linear path x = (1 - t) noise + t data, m = x + (1 - t) v
    scale      the nominal guidance scale, 1 is conditional; a number, or one for each sample
    gamma      how much longer guidance may make the mean, at least 1; infinity is plain CFG
    form       "ball": |m| <= gamma |m_c|; "displacement": |m - m_c| <= (gamma - 1) |m_c|

This is `CFG(scale) | Cap(gamma)` of the library in one short file: pure functions, no branches on values, so
that `jax.jit`, `jax.grad`, `jax.vmap` and `mx.compile` follow them. The file imports the standard library
alone: copy it into a project that has no PyTorch. Tests compare the two on every kind of array.

    import jax.numpy as jnp
    from guided_arrays import guided_velocity

    v = guided_velocity(x, t, v_c, v_u, scale=7.0, gamma=1.1)
"""

from __future__ import annotations

import importlib
import math
from typing import Any

Array = Any  # what `_namespace` knows: numpy.ndarray, jax.Array, mlx.core.array, torch.Tensor, ...


def guided_mean(m_c: Array, m_u: Array, scale: Any, gamma: Any = math.inf, *, form: str = "ball") -> Array:
    """m_c + s (scale - 1) (m_c - m_u), with the largest share s in [0, 1] that the cap allows."""
    xp, m, u = _working(m_c, m_u)
    c = _each(xp, scale, m) - 1
    share = cap_fraction(m, c * (m - u), gamma, form=form)
    return _cast(xp, _moved(xp, m, u, c * _each(xp, share, m)), m_c.dtype)


def guided_velocity(
    x: Array, t: Any, v_c: Array, v_u: Array, scale: Any, gamma: Any = math.inf, *, form: str = "ball"
) -> Array:
    """The same for velocities: the share is found on the means, and applied to the network's output."""
    xp, state, v, u = _working(x, v_c, v_u)
    left = 1 - _each(xp, t, v)
    c = _each(xp, scale, v) - 1
    share = cap_fraction(state + left * v, left * c * (v - u), gamma, form=form)
    return _cast(xp, _moved(xp, v, u, c * _each(xp, share, v)), v_c.dtype)


def cap_fraction(m: Array, g: Array, gamma: Any, *, form: str = "ball") -> Array:
    """The largest s in [0, 1] with m + s g inside the cap, one for each sample; 1 where g = 0.

    A share below 1 gives up four units of the working precision to rounding.
    """
    if form not in ("ball", "displacement"):
        raise ValueError(f"a cap has the form 'ball' or 'displacement'; got {form!r}")
    if isinstance(gamma, (int, float)) and not gamma >= 1:
        raise ValueError(f"a cap needs gamma >= 1 (1 forbids any growth of the mean); got {gamma}")
    xp, m, g = _working(m, g)
    margin = 4 * float(xp.finfo(m.dtype).eps)
    (y, y_unit), (d, d_unit) = _scaled(xp, m), _scaled(xp, g)
    y_norm, d_norm = _root(xp, xp.sum(y * y, axis=1)), _root(xp, xp.sum(d * d, axis=1))
    none, point = d_norm == 0, y_norm == 0
    y_norm, d_norm = xp.where(point, 1.0, y_norm), xp.where(none, 1.0, d_norm)
    # Lengths in units of |m|: only their ratio can leave the range, and a huge one means a share of 1.
    y_unit = xp.where(point, 0.0, y_unit)
    d_unit = xp.where(d_unit < 1e-30 * y_unit, 1e-30 * y_unit, d_unit)
    ratio = (y_unit / d_unit) * (y_norm / d_norm)
    bound = _each(xp, gamma, ratio)
    endless = bound == math.inf
    bound = xp.where(endless, 2.0, bound)
    if form == "ball":
        square = (bound - 1) * (bound + 1)
        along = xp.sum(y * d, axis=1) / (y_norm * d_norm)
        reach = _root(xp, along * along + square)
        # Pointing outward, reach - along cancels; its conjugate does not.
        outward = along > 0
        far = square / xp.where(outward, along + reach, 1.0)
        room = xp.where(outward, far, reach - along)
    else:
        room = bound - 1
    share = ratio * room
    share = xp.where(share < 1, share * (1 - margin), xp.where(share >= 1, 1.0, share))
    return xp.where(none | endless, 1.0, share)


def _namespace(array: Array) -> Any:
    """The module whose functions work on this array."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    name = type(array).__module__.split(".")[0]
    if name not in ("torch", "mlx", "numpy"):
        raise TypeError(f"arrays of NumPy, JAX, MLX, PyTorch or the array API are needed; got {type(array)}")
    return importlib.import_module({"mlx": "mlx.core"}.get(name, name))


def _working(*arrays: Array) -> tuple[Any, ...]:
    """The namespace, and the arrays in float64 if one of them has it, in float32 otherwise."""
    xp = _namespace(arrays[0])
    dtype = xp.float64 if any(array.dtype == xp.float64 for array in arrays) else xp.float32
    return (xp, *(_cast(xp, array, dtype) for array in arrays))


def _cast(xp: Any, array: Array, dtype: Any) -> Array:
    if array.dtype == dtype:
        return array
    if hasattr(xp, "astype"):
        return xp.astype(array, dtype)
    return array.to(dtype) if hasattr(array, "to") else array.astype(dtype)


def _each(xp: Any, number: Any, like: Array) -> Array:
    """A number for all samples, or one for each, in the shape that multiplies `like`."""
    zeros = xp.zeros_like(xp.reshape(like, (like.shape[0], -1))[:, 0])
    number = number if isinstance(number, (int, float)) else _cast(xp, number, like.dtype)
    return xp.reshape(zeros + number, (like.shape[0], *[1] * (len(like.shape) - 1)))


def _scaled(xp: Any, array: Array) -> tuple[Array, Array]:
    """Samples as rows, divided by their largest element, so that squares stay in range; and that element."""
    rows = xp.reshape(array, (array.shape[0], -1))
    largest = xp.amax if hasattr(xp, "amax") else xp.max  # torch.max has another meaning
    unit = largest(xp.abs(rows), axis=1)
    unit = xp.where(unit == 0, 1.0, unit)
    return rows / unit[:, None], unit


def _root(xp: Any, square: Array) -> Array:
    """The square root, with slope 0 at 0: an infinite one would make NaN of derivatives that are finite."""
    return xp.where(square == 0, 0.0, xp.sqrt(xp.where(square == 0, 1.0, square)))


def _moved(xp: Any, c_side: Array, u_side: Array, coefficient: Array) -> Array:
    """c_side + coefficient (c_side - u_side); exactly c_side at 0, whatever the other side holds."""
    return xp.where(coefficient == 0, c_side, c_side + coefficient * (c_side - u_side))
