"""Everything that is opened has an owner that closes it on every way out: found in the source, not listed by hand.

What is *opened*: an object of any class of ``stretto`` that has a ``close`` (``release``, ``kill``), and what a library
opens (a process, pool, socket, file, temporary folder). What makes one has to do one of these:

    with X(...) as x            or async with, or contextlib.closing
    disposer.own(name, x, ...)  in the same function
    return X(...)               then every caller has to do one of these
    self.x = X(...)             in a class that is closed itself: it is opened wherever that class is made
    y.open(lambda: X(...))      where y is closed itself
    f(X(...))                   where f does one of these with that parameter
    try: ... finally: x.close()

So a new entry point that opens the parts of a run and forgets the Disposer fails here.
"""

import ast
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "stretto"
CLOSES = {"close", "release", "kill", "__aexit__"}
FOREIGN = {
    "subprocess.Popen",
    "Popen",
    "ThreadPoolExecutor",
    "ProcessPoolExecutor",
    "SharedMemory",
    "socket.socket",
    "socket.socketpair",
    "tempfile.TemporaryDirectory",
    "tempfile.NamedTemporaryFile",
    "open",
}
NO_RESOURCE = {
    "WeightWindow": "closing it ends writes; it holds nothing of its own",
    "_Watched": "shows a backend that another owns",
    "FakeBackend": "holds nothing",
    "FakeEngine": "holds nothing",
    "Scheduler": "lives in the engine's thread, which closes it at its end",
}
"""Classes with a ``close`` that opens nothing."""


@dataclass
class Function:
    """A function or method with what it calls. ``owner``: its class."""

    file: Path
    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: str | None
    parents: dict[ast.AST, ast.AST]
    calls: list[tuple[ast.Call, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.calls = [(call, ast.unparse(call.func)) for call in own_nodes(self.node, ast.Call)]

    @property
    def name(self) -> str:
        return self.node.name

    def __str__(self) -> str:
        owner = f"{self.owner}." if self.owner else ""
        return f"{self.file.relative_to(ROOT)}:{self.node.lineno} {owner}{self.name}"


@dataclass(frozen=True)
class Making:
    """A call that opens something, where it stands."""

    what: str
    line: int
    function: str


@cache
def read(file: Path, text: str) -> tuple[list[Function], set[str]]:
    """The functions of a file, and its classes that are closed."""
    tree = ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    functions: list[Function] = []
    closable: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = {m.name for m in node.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))}
            protocol = any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
            if methods & CLOSES and not protocol and node.name not in NO_RESOURCE:
                closable.add(node.name)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            around = parents.get(node)
            owner = around.name if isinstance(around, ast.ClassDef) else None
            functions.append(Function(file, node, owner, parents))
    return functions, closable


