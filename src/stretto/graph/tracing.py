"""``@workflow``: a plain function over nodes, run once on edges instead of values to find the graph in it.

Nodes called while it runs record themselves and give back an Edge. An Edge can be handed to nodes and returned, and
nothing else: Python cannot look at a value that does not exist yet. Ids are the names results are assigned to.
"""

import dis
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any, NoReturn, cast

from stretto.errors import GraphError, nearest
from stretto.graph.annotations import fits, is_setting, type_name
from stretto.graph.building import Draft, Drafted, build_graph
from stretto.graph.nodes import TRACING, Node, find_object, use_of
from stretto.graph.settings import checked
from stretto.graph.specs import PROMPT, Graph
from stretto.types import Prompt

__all__ = ["Edge", "Workflow", "load_workflow", "trace", "workflow"]


class Edge:
    """What a node's call gives while a workflow is traced: a value that will exist when the graph runs."""

    __slots__ = ("_index", "_label", "_trace")

    _trace: "_Trace"
    _index: int
    _label: str

    def __init__(self, trace: "_Trace", index: int, label: str) -> None:
        for name, value in (("_trace", trace), ("_index", index), ("_label", label)):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"<the output of {self._label}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") and name.endswith("__"):
            # Python asks objects for these to learn what they are.
            raise AttributeError(name)
        _refuse(self, f"reads its attribute {name!r}")

    __hash__ = object.__hash__


def _refuse(edge: Edge, does: str) -> NoReturn:
    raise GraphError(
        f"a workflow {does}, of the output of {edge._label}, which does not exist before the graph runs. "  # pyright: ignore[reportPrivateUsage]
        "Put this into a node: a function under @node gets the value itself."
    )


def _refusing(does: str) -> Callable[..., NoReturn]:
    def method(self: Edge, *_: object, **__: object) -> NoReturn:
        _refuse(self, does)

    return method


_ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
for _names, _does in (
    ("bool", "decides on the truth (if, while, and, or, not)"),
    ("iter next reversed aiter anext", "goes over the items"),
    ("len length_hint", "takes the length"),
    ("contains", "looks for something inside"),
    ("getitem setitem delitem", "takes an item"),
    ("setattr delattr", "changes an attribute"),
    ("eq ne lt le gt ge", "makes a comparison"),
    ("int float complex index round trunc floor ceil neg pos abs invert", "computes a number"),
    (_ARITHMETIC, "does arithmetic"),
    (" ".join("r" + name for name in _ARITHMETIC.split()), "does arithmetic"),
    ("call", "makes a call"),
    ("await", "awaits the value"),
    ("enter exit aenter aexit", "enters the context"),
    ("format", "writes text"),
    ("bytes copy deepcopy reduce_ex", "makes a copy"),
):
    for _name in _names.split():
        setattr(Edge, f"__{_name}__", _refusing(_does))


@dataclass(frozen=True, slots=True)
class _Call:
    node: Node[Any]
    edge: Edge
    inputs: Mapping[str, Edge | tuple[Edge, ...]]
    settings: Mapping[str, object]
    on: str | None
    name: str | None
    frames: tuple[FrameType, ...]


