"""``@node``: a typed function as a node. Reads what each parameter is from its annotation.

A parameter annotated with a role Protocol of ``stretto.roles.ROLES`` is a role, which the runtime binds. One of a
setting type (``stretto.graph.annotations.is_setting``) is a setting. Every other one is an input edge, optional if it
has a default; ``*name`` takes any number of edges. Owns nothing about how nodes are joined into a graph.
"""

import functools
import inspect
import sys
import typing
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any, Generic, Literal, Protocol, TypeVar, cast, overload

from stretto.errors import GraphError, nearest
from stretto.graph.annotations import across_type, classes_of, has_role, is_setting, role_of, type_name
from stretto.imports import import_named

__all__ = ["MODEL_ROLES", "Node", "Param", "find_object", "node", "use_of"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

MODEL_ROLES = frozenset({"generate", "score", "train"})
"""The roles that are on a Model; the others are services of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """A parameter of a node. ``across``: it takes the groups of a step (``tuple[Group, ...]``)."""

    name: str
    kind: Literal["role", "setting", "input"]
    type: object
    role: str | None
    required: bool
    default: object
    variadic: bool
    across: bool


class Recorder(Protocol):
    """What a node is called on while a workflow is traced."""

    def record(self, called: "Node[Any]", args: tuple[object, ...], kwargs: dict[str, object], at: FrameType) -> object:
        """Take the call down, and give the edge that stands for its result."""
        ...


TRACING: ContextVar[Recorder | None] = ContextVar("stretto_tracing", default=None)
"""The trace in progress, if any."""


class Node(Generic[R_co]):
    """A typed function that may stand in a workflow. Outside a workflow, calling it calls the function.

    ``model`` is the Model of its roles where the call doesn't say ``on=``.
    """

    def __init__(self, function: Callable[..., R_co], *, on: str | None = None, at: FrameType | None = None) -> None:
        if not isinstance(function, FunctionType):
            raise GraphError(f"@node wraps a function, got {function!r}. Put it on a def.")
        functools.update_wrapper(self, function)
        self.function: Callable[..., R_co] = function
        self.name = function.__name__
        self.model = on or "policy"
        self.is_async = inspect.iscoroutinefunction(function)
        # Annotations may name things defined further down, or local to the caller: try now, and once more at first use.
        self._hints: dict[str, object] | None = None
        try:
            self._hints = typing.get_type_hints(function, localns=dict(at.f_locals) if at is not None else None)
        except NameError:
            pass
        else:
            _ = self.params
        if on is not None and self._hints is not None and not self.has_model:
            raise GraphError(f"node {self.name!r} is on={on!r} and has no role on a Model. Leave on= out.")

    def __repr__(self) -> str:
        return f"<node {use_of(self)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> R_co:
        recorder = TRACING.get()
        if recorder is None:
            return self.function(*args, **kwargs)
        return cast(R_co, recorder.record(self, args, kwargs, caller()))

    @property
    def hints(self) -> Mapping[str, object]:
        """The resolved annotations."""
        if self._hints is None:
            try:
                self._hints = typing.get_type_hints(self.function)
            except NameError as error:
                raise GraphError(
                    f"node {self.name!r}: an annotation names {error.name!r}, which is not defined where the function "
                    "is. Import or define it at the top of the module."
                ) from None
        return self._hints

    @functools.cached_property
    def params(self) -> Mapping[str, Param]:
        """Its parameters by name, in order."""
        signature = inspect.signature(self.function)
        return {name: self._param(parameter) for name, parameter in signature.parameters.items()}

    @functools.cached_property
    def output(self) -> object:
        """The type it returns."""
        if "return" not in self.hints:
            raise GraphError(
                f"node {self.name!r} doesn't say what it returns. Annotate it, as in def {self.name}(...) -> Batch."
            )
        return self.hints["return"]

    @functools.cached_property
    def output_classes(self) -> tuple[type, ...]:
        """Of which of these classes what it returns is an instance."""
        return classes_of(self.output)

    @functools.cached_property
    def has_model(self) -> bool:
        """Whether any of its roles is on a Model."""
        return any(param.role in MODEL_ROLES for param in self.params.values())

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The signature by which a workflow calls it: without roles."""
        signature = inspect.signature(self.function)
        kept = [p for name, p in signature.parameters.items() if self.params[name].kind != "role"]
        return signature.replace(parameters=kept)

    def of_kind(self, *kinds: str) -> list[str]:
        """The names of its parameters of these kinds."""
        return [param.name for param in self.params.values() if param.kind in kinds]

    def run(self, inputs: Mapping[str, object], roles: Mapping[str, object], settings: Mapping[str, object]) -> Any:
        """Call the function with values by name (``*name`` takes its tuple); absent ones keep their default."""
        if not self._in_place:
            return self.function(**inputs, **roles, **settings)
        given = {**inputs, **roles, **settings}
        args: list[object] = []
        for name in self._in_place:
            param = self.params[name]
            value = given.pop(name, () if param.variadic else param.default)
            if param.variadic:
                args.extend(cast(tuple[object, ...], value))
            else:
                args.append(value)
        return self.function(*args, **given)

    async def run_async(
        self, inputs: Mapping[str, object], roles: Mapping[str, object], settings: Mapping[str, object]
    ) -> Any:
        """As ``run``, for functions of both kinds, awaited."""
        value = self.run(inputs, roles, settings)
        return await value if self.is_async else value

    @functools.cached_property
    def _in_place(self) -> tuple[str, ...]:
        # Parameters that must be passed by position: those before *name, and positional-only ones.
        parameters = list(inspect.signature(self.function).parameters.values())
        last = max((i for i, p in enumerate(parameters) if p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY)), default=-1)
        return tuple(p.name for p in parameters[: last + 1])

    def _param(self, parameter: inspect.Parameter) -> Param:
        name, who = parameter.name, f"node {self.name!r}"
        if parameter.kind is parameter.VAR_KEYWORD:
            raise GraphError(f"{who} takes **{name}, so its inputs have no types. Name every parameter.")
        if name == "on":
            raise GraphError(f"{who} has a parameter called 'on', which is how a call names a Model. Rename it.")
        if name not in self.hints:
            raise GraphError(f"{who}: parameter {name!r} has no type. Annotate it, for example {name}: Batch.")
        kind = self.hints[name]
        role, variadic = role_of(kind), parameter.kind is parameter.VAR_POSITIONAL
        if has_role(kind) and (role is None or variadic or parameter.default is not parameter.empty):
            raise GraphError(
                f"{who}: parameter {name!r} ({type_name(kind)}) asks for a role, and a role is always given: it can "
                "be neither optional nor part of a union. Write the role alone, without a default."
            )
        setting = role is None and is_setting(kind) and not variadic
        required = not variadic and parameter.default is parameter.empty
        return Param(
            name=name,
            kind="role" if role is not None else "setting" if setting else "input",
            type=kind,
            role=role,
            required=required,
            default=None if parameter.default is parameter.empty else parameter.default,
            variadic=variadic,
            across=across_type(kind),
        )


