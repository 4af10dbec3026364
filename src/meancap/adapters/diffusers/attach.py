"""Listening to a module and standing before a method, without changing either for good."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch import nn

Undo = Callable[[], None]


Hear = Callable[[tuple[Any, ...], dict[str, Any], Any], None]


def listen(module: nn.Module, hear: Hear) -> Undo:
    """Reports every call of a module, hear(args, kwargs, output); returns how to stop."""
    compiled = module.__dict__.get("_compiled_call_impl")
    if compiled is None:

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            hear(args, kwargs, output)

        return module.register_forward_hook(hook, with_kwargs=True).remove

    # A hook would be traced into the graph that compile() makes in place, or missed by a graph made before.
    @functools.wraps(compiled)
    def heard(*args: Any, **kwargs: Any) -> Any:
        output = compiled(*args, **kwargs)
        hear(args, kwargs, output)
        return output

    module._compiled_call_impl = heard

    def undo() -> None:
        module._compiled_call_impl = compiled

    return undo


def override(thing: Any, name: str, method: Callable[..., Any]) -> Undo:
    """Puts `method(original, thing, ...)` before a method of one object; returns how to take it away.

    The method is bound and keeps its signature: a deep copy of the object carries it bound to the copy, and
    pipelines that look up the arguments of `step` find them.
    """
    before = thing.__dict__.get(name)
    if getattr(before, "method", None) == method:  # on a copy of an object that carried it
        return functools.partial(delattr, thing, name)
    plain = getattr(type(thing), name)

    @functools.wraps(plain)
    def overridden(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = functools.partial(plain, self) if before is None else before
        return method(original, self, *args, **kwargs)

    overridden.method = method  # type: ignore[attr-defined]
    setattr(thing, name, types.MethodType(overridden, thing))

    def undo() -> None:
        if before is None:
            delattr(thing, name)
        else:
            setattr(thing, name, before)

    return undo
