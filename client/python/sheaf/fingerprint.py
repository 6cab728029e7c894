# SPDX-License-Identifier: Apache-2.0
"""What a transform is, as a digest that is the same in every process.

Two things have one print if they are of the same code and the same values:
functions by module, name, code, defaults, closure and the globals that they
use (of a namespace, what they take out of it; not loggers, the environment and
Sheaf's own); objects by class and state;
tensors and arrays by their bytes. What comes with Python or was installed
counts with its release.

Order counts in lists, and in dicts that hold more than plain values (steps);
not among attributes, keyword arguments and plain settings. Numbers are values
(0.50 is 0.5), but 1, 1.0 and True are three.

What has no print that is the same elsewhere is a ValueError: sockets, locks,
handles, and generators of random numbers, whose state would make a batch
depend on who prepares it.
"""

from __future__ import annotations

import copyreg
import ctypes
import dis
import functools
import hashlib
import importlib.metadata
import logging
import os
import random
import sys
import types
from typing import Any, Callable, Iterator

_FORMAT = "1"
_DEPTH_MAX = 100
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# Made by Python, or different from one process to the next.
_NOT_CODE = frozenset(
    "__dict__ __weakref__ __module__ __doc__ __annotations__ __qualname__ "
    "__firstlineno__ __static_attributes__ __abstractmethods__ _abc_impl "
    "__parameters__ __orig_bases__ __dataclass_fields__ __slots__ "
    "__annotate__ __annotate_func__ __annotations_cache__ "
    "__classdictcell__".split()
)


class _Unstable(Exception):
    """No print is the same elsewhere; says of what."""


class _OwnNumbers(_Unstable):
    """It would make a batch depend on who prepares it."""


def fingerprint(thing: Any) -> str:
    """32 hex digits. ValueError: it has no print that is the same in every
    process."""
    try:
        return _Printer().whole(thing)[:32]
    except (_Unstable, RecursionError) as error:
        why = str(error)
        if isinstance(error, RecursionError):
            why = "it is nested too deeply"
        raise ValueError(
            f"{label(thing)} has no fingerprint that is the same in all jobs: "
            f"{why}; give transform_id=TEXT, a text that changes whenever "
            "what it prepares does"
        ) from None


def label(thing: Any) -> str:
    """Names it for people: at most 100 bytes."""
    if isinstance(thing, functools.partial):
        return f"partial({label(thing.func)[:90]})"
    name = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    return ascii(name)[1:-1][:100]


