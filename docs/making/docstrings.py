"""Public Python as Markdown, read from source: signatures as they are written, docstrings as they read best.

Source is parsed and nothing imported, so types keep the short names that the source gives them.
"""

import ast
import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
WIDTH = 96

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Fields = list[tuple[str, str, str, str]]


def describe(module: str, name: str, level: int = 3) -> str:
    """A section about the public ``name`` of ``module``: what it is, its docstring, and a class's members."""
    found = find(module, name)
    title = f"{'#' * level} {name}\n\n"
    if isinstance(found, ast.ClassDef):
        return title + class_text(found)
    if isinstance(found, Definition):
        return title + _fence(signature(found)) + markdown(ast.get_docstring(found) or "")
    value, doc = found
    return title + _fence(f"{name} = {value}") + markdown(doc)


def find(module: str, name: str) -> Definition | tuple[str, str]:
    """The definition of ``name``, or the value of an assignment with the docstring below it; imports are followed."""
    body, origin = parse(module).body, None
    for place, statement in enumerate(body):
        if isinstance(statement, ast.ImportFrom) and name in [alias.asname or alias.name for alias in statement.names]:
            origin = statement.module
        if isinstance(statement, Definition) and statement.name == name and not _is_overload(statement):
            return statement
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if isinstance(statement, ast.Assign | ast.AnnAssign) and name in [ast.unparse(t) for t in targets if t]:
            assert statement.value is not None, (module, name)
            return ast.unparse(statement.value), _string_after(body, place)
    if origin is not None:
        return find(origin, name)
    raise LookupError(f"{module} defines no {name}")


def parse(module: str) -> ast.Module:
    """The source of a module."""
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def first_sentence(docstring: str) -> str:
    """A docstring up to its first full stop, on one line."""
    text = " ".join(cleandoc(docstring).split("\n\n")[0].split())
    return inline(re.split(r"(?<=[.!?])\s(?=[A-Z`])", text)[0])


def inline(text: str) -> str:
    """Double backticks as single ones."""
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def cell(text: str) -> str:
    """Text for a table."""
    return " ".join(text.split()).replace("|", "\\|")


def markdown(docstring: str) -> str:
    """A docstring as Markdown: indented blocks become fences, everything else stays prose."""
    out: list[str] = []
    for block in re.split(r"\n{2,}(?=\S)", cleandoc(docstring)):
        lines = block.splitlines()
        if lines and lines[0].startswith("|"):
            out.append(inline(block))
            continue
        first = next((place for place, line in enumerate(lines) if line.startswith("    ")), len(lines))
        prose, code = lines[:first], lines[first:]
        words = re.sub(r"\s*::?$", ":", inline(" ".join(line for line in prose if line)))
        out.append(_listed(words))
        if code:
            language = "text" if re.search("[├└│]", block) or not re.search(r"[(=@]", block) else "python"
            out.append(_fence("\n".join(line[4:] for line in code), language).rstrip())
    return "\n\n".join(part for part in out if part) + "\n\n"


def _listed(words: str) -> str:
    """Prose that explains one name after the other, `a`: this. `b`: that, as a list."""
    items = re.split(r"(?<=[.)])\s(?=`[\w*]+`(?:, `\w+`)*: )", words)
    if len(items) < 2 and not re.match(r"`[\w*]+`: ", words):
        return words
    return "\n".join(f"- {item}" if re.match(r"`[\w*]+`(?:, `\w+`)*: ", item) else f"{item}\n" for item in items)


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef, *, bound: bool = False) -> str:
    """``name(parameters) -> result``, a parameter a line where it gets long."""
    arguments = ast.parse(ast.unparse(function.args).join(["def f(", "): ..."])).body[0]
    assert isinstance(arguments, ast.FunctionDef)
    if bound and arguments.args.args:
        del arguments.args.args[0]
    parts = _parameters(arguments.args)
    result = f" -> {_unquoted(ast.unparse(function.returns))}" if function.returns else ""
    prefix = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    line = f"{prefix}{function.name}({', '.join(parts)}){result}"
    if len(line) <= WIDTH:
        return line
    inside = "".join(f"    {part},\n" for part in parts)
    return f"{prefix}{function.name}(\n{inside}){result}"


def class_text(found: ast.ClassDef, name: str | None = None, *, members: bool = True) -> str:
    """A class, under its own or another name: its docstring, its fields and its public members."""
    fields, is_value = list(_fields(found)), any("dataclass" in ast.unparse(d) for d in found.decorator_list)
    text = markdown(ast.get_docstring(found) or "")
    if fields and is_value:
        shown = [f"{field}: {kind}{f' = {default}' if default else ''}" for field, kind, default, _ in fields]
        text = _fence(f"{name or found.name}(\n" + "".join(f"    {line},\n" for line in shown) + ")") + text
        text += "".join(f"- `{name}`: {inline(doc)}\n" for name, _, _, doc in fields if doc)
        text += "\n" if any(doc for *_, doc in fields) else ""
    for member in found.body if members else ():
        if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) or member.name.startswith("_"):
            continue
        if not _is_overload(member):
            text += _member(found.name, member)
    return text


def _member(owner: str, member: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorators = [ast.unparse(d) for d in member.decorator_list]
    doc = markdown(ast.get_docstring(member) or "")
    if any("property" in d for d in decorators):
        kind = f": {_unquoted(ast.unparse(member.returns))}" if member.returns else ""
        shown = f"{member.name}{kind}"
    else:
        shown = signature(member, bound="staticmethod" not in decorators)
        shown = f"{owner}.{shown}" if "classmethod" in decorators else shown
    return f'<div class="member" markdown>\n\n{_fence(shown)}{doc}</div>\n\n'


def _fields(found: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    for place, statement in enumerate(found.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            if name.startswith("_"):
                continue
            default = ast.unparse(statement.value) if statement.value else ""
            default = re.sub(r"field\(default_factory=(dict|list|tuple)\b.*\)", r"\1()", default)
            yield name, _unquoted(ast.unparse(statement.annotation)), default, _string_after(found.body, place)


def _parameters(arguments: ast.arguments) -> list[str]:
    """The parameters one by one, with the bare ``*`` and ``/``."""
    plain, parts = [*arguments.posonlyargs, *arguments.args], []
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    for place, (argument, default) in enumerate(zip(plain, defaults, strict=True)):
        parts.append(_parameter(argument, default))
        if arguments.posonlyargs and place == len(arguments.posonlyargs) - 1:
            parts.append("/")
    if arguments.vararg:
        parts.append(f"*{_parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [_parameter(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg:
        parts.append(f"**{_parameter(arguments.kwarg, None)}")
    return parts


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {_unquoted(ast.unparse(argument.annotation))}" if argument.annotation else ""
    shown = "" if default is None else f" = {ast.unparse(default)}" if kind else f"={ast.unparse(default)}"
    return f"{argument.arg}{kind}{shown}"


def _unquoted(annotation: str) -> str:
    return re.sub(r"^(['\"])(.*)\1$", r"\2", annotation)


def _string_after(body: list[ast.stmt], place: int) -> str:
    after = body[place + 1] if place + 1 < len(body) else None
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
        return " ".join(cleandoc(after.value.value).split())
    return ""


def _is_overload(found: Definition) -> bool:
    return any(ast.unparse(d) == "overload" for d in found.decorator_list)


def _fence(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```\n\n"
