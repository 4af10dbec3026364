"""Observes the calls of a module and overrides a method of one object; both can be undone.

Several callers may attach to one module or one method and detach in any order: each removes only its own.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch import nn

Undo = Callable[[], None]
_Hear = Callable[[tuple[Any, ...], dict[str, Any], Any], None]


def listen(module: nn.Module, hear: _Hear) -> Undo:
    """Calls hear(args, kwargs, output) after every call of a module; returns a function that stops it."""
    if module.__dict__.get("_compiled_call_impl") is not None:
        return _listen_compiled(module, hear)

    def hook(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if called is module:  # a deep copy of the module has this hook too, and is not meant
            hear(args, kwargs, output)

    return module.register_forward_hook(hook, with_kwargs=True).remove


def _listen_compiled(module: Any, hear: _Hear) -> Undo:
    """A hook would be traced into the graph that compile() makes in place, or missed by an earlier graph."""
    compiled = module._compiled_call_impl
    hearers: list[_Hear] | None = getattr(compiled, "hearers", None)
    if hearers is None:
        hearers = []
        module._compiled_call_impl = _heard(compiled, hearers)
    hearers.append(hear)

    def undo() -> None:
        if hear in hearers:
            hearers.remove(hear)
        standing = module.__dict__.get("_compiled_call_impl")
        if not hearers and getattr(standing, "hearers", None) is hearers:
            module._compiled_call_impl = standing.compiled

    return undo


def _heard(compiled: Callable[..., Any], hearers: list[_Hear]) -> Callable[..., Any]:
    @functools.wraps(compiled)
    def heard(*args: Any, **kwargs: Any) -> Any:
        output = compiled(*args, **kwargs)
        for hear in tuple(hearers):
            hear(args, kwargs, output)
        return output

    heard.hearers, heard.compiled = hearers, compiled  # type: ignore[attr-defined]
    return heard


def override(thing: Any, name: str, method: Callable[..., Any]) -> Undo:
    """Replaces a method of one object by `method(original, thing, ...)`; returns a function that undoes it.

    The replacement is bound and keeps the signature: a deep copy of the object carries it bound to the
    copy, and pipelines that look up the arguments of `step` find them. Copy and original share the list of
    methods, so that a method that is removed is removed from both; a method for the copy gets a new list.
    """
    standing = thing.__dict__.get(name)
    methods: list[Callable[..., Any]] | None = getattr(standing, "methods", None)
    if methods is None or (standing.thing is not thing and method not in methods):
        methods = []
        setattr(thing, name, types.MethodType(_overridden(thing, name, methods), thing))
    if method not in methods:
        methods.append(method)

    def undo() -> None:
        if method in methods:
            methods.remove(method)
        standing = thing.__dict__.get(name)
        if methods or getattr(standing, "methods", None) is not methods:
            return
        before = standing.before
        if before is None:
            delattr(thing, name)
        else:
            setattr(thing, name, before)

    return undo


def _overridden(thing: Any, name: str, methods: list[Callable[..., Any]]) -> Callable[..., Any]:
    before, plain = thing.__dict__.get(name), getattr(type(thing), name)

    @functools.wraps(plain)
    def overridden(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(plain, self) if before is None else before
        if getattr(before, "__self__", None) is thing:  # bound to the original, and `self` may be a copy
            call = types.MethodType(before.__func__, self)
        for method in tuple(methods):  # the latest is asked first
            call = functools.partial(method, call, self)
        return call(*args, **kwargs)

    overridden.methods, overridden.before, overridden.thing = methods, before, thing  # type: ignore[attr-defined]
    return overridden