def release_of(module: str) -> str:
    """Of what a module came with; "": it is code of the user."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return "python " + ".".join(map(str, sys.version_info[:3]))
    loaded = sys.modules.get(top)
    file = getattr(loaded, "__file__", None) or ""
    if "/site-packages/" not in file and "/dist-packages/" not in file:
        return ""
    version = getattr(loaded, "__version__", None)
    if version is None:
        try:
            version = importlib.metadata.version(top)
        except importlib.metadata.PackageNotFoundError:
            version = "?"
    return f"{top} {version}"


def _module(name: Any) -> str:
    # __mp_main__: the same, in a process that was spawned. Classes of
    # extensions may have anything there.
    if not isinstance(name, str):
        return ""
    return "__main__" if name == "__mp_main__" else name


def _digest(kind: str, *parts: str | bytes) -> str:
    """Of a kind and parts, none of which runs into the next."""
    total = hashlib.sha256(f"{_FORMAT}/{kind}".encode())
    for part in parts:
        if isinstance(part, str):
            part = part.encode("utf-8", "surrogatepass")
        total.update(b"%d:" % len(part))
        total.update(part)
    return total.hexdigest()


def _is_plain(value: Any) -> bool:
    """Settings: no code, so no order of execution."""
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    return type(value) in _PLAIN


def _own_numbers(thing: Any) -> _Unstable:
    return _OwnNumbers(
        f"a {type(thing).__qualname__} in it has a state of its own, so that "
        "numbers would depend on who prepares (use sheaf.rng() or the global "
        "generators, which are seeded for each batch)"
    )


# ---- what functions use ----


def _uses(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """Globals that a function and those in it look up, each with the
    attributes that are then taken of it."""
    chain: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            if chain:
                yield chain
            chain = (step.argval,)
        elif chain and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain = (*chain, step.argval)
        elif chain and step.opname != "EXTENDED_ARG":
            yield chain
            chain = ()
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _uses(const)


def _resolve(names: tuple[str, ...], namespace: dict[str, Any]) -> Any:
    """What a function takes: out of modules of the user, and of objects that
    hold settings, the very thing."""
    value = namespace[names[0]]
    for name in names[1:]:
        if isinstance(value, types.ModuleType):
            if release_of(value.__name__):
                return value
        elif isinstance(value, type) or callable(value):
            return value
        inner = getattr(value, "__dict__", {})
        if name not in inner:
            return value
        value = inner[name]
    return value


class _Printer:
    """Prints of values, and of the functions and classes that they refer to.

    Those are printed once each, beside the value: they use one another in
    circles, and often."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # what is being printed: its depth
        self._referred: dict[int, Any] = {}
        self._queue: list[Any] = []

    def whole(self, thing: Any) -> str:
        """Of a thing and all that it refers to."""
        first = self.print(thing)
        others = set()
        while self._queue:
            other = self._queue.pop()
            if isinstance(other, type):
                others.add(self._class(other))
            else:
                others.add(self._function(other))
        return _digest("whole", first, *sorted(others))

    def _refer(self, thing: Any) -> str:
        if id(thing) not in self._referred:
            self._referred[id(thing)] = thing
            self._queue.append(thing)
        module = _module(thing.__module__)
        return _digest("refer", module, thing.__qualname__, release_of(module))

    def print(self, thing: Any) -> str:
        """Of a value."""
        if type(thing) in _PLAIN or thing is Ellipsis:
            return _of_plain(thing)
        if id(thing) in self._open:
            back = len(self._open) - self._open[id(thing)]
            return _digest("back", str(back))
        if len(self._open) > _DEPTH_MAX:
            raise RecursionError
        self._open[id(thing)] = len(self._open)
        try:
            return self._of(thing)
        finally:
            del self._open[id(thing)]

    def _of(self, thing: Any) -> str:
        for kinds, way in _WAYS:
            if isinstance(thing, kinds):
                return way(self, thing)
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None:
            if isinstance(thing, torch.Generator):
                return self._random(thing)
            if (
                isinstance(thing, torch.Tensor)
                and thing.layout is torch.strided
                and not thing.is_quantized
            ):
                return _of_tensor(thing)
        if numpy is not None:
            generators = numpy.random.Generator, numpy.random.RandomState
            if isinstance(thing, generators):
                return self._random(thing)
            if isinstance(thing, (numpy.ndarray, numpy.generic)):
                return self._array(numpy, thing)
        return self._object(thing)

    # ---- containers ----

    def _sequence(self, items: Any) -> str:
        if type(items) not in (list, tuple):
            return self._object(items)
        return _digest(type(items).__name__, *map(self.print, items))

    def _set(self, items: Any) -> str:
        prints = sorted(map(self.print, items))
        return _digest(type(items).__qualname__, *prints)

    def _dict(self, items: Any) -> str:
        if type(items) is not dict:
            return self._object(items)
        return self._pairs(items, all(map(_is_plain, items.values())))

    def _pairs(self, items: Any, any_order: bool) -> str:
        pairs = [self.print(k) + self.print(v) for k, v in items.items()]
        return _digest("dict", *(sorted(pairs) if any_order else pairs))

    def _partial(self, thing: Any) -> str:
        return _digest(
            "partial",
            self.print(thing.func),
            self.print(list(thing.args)),
            self._pairs(thing.keywords, True),
        )

    def _array(self, numpy: Any, array: Any) -> str:
        values, kind = numpy.asarray(array), type(array).__qualname__
        shape = str(values.shape)
        if values.dtype.hasobject:
            return _digest(kind, shape, self.print(values.tolist()))
        dtype = str(values.dtype.descr)
        return _digest(kind, dtype, shape, values.tobytes())

    def _random(self, thing: Any) -> str:
        if not _is_global_random(thing):
            raise _own_numbers(thing)
        return _digest("random numbers")

    # ---- code ----

    def _code(self, code: types.CodeType) -> str:
        count = code.co_argcount + code.co_kwonlyargcount
        return _digest(
            "code",
            code.co_code,
            code.co_exceptiontable,
            *map(self.print, code.co_consts),
            "names",
            *code.co_names,
            "variables",
            *code.co_varnames[:count],
            *code.co_freevars,
            *code.co_cellvars,
            f"{code.co_argcount} {code.co_posonlyargcount} "
            f"{code.co_kwonlyargcount} {code.co_flags & 0x2F}",
        )

    def _function(self, thing: Any) -> str:
        module = _module(thing.__module__)
        release = release_of(module)
        code = thing.__code__
        parts = [module, thing.__qualname__, release, self._code(code)]
        parts.append(self.print(list(thing.__defaults__ or ())))
        parts.append(self._pairs(thing.__kwdefaults__ or {}, True))
        for name, cell in zip(code.co_freevars, thing.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:
                continue  # nothing is in it yet
            parts.append(name + self.print(value))
        if not release:
            for names in sorted(set(_uses(code))):
                if names[0] in thing.__globals__:
                    value = _resolve(names, thing.__globals__)
                    parts.append(".".join(names) + self._beside(value))
        return _digest("function", *parts)

    def _beside(self, value: Any) -> str:
        """Of a global, or of what a class has. What has no print (files,
        locks) counts by its kind, and so does what differs without a
        meaning."""
        if isinstance(value, (staticmethod, classmethod)):
            return type(value).__name__ + self._beside(value.__func__)
        if isinstance(value, property):
            parts = value.fget, value.fset, value.fdel
            return "property" + "".join(map(self._beside, parts))
        if isinstance(value, functools.cached_property):
            return "cached" + self._beside(value.func)
        if isinstance(value, types.FunctionType):
            return self._refer(value)
        if (
            isinstance(value, (random.Random, types.ModuleType))
            or callable(value)
            or _is_plain(value)
        ):
            return self.print(value)
        if not _is_surroundings(value):
            try:
                return self.print(value)
            except _OwnNumbers:
                raise
            except (_Unstable, RecursionError):
                pass
        return _module(type(value).__module__) + type(value).__qualname__

    def _class(self, thing: Any) -> str:
        module = _module(thing.__module__)
        release = release_of(module)
        parts = [module, thing.__qualname__, release]
        parts += map(self._refer, thing.__bases__)
        if not release:
            parts.append(self._refer(type(thing)))
        for name, value in sorted(vars(thing).items()):
            if release:
                if isinstance(value, types.FunctionType):
                    parts.append(name + self._code(value.__code__))
            elif name not in _NOT_CODE:
                parts.append(name + self._beside(value))
        return _digest("class", *parts)

    def _method(self, thing: Any) -> str:
        return _digest(
            "method", self.print(thing.__func__), self.print(thing.__self__)
        )

    def _builtin(self, thing: Any) -> str:
        module, owner = _module(thing.__module__), thing.__self__
        parts = [module, thing.__qualname__, release_of(module)]
        if owner is None or isinstance(owner, types.ModuleType):
            return _digest("builtin", *parts)
        return _digest("builtin", *parts, self.print(owner))

    def _of_module(self, thing: Any) -> str:
        return _digest("module", thing.__name__, release_of(thing.__name__))

    # ---- objects ----

    def _object(self, thing: Any) -> str:
        kind = type(thing)
        try:
            reduce = copyreg.dispatch_table.get(kind)
            made = reduce(thing) if reduce else thing.__reduce_ex__(4)
        except Exception as error:
            raise _Unstable(f"a {kind.__qualname__} in it: {error}") from None
        if isinstance(made, str):  # a global of that name
            wrapped = getattr(thing, "__wrapped__", None)
            return _digest(
                "global", self._refer(kind), made, self.print(wrapped)
            )
        maker, arguments, state, items, pairs = (*made, None, None, None)[:5]
        parts = [self._refer(kind), self.print(maker)]
        parts += [self.print(a) for a in arguments if a is not kind]
        for part in state if isinstance(state, tuple) else (state,):
            if type(part) is dict:
                parts.append(self._pairs(part, True))
            else:
                parts.append(self.print(part))
        parts += [self.print(item) for item in items or ()]
        parts += [self.print(k) + self.print(v) for k, v in pairs or ()]
        return _digest("object", *parts)


_WAYS: list[tuple[Any, Callable[[_Printer, Any], str]]] = [
    ((list, tuple), _Printer._sequence),
    ((set, frozenset), _Printer._set),
    (dict, _Printer._dict),
    (functools.partial, _Printer._partial),
    (types.FunctionType, _Printer._function),
    (types.MethodType, _Printer._method),
    (types.BuiltinFunctionType, _Printer._builtin),
    (types.CodeType, _Printer._code),
    (types.ModuleType, _Printer._of_module),
    (type, _Printer._refer),
    (random.Random, _Printer._random),
]


def _of_plain(thing: Any) -> str:
    kind = type(thing).__name__
    if isinstance(thing, float):
        return _digest(kind, thing.hex())
    if isinstance(thing, complex):
        return _digest(kind, thing.real.hex(), thing.imag.hex())
    if isinstance(thing, (bytes, str)):
        return _digest(kind, thing)
    return _digest(kind, repr(thing))


def _of_tensor(tensor: Any) -> str:
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    size = flat.numel() * flat.element_size()
    return _digest(
        type(tensor).__qualname__,
        str(tensor.dtype),
        str(tuple(tensor.shape)),
        ctypes.string_at(flat.data_ptr(), size) if size else b"",
    )


def _is_surroundings(value: Any) -> bool:
    """What differs between jobs that prepare the same."""
    kinds = logging.Logger, logging.LoggerAdapter, type(os.environ)
    if isinstance(value, kinds):
        return True
    return type(value).__module__.partition(".")[0] == "sheaf"


def _is_global_random(owner: Any) -> bool:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and owner is torch.default_generator:
        return True
    if numpy is not None and owner is numpy.random.mtrand._rand:
        return True
    return owner is random._inst