class Source:
    """The functions and classes of some files."""

    def __init__(self, files: dict[Path, str]) -> None:
        self.functions: list[Function] = []
        self.closable: set[str] = set()
        for file, text in files.items():
            functions, closable = read(file, text)
            self.functions += functions
            self.closable |= closable
        self.by_name: dict[str, list[Function]] = defaultdict(list)
        for function in self.functions:
            self.by_name[function.name].append(function)

    def unowned(self) -> Iterator[str]:
        """Every call that opens something nobody is sure to close."""
        makers = {name: f"{name}(...)" for name in self.closable} | {name: f"{name}(...)" for name in FOREIGN}
        handed: set[tuple[str, str]] = set()
        while True:  # what hands on what it made is a maker too, until no more are found
            found = dict(makers)
            faults: list[str] = []
            for function in self.functions:
                for call, name in self._makings(function, makers):
                    verdict = self._verdict(function, call)
                    if verdict == "returned":
                        if (function.name, name) not in handed and function.owner is None:
                            handed.add((function.name, name))
                            found.setdefault(function.name, f"{function.name}() -> {makers[name]}")
                    elif verdict == "":
                        faults.append(f"{function}: {makers[name]} in line {call.lineno} has no owner")
            if found == makers:
                yield from faults
                return
            makers = found

    def _makings(self, function: Function, makers: dict[str, str]) -> Iterator[tuple[ast.Call, str]]:
        for call, name in function.calls:
            short = name.rpartition(".")[2]
            if name in makers or (
                short in makers and "." in name and not name.startswith("self.") and short[0].isupper()
            ):
                yield call, name if name in makers else short
            elif name == "cls" and function.owner in makers:
                yield call, function.owner
            elif "." in name and name.split(".")[0] in self.closable and self._is_maker(*name.split(".")[:2]):
                yield call, name.split(".")[0]

    def _is_maker(self, owner: str, method: str) -> bool:
        """Whether it is a class method that gives an object of its class (``RunStore.create``)."""
        return any(
            f.owner == owner and any(ast.unparse(d) == "classmethod" for d in f.node.decorator_list)
            for f in self.by_name[method]
        )

    def _verdict(self, function: Function, call: ast.Call) -> str:
        """Who owns what ``call`` makes: "" if nobody."""
        place: ast.AST = call
        around = function.parents[place]
        while isinstance(around, (ast.IfExp, ast.Await, ast.NamedExpr, ast.Tuple, ast.GeneratorExp, ast.Starred)) or (
            isinstance(around, ast.Call) and ast.unparse(around.func) in ("tuple", "list", "cast", "closing")
        ):
            if isinstance(around, ast.Call) and ast.unparse(around.func) == "closing":
                return "with"
            place, around = around, function.parents[around]
        if isinstance(around, ast.withitem):
            return "with"
        if isinstance(around, ast.Lambda):
            user = function.parents[around]
            return "kept" if isinstance(user, ast.Call) and ast.unparse(user.func).endswith(".open") else "returned"
        if isinstance(around, ast.Return):
            return "returned"
        if isinstance(around, ast.Call):
            return self._handed(function, around, place)
        if isinstance(around, ast.Assign | ast.AnnAssign):
            targets = around.targets if isinstance(around, ast.Assign) else [around.target]
            names = [n for t in targets for n in ast.walk(t) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript))]
            if any(isinstance(n, ast.Attribute) and ast.unparse(n).startswith("self.") for n in names):
                return "kept" if function.owner in self.closable else ""
            return self._named(function, {n.id for n in names if isinstance(n, ast.Name)})
        return ""

    def _handed(self, function: Function, around: ast.Call, place: ast.AST) -> str:
        """Given to another function: to the disposer, to a constructor that is closed itself, or to one that cares."""
        name = ast.unparse(around.func)
        if name.endswith((".own", ".enter_context", ".enter_async_context")):
            return "owned"
        if name in self.closable or name == "cls":
            return "kept"
        for other in self.by_name[name.rpartition(".")[2]]:
            parameters = [a.arg for a in other.node.args.args]
            given = parameters[around.args.index(place) :][:1] if place in around.args else []
            if given and self._named(other, set(given)):
                return "handed"
        return ""

    def _named(self, function: Function, names: set[str]) -> str:
        """What a function does with what it calls by these names."""
        for node in own_nodes(function.node, ast.AST):
            if isinstance(node, ast.withitem) and ast.unparse(node.context_expr) in names:
                return "with"
            if isinstance(node, ast.Return) and node.value is not None and _mentions(node.value, names):
                return "returned"
            if isinstance(node, ast.Try):
                ends = [*node.finalbody, *(line for handler in node.handlers for line in handler.body)]
                if any(_closes(end, names) for end in ends):
                    return "finally"
            if isinstance(node, ast.Call):
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                mentioned = any(ast.unparse(argument) in names for argument in given)
                if mentioned and ast.unparse(node.func).endswith(".own"):
                    return "owned"
                if mentioned and ast.unparse(node.func) in {"cls", *self.closable}:
                    return "kept"
            if isinstance(node, ast.Assign) and function.owner in self.closable and _mentions(node.value, names):
                kept = any(ast.unparse(target).startswith("self.") for target in node.targets)
                if kept:
                    return "kept"
        return ""


