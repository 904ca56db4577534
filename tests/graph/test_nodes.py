"""What @node reads from a function, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from stretto.config.base import Section
from stretto.errors import GraphError
from stretto.graph import node
from stretto.graph.annotations import fits, type_name
from stretto.roles import Generate, Judge, Sampling, Score, Tokenize, Train
from stretto.types import Batch, Column, Group, LossRef, Prompt, Setting, StepReport, UpdateReport


class Options(Section):
    deep: int = 1


class Mine:
    pass


def test_annotations_sort_parameters():
    @node
    def everything(
        batch: Batch,
        gen: Generate,
        judge: Judge,
        tok: Tokenize,
        sc: Score,
        tr: Train,
        mine: Mine,
        maybe: Column | None = None,
        anything: Any = None,
        *more: Column,
        flag: bool,
        number: float = 1.0,
        kind: Literal["a", "b"] = "a",
        optional: int | str | None = None,
        options: Options = Options(),
        loss: LossRef | None = None,
        sampling: Sampling = Sampling(),
        pair: tuple[int, float] = (1, 2.0),
        table: Mapping[str, Setting] = {},
    ) -> StepReport: ...

    assert everything.of_kind("role") == ["gen", "judge", "tok", "sc", "tr"]
    assert everything.of_kind("input") == ["batch", "mine", "maybe", "anything", "more"]
    assert everything.of_kind("setting") == (
        ["flag", "number", "kind", "optional", "options", "loss", "sampling", "pair", "table"]
    )
    params = everything.params
    assert [p.name for p in params.values() if p.required] == [
        "batch",
        "gen",
        "judge",
        "tok",
        "sc",
        "tr",
        "mine",
        "flag",
    ]
    assert params["gen"].role == "generate"
    assert params["more"].variadic
    assert everything.output is StepReport
    assert everything.has_model


def test_outside_a_workflow_a_node_is_its_function():
    @node
    def add(first: int, second: int = 2) -> int:
        """Adds."""
        return first + second

    assert add(3) == 5
    assert (add.__doc__, add.__name__) == ("Adds.", "add")

    @node
    async def later(value: int) -> int:
        return value

    assert asyncio.run(later(4)) == 4


def test_run_passes_values_by_name_and_the_tuple_of_a_star():
    @node
    def gathers(first: Column, second: Column | None = None, *rest: Column, scale: int = 2) -> tuple[object, ...]:
        return first, second, rest, scale

    @node
    def positional(first: Column, /, second: int = 3) -> tuple[object, ...]:
        return first, second

    assert gathers.run({"first": 1, "rest": (7, 8)}, {}, {"scale": 5}) == (1, None, (7, 8), 5)
    assert gathers.run({"first": 1}, {}, {}) == (1, None, (), 2)
    assert positional.run({"first": 1}, {}, {"second": 4}) == (1, 4)
    assert asyncio.run(positional.run_async({"first": 1}, {}, {})) == (1, 3)


def test_a_name_defined_further_down_is_found_at_first_use():
    assert forward.params["late"].kind == "input"


@node
def forward(late: Late) -> Batch: ...


class Late:
    pass


def test_refuses_what_has_no_types_or_too_many():
    with pytest.raises(GraphError, match=r"parameter 'batch' has no type. Annotate it"):

        @node
        def untyped(batch) -> Batch: ...

    with pytest.raises(GraphError, match=r"takes \*\*more, so its inputs have no types"):

        @node
        def keywords(**more: Batch) -> Batch: ...

    with pytest.raises(GraphError, match="a parameter called 'on'"):

        @node
        def called_on(on: Batch) -> Batch: ...

    with pytest.raises(GraphError, match=r"'judge' \(Judge \| None\) asks for a role"):

        @node
        def perhaps(group: Group, judge: Judge | None = None) -> Group: ...

    with pytest.raises(GraphError, match="is on='critic' and has no role on a Model"):

        @node(on="critic")
        def nowhere(batch: Batch, judge: Judge) -> Batch: ...

    with pytest.raises(GraphError, match=r"@node wraps a function, got 3"):
        node(3)

    @node
    def silent(batch: Batch): ...

    with pytest.raises(GraphError, match=r"'silent' doesn't say what it returns"):
        _ = silent.output

    @node
    def unknown(batch: Nowhere) -> Batch: ...  # noqa: F821

    with pytest.raises(GraphError, match="an annotation names 'Nowhere'"):
        _ = unknown.params


class Better(Column):
    pass


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (Column, Column, True),
        (Better, Column, True),
        (Column, Better, False),
        (Column, Column | None, True),
        (Column | None, Column, False),
        (Group | Batch, Group | Batch | None, True),
        (Group, Batch, False),
        (Any, Batch, True),
        (Batch, object, True),
        (object, Batch, False),
        (None, Column | None, True),
        (int, float, True),
        (float, int, False),
        (Literal["a"], Literal["a", "b"], True),
        (Literal["c"], Literal["a", "b"], False),
        (Literal["c"], str, True),
        (tuple[Group, ...], tuple[Group, ...], True),
        (tuple[Group, Group], tuple[Group, ...], True),
        (tuple[Group, ...], tuple[Group, Group], False),
        (tuple[Batch, ...], tuple[Group, ...], False),
        (list[Better], list[Column], True),
        (list, list[Column], True),
        (dict[str, Better], Mapping[str, Column], True),
        (list[Column], Column, False),
        (Mine, Judge, False),
    ],
)
def test_fits(source, target, expected):
    assert fits(source, target) is expected


def test_types_are_written_as_people_do():
    written = [
        type_name(t) for t in (Column | None, tuple[Group, ...], Literal["a", 1], dict[str, int], None, UpdateReport)
    ]
    assert written == [
        "Column | None",
        "tuple[Group, ...]",
        "Literal['a', 1]",
        "dict[str, int]",
        "None",
        "UpdateReport",
    ]
    assert fits(Prompt, Prompt)
