"""A rule applied in a host, from call to call, and the record of a run.

A rule that only caps keeps the host's nominal output and moves it towards the conditional one; other chains
replace it (`meancap.rules.respond`). `listen` observes the calls of a module and `override` replaces a method
of one object; several callers may do so and undo it in any order, since each removes only its own.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..path import Affine
from ..prediction import Prediction
from ..record import Record
from ..rules import Rule, Stepper, parse
from ..sampling.checks import need_scale_first
from ..tensors import promoted

Undo = Callable[[], None]
_Hear = Callable[[tuple[Any, ...], dict[str, Any], Any], None]


class RunRecord(Record):
    """What guidance did in the latest call of a pipeline: per sample and evaluation, and in one line."""

    def __init__(self) -> None:
        self.beside: list[RunRecord] = []  # of the other states of the run, where it has any: its audio
        self.restart()

    def restart(self) -> None:
        """Clears the previous run; every call of a pipeline is a separate run."""
        super().__init__()
        self.about: dict[str, Any] = {}  # pipeline, rule, scheduler, grid: what the numbers belong to
        self.idle = "no step was made yet"  # why the record is empty, where it is
        self.unguided = 0  # steps for which the host made one prediction only
        self.remark = ""  # what else a reader of the numbers must know
        self.shares = False  # whether `scale` is 1 plus the share that is kept of the host's own guidance

    def summary(self) -> str:
        """One line: the requested and the applied scale, and the steps that were not guided."""
        if not len(self):
            return f"nothing was guided: {self.idle}"
        unguided = f"; {self.unguided} more steps were not guided" if self.unguided else ""
        return super().summary() + unguided + (f"; {self.remark}" if self.remark else "")

    def _scale_text(self, s: Mapping[str, Tensor]) -> str:
        if not self.shares:
            return super()._scale_text(s)
        kept = (s["scale"] - 1).nan_to_num()
        low, high = (f"{float(v):.0%}" for v in (kept.min(), kept.max()))
        return f"kept {high if low == high else f'{low} to {high}'} of the host's own guidance"

    def rows(self) -> list[dict[str, float | int | bool]]:
        """One flat row per evaluation and sample; none if nothing was guided."""
        return super().rows() if len(self) else []

    def contents(self) -> dict[str, Any]:
        """What a JSON file of the record holds."""
        beside = {"beside": [one.contents() for one in self.beside]} if self.beside else {}
        return {"about": self.about, **super().contents(), **beside}

    def _figure(self) -> Any:
        """The meter over time, under the rule and the summary."""
        if len(self):
            figure = super()._figure()
        else:
            from matplotlib.figure import Figure

            figure = Figure()
        figure.suptitle(f"{self.about.get('rule', '')}\n{self.summary()}", fontsize=9)
        return figure


def need_cap_inside(rule: Rule, outer: Rule) -> None:
    """Raises an error if the rule of an inner block would replace what the outer block made."""
    if not rule.caps:
        raise ValueError(
            f"{rule} inside a block of {outer} would replace its result, so the outer record would be wrong "
            f"and nothing it caps would be bounded; use one block, such as guided(pipe, 'CFG(7) | Cap(1.1)')"
        )


class Session:
    """One rule, its state between steps, and the record of what it did."""

    def __init__(self, rule: Rule | str, record: RunRecord | None = None) -> None:
        if isinstance(rule, str):
            rule = parse(rule)
        if not isinstance(rule, Rule):
            raise TypeError(
                f"a rule is needed, such as Cap(1.1) or CFG(7) | Cap(1.1); got {type(rule).__name__}"
            )
        need_scale_first(rule)
        self.rule = rule
        self.record = RunRecord() if record is None else record
        self._stepper = Stepper(rule)
        self._beside: list[Session] = []
        self.begin()

    def begin(self) -> None:
        """Starts a new run: clears the rule's state and the record."""
        self._stepper.begin()
        self.record.restart()
        for other in self._beside:
            other.begin()

    def stream(self, index: int) -> Session:
        """The session of one of the states of a run, such as its audio; the first state is this session's."""
        while len(self._beside) < index:
            self._beside.append(Session(self.rule))
            self.record.beside.append(self._beside[-1].record)
        return self._beside[index - 1] if index else self

    def is_idle(self, t: float, *, first: bool = True) -> bool:
        """Whether the rule returns the conditional output at time t, so that a host may skip the other one.

        A host that skips it passes the conditional output in its place, so that the rule's state advances.
        """
        return not self.rule.caps and self._stepper.idle(t, first=first)

    def guide(
        self, how: Affine, x: Tensor, c: Tensor, u: Tensor, nominal: Tensor, *, first: bool = True,
        others: Mapping[str, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """The guided output, in the dtype of `nominal`. `first` is False in the later stages of one step.

        `others` are further outputs of the host by name, for rules that need them.
        """
        with torch.no_grad():
            p = Prediction.from_affine(x, c, u, how)
            if others and self.rule.needs:
                p = p.beside(**others)
            return self._stepper.output(p, nominal, first=first, record=self.record)

    def limit(self, how: Affine, x: Tensor, c: Tensor, nominal: Tensor, *, first: bool = True) -> Tensor:
        """Caps what a host made of its predictions by any formula: the conditional one is enough.

        The record measures the host's own guidance: its gap is |m - m_c| for the host's mean m, and its scale
        is 2 if all of it is kept and 1 if none is.
        """
        self.record.shares = True
        return self.guide(how, x, c, 2 * promoted(c) - promoted(nominal), nominal, first=first)

    def need_caps(self, name: str) -> None:
        """Raises unless the rule only caps and reads no unconditional mean."""
        if not self.rule.caps or any(part.reads_m_u for part in self.rule.parts):
            raise ValueError(
                f"{name} guides by a formula of its own, on whose result only a cap can act, such as "
                f"Cap(1.1) or CapDisplacement(1.15); got {self.rule}"
            )


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