@overload
def node(function: Callable[..., Awaitable[Any]], /) -> Node[Any]: ...
@overload
def node(function: Callable[..., R], /) -> Node[R]: ...
@overload
def node(*, on: str) -> Callable[[Callable[..., R]], Node[R]]: ...
def node(function: Callable[..., Any] | None = None, /, *, on: str | None = None) -> Any:
    """Make a typed function a node: ``@node``, or ``@node(on="reference")`` to name the Model of its roles.

    Example::

        @node
        def longest(group: Group, *, keep: int = 4) -> Group:
            ...
    """
    at = caller()
    if function is not None:
        return Node(function, at=at)

    def wrap(wrapped: Callable[..., Any]) -> Node[Any]:
        return Node(wrapped, on=on, at=at)

    return wrap


def caller() -> FrameType:
    """The frame from which the function that asks was called."""
    here = inspect.currentframe()
    assert here is not None
    assert here.f_back is not None
    assert here.f_back.f_back is not None
    return here.f_back.f_back


def use_of(named: "Node[Any] | HasFunction") -> str:
    """How a node or workflow is named in the written form.

    Those of ``stretto`` itself by their bare name; others ``module:function``; ``python:name`` if that import would
    not give them (``__main__``, closures, lambdas, a name that was bound again).
    """
    function = named.function
    module, name = function.__module__, function.__qualname__
    if module.partition(".")[0] == "stretto":
        return function.__name__
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is named and module != "__main__" else f"python:{name}"


class HasFunction(Protocol):
    """A wrapper of a function."""

    @property
    def function(self) -> FunctionType:
        """What it wraps."""
        ...


def find_object(use: str, what: str) -> object:
    """What ``module:function`` names. ``what`` begins the error's sentence."""
    module_name, _, name = use.partition(":")
    if module_name == "python":
        raise GraphError(
            f"{what} is {use!r}, a function that lived only in the Python that made it. Put it into a module, and "
            "name it module:function."
        )
    try:
        found: object = import_named(module_name)
    except ImportError as error:
        raise GraphError(f"{what} is {use!r}, and {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise GraphError(f"{what} is {use!r}, and there is no {part!r} in it.{nearest(part, vars(found))}")
        found = getattr(found, part)
    return found