class _Trace:
    """Records the calls of nodes while one workflow runs."""

    def __init__(self, root: CodeType) -> None:
        self.root = root
        self.calls: list[_Call] = []
        self.prompt = Edge(self, -1, PROMPT)

    def record(self, called: Node[Any], args: tuple[object, ...], kwargs: dict[str, object], at: FrameType) -> Edge:
        on = kwargs.pop("on", None)
        name = _assigned_name(at, self.root)
        label = f"node {name or called.name!r}" if name is None else f"node {name!r} ({called.name})"
        if on is not None and not isinstance(on, str):
            raise GraphError(f"{label}: on= names a Model, got {on!r}. Write on='reference', for example.")
        inputs, settings = self._sorted(called, label, _bound(called, label, args, kwargs))
        edge = Edge(self, len(self.calls), label)
        self.calls.append(_Call(called, edge, inputs, settings, on, name, _frames(at, self.root)))
        return edge

    def _sorted(
        self, called: Node[Any], label: str, given: Mapping[str, object]
    ) -> tuple[dict[str, Edge | tuple[Edge, ...]], dict[str, object]]:
        inputs: dict[str, Edge | tuple[Edge, ...]] = {}
        settings: dict[str, object] = {}
        for name, value in given.items():
            param = called.params[name]
            if param.variadic:
                assert isinstance(value, tuple)
                inputs[name] = tuple(self._edge(item, label, f"*{name}") for item in cast(tuple[object, ...], value))
            elif isinstance(value, Edge):
                inputs[name] = self._edge(value, label, name)
            elif param.kind == "setting":
                settings[name] = checked(value, param.type, f"{label}: setting {name!r}")
            elif not (value is None and not param.required and param.default is None):
                inputs[name] = self._edge(value, label, name)
        return inputs, settings

    def _edge(self, value: object, label: str, name: str) -> Edge:
        if not isinstance(value, Edge):
            raise GraphError(
                f"{label}: input {name!r} takes the output of a node, got {value!r} ({type(value).__name__}). "
                "Make the value in a node of its own, or give the parameter a setting's type."
            )
        if value._trace is not self:  # pyright: ignore[reportPrivateUsage]
            raise GraphError(
                f"{label}: input {name!r} got {value!r} of another trace. Call the nodes inside this workflow."
            )
        return value

    def drafts(self) -> tuple[tuple[Draft, ...], dict[int, str]]:
        """The calls as drafts, and the id of each edge by its index."""
        ids: dict[int, str] = {-1: PROMPT}
        taken = {PROMPT}
        for index, call in enumerate(self.calls):
            stem = call.name or _local_name(call) or call.node.name
            ids[index] = next(id for id in _numbered(stem) if id not in taken)
            taken.add(ids[index])

        def named(value: Edge | tuple[Edge, ...]) -> str | tuple[str, ...]:
            if isinstance(value, Edge):
                return ids[value._index]  # pyright: ignore[reportPrivateUsage]
            return tuple(ids[edge._index] for edge in value)  # pyright: ignore[reportPrivateUsage]

        return tuple(
            Draft(
                id=ids[index],
                node=call.node,
                inputs={name: named(value) for name, value in call.inputs.items()},
                settings=call.settings,
                on=call.on,
            )
            for index, call in enumerate(self.calls)
        ), ids


def _bound(called: Node[Any], label: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Mapping[str, object]:
    takes = called.of_kind("input", "setting")
    for name in kwargs:
        if name not in takes:
            role = " The runtime binds its roles; use on= to choose the Model." if name in called.params else ""
            raise GraphError(f"{label} has no input or setting {name!r}.{role or nearest(name, takes)}")
    try:
        return called.signature.bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        signature = called.signature.replace(return_annotation=inspect.Signature.empty)
        raise GraphError(
            f"{label} takes {called.name}{signature}, and was called otherwise: {error}. The runtime binds its roles; "
            "pass only inputs and settings."
        ) from None


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    number = 2
    while True:
        yield f"{stem}-{number}"
        number += 1


def _assigned_name(frame: FrameType | None, root: CodeType) -> str | None:
    """The name that the result of the running call will be assigned to, read from the code after the call.

    Where a helper function returns the result, the code after the helper's call is asked. Needs no source text.
    """
    while frame is not None:
        after = next((i for i in _instructions(frame.f_code) if i.offset > frame.f_lasti), None)
        if after is None:
            return None
        if after.opname.startswith("STORE_") and after.opname.split("_")[1] in ("FAST", "DEREF", "NAME", "GLOBAL"):
            # From Python 3.13 on, one instruction may store two values: the first is the result's.
            names = cast(str | tuple[str, ...], after.argval)
            return names if isinstance(names, str) else names[0]
        if after.opname != "RETURN_VALUE" or frame.f_code is root:
            return None
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=32)
def _instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    return tuple(i for i in dis.get_instructions(code) if i.opname not in ("COPY", "CACHE", "EXTENDED_ARG", "NOP"))


def _frames(frame: FrameType | None, root: CodeType) -> tuple[FrameType, ...]:
    """The functions that are running, from the innermost to the workflow's own."""
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = None if frame.f_code is root else frame.f_back
    return tuple(frames)


def _local_name(call: _Call) -> str | None:
    """The variable that held the result when its function ended (``a, b = f(x), g(x)`` hides it from the code)."""
    held = (name for frame in call.frames for name, value in frame.f_locals.items() if value is call.edge)
    return next(held, None)