def own_nodes(function: ast.AST, kind: type[ast.AST]) -> Iterator[ast.AST]:
    """Nodes of a function, those of functions inside it left out (they are looked at by themselves)."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, kind):
            yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from own_nodes(child, kind)


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node))


def _closes(node: ast.AST, names: set[str]) -> bool:
    return any(
        (isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in {*CLOSES, "rmtree"})
        and (ast.unparse(n.func.value) in names or any(ast.unparse(a) in names for a in n.args))
        for n in ast.walk(node)
    ) or any(
        isinstance(n, ast.Call)
        and ast.unparse(n.func) in ("os.close", "shutil.rmtree")
        and any(ast.unparse(a) in names for a in n.args)
        for n in ast.walk(node)
    )


SOURCE = {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py")) if "scaffold" not in path.parts}


def faults_with(extra: str = "", changed: dict[Path, str] | None = None) -> list[str]:
    """What is found in the source with a file more, or with files changed."""
    return list(Source({**SOURCE, **(changed or {}), ROOT / "api" / "extra.py": extra}).unowned())


def test_everything_that_is_opened_has_an_owner():  # pitfall 31
    known = {"Disposer", "Worker", "RewardJudge", "Episodes", "NativeEngine", "TorchBackend", "RunStore", "Session"}
    assert known <= Source(SOURCE).closable
    assert faults_with() == []


FORGETFUL = {
    "a disposer that nobody enters": """
        async def peek(job):
            parts = await open_parts(job, Disposer())
            return await evaluate(parts)
        """,
    "a judge": """
        async def peek(config, rewards):
            judge = RewardJudge(config, rewards)
            await judge.start()
        """,
    "what another function makes": """
        def peek(recipe):
            backend = open_model(recipe)
            backend.load(".")
        """,
    "what another function makes, by one that hands it on": """
        def peek(recipe):
            return open_model(recipe)

        def weights(recipe):
            return dict(peek(recipe).tensors("policy"))
        """,
    "a record": """
        def peek(path):
            store = RunStore.open(path)
            store.event(None)
        """,
    "a close that a failure skips": """
        def peek(path):
            store = RunStore.open(path)
            store.event(None)
            store.close()
        """,
    "a part of something that nobody closes": """
        class Peek:
            def __init__(self):
                self.worker = Worker()
        """,
    "a process": """
        def peek():
            child = subprocess.Popen(["true"])
            child.wait()
        """,
    "a file": """
        def peek(path):
            return open(path).read()
        """,
}


@pytest.mark.parametrize("what", FORGETFUL)
def test_what_is_forgotten_is_found(what):
    (fault,) = faults_with(textwrap.dedent(FORGETFUL[what]))
    assert "api/extra.py" in fault


def sources_of(text: str) -> list[Path]:
    return [path for path, source in SOURCE.items() if text in source]


# The methods of actors are called by Ray, by name, and the guard does not follow that: runs on Ray show what is left.
ELSEWHERE = {("roller_actor.py", i) for i in range(4)} | {("opening.py", 3)}
OWNING = [
    (path, i)
    for path in sources_of("disposer.own(")
    for i in range(SOURCE[path].count("disposer.own("))
    if path.parent.name != "remote" or (path.name, i) not in ELSEWHERE
]


@pytest.mark.parametrize(("path", "index"), OWNING, ids=[f"{p.relative_to(ROOT)}-{i}" for p, i in OWNING])
def test_every_registration_is_needed(path, index):
    parts = SOURCE[path].split("disposer.own(")
    changed = "disposer.own(".join(parts[: index + 1]) + "print(" + "disposer.own(".join(parts[index + 1 :])
    assert faults_with(changed={path: changed})


ENTERING = sources_of("async with Disposer() as disposer:")


@pytest.mark.parametrize("path", ENTERING, ids=[str(p.relative_to(ROOT)) for p in ENTERING])
def test_every_entry_point_enters_its_disposer(path):
    changed = SOURCE[path].replace("async with Disposer() as disposer:", "disposer = Disposer()\n    if disposer:", 1)
    indent = re.search(r"( *)async with Disposer\(\) as disposer:", SOURCE[path])
    assert indent is not None
    changed = changed.replace("\n    if disposer:", f"\n{indent.group(1)}if disposer:", 1)
    assert faults_with(changed={path: changed})