class Workflow:
    """A plain function over nodes. ``graph(**settings)`` traces it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not isinstance(function, FunctionType) or inspect.iscoroutinefunction(function):
            raise GraphError(f"@workflow wraps a plain function, got {function!r}. Put it on a def (not async).")
        functools.update_wrapper(self, function)
        self.function: FunctionType = function
        self.name = function.__name__

    def __repr__(self) -> str:
        return f"<workflow {self.use}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Inside another workflow: its nodes become part of that one."""
        if TRACING.get() is None:
            raise GraphError(
                f"workflow {self.name!r} was called like a function. Trace it with {self.name}.graph(), or train it."
            )
        return self.function(*args, **kwargs)

    @property
    def use(self) -> str:
        """How it is named in recipes: its bare name (built in), ``module:function`` or ``python:name``."""
        return use_of(self)

    @functools.cached_property
    def settings(self) -> Mapping[str, object]:
        """Its settings with their defaults."""
        return {name: default for name, (_, default) in self._parameters.items()}

    def graph(self, **settings: object) -> Graph:
        """Trace it with these settings. Raises GraphError for what cannot be a graph."""
        return trace(self, settings)

    def checked_settings(self, given: Mapping[str, object]) -> dict[str, object]:
        """Its settings, complete, with those given in place of defaults."""
        values: dict[str, object] = {}
        for name in given:
            if name not in self._parameters:
                raise GraphError(f"workflow {self.name!r} has no setting {name!r}.{nearest(name, self._parameters)}")
        for name, (kind, default) in self._parameters.items():
            values[name] = checked(given.get(name, default), kind, f"workflow {self.name!r}: setting {name!r}")
        return values

    @functools.cached_property
    def hints(self) -> Mapping[str, object]:
        """The resolved annotations."""
        try:
            return typing.get_type_hints(self.function)
        except NameError as error:
            raise GraphError(
                f"workflow {self.name!r}: an annotation names {error.name!r}, which is not defined where the function "
                "is. Import or define it at the top of the module."
            ) from None

    @functools.cached_property
    def _parameters(self) -> Mapping[str, tuple[object, object]]:
        parameters = list(inspect.signature(self.function).parameters.values())
        if not parameters or self.hints.get(parameters[0].name) is not Prompt:
            raise GraphError(
                f"workflow {self.name!r} must take the prompt first: def {self.name}(prompt: Prompt, *, n: int = 8)."
            )
        for parameter in parameters[1:]:
            kind = self.hints.get(parameter.name, None)
            if parameter.kind is not parameter.KEYWORD_ONLY or parameter.default is parameter.empty:
                raise GraphError(
                    f"workflow {self.name!r}: {parameter.name!r} must be a keyword with a default, as in "
                    "(prompt: Prompt, *, n: int = 8). Move it behind the * and give it a default."
                )
            if parameter.name not in self.hints or not is_setting(kind):
                raise GraphError(
                    f"workflow {self.name!r}: {parameter.name!r} is a setting and needs the type of one (int, float, "
                    "str, bool, Literal, a config section). Annotate it."
                )
        return {p.name: (self.hints[p.name], p.default) for p in parameters[1:]}


def workflow(function: Callable[..., Any]) -> Workflow:
    """Make a plain function over nodes a workflow.

    Example::

        @workflow
        def simple(prompt: Prompt, *, n: int = 8) -> StepReport:
            group = rollout(prompt, n=n)
            batch = collect(score(group))
            credit = advantages(batch)
            return report(update_policy(batch, credit=credit))
    """
    return Workflow(function)


def load_workflow(use: str) -> Workflow:
    """The workflow that ``module:function`` names."""
    found = find_object(use, "the workflow")
    if not isinstance(found, Workflow):
        raise GraphError(f"the workflow is {use!r}, which is {found!r}. Put @workflow on the function.")
    return found


def trace(workflow: Workflow, settings: Mapping[str, object]) -> Graph:
    """The graph of a workflow with these settings."""
    values = workflow.checked_settings(settings)
    record = _Trace(workflow.function.__code__)
    token = TRACING.set(record)
    try:
        result: object = workflow.function(record.prompt, **values)
    except GraphError as error:
        raise GraphError(f"workflow {workflow.name!r}: {error}") from None
    finally:
        TRACING.reset(token)
    if not isinstance(result, Edge):
        raise GraphError(
            f"workflow {workflow.name!r} returned {result!r} ({type(result).__name__}), and a workflow returns the "
            "output of a node. End it with return report(...)."
        )
    drafts, ids = record.drafts()
    output = ids[result._index]  # pyright: ignore[reportPrivateUsage]
    graph = build_graph(Drafted(name=workflow.name, nodes=drafts, output=output, settings=values))
    says = workflow.hints.get("return", object)
    returns = graph.functions[graph.output].output
    if not fits(returns, says):
        raise GraphError(
            f"workflow {workflow.name!r} says it returns {type_name(says)}, and returns {output!r}, which is "
            f"{type_name(returns)}. Change one of the two."
        )
    return graph
