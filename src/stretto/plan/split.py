"""The per-step part of a graph in pieces, and the program of every rank set. Pure: nodes are ids with what they read.

A *piece* is irreducible: a longest chain without a fan-out or a reconvergence inside, so that nothing in it could run
at the same time as something else in it. Pieces with no path between them may run at the same time, on disjoint ranks.

A *program* is what one rank set runs, in the one order that all of them share. A value that another rank set needs is
sent when it is there, and received where it is first read. Sending never waits, so whoever comes first in that order
can always go on: no two programs wait for each other.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from stretto.errors import ConfigError

__all__ = ["Program", "Transfer", "make_programs", "split"]

S = TypeVar("S", bound=Hashable)
"""A rank set: whatever says which ranks these are."""
Reads = Mapping[str, Sequence[str]]
"""By node, in an order in which each comes after what it reads: the other nodes of the step that it reads."""


@dataclass(frozen=True, slots=True)
class Transfer(Generic[S]):
    """The value of ``node``, from the rank set that has made it to another that reads it."""

    node: str
    source: S
    target: S


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Generic[S]):
    """The nodes that one rank set runs, in order; what it receives before it runs a node, and sends after."""

    ranks: S
    nodes: tuple[str, ...]
    receives: Mapping[str, tuple[Transfer[S], ...]]
    sends: Mapping[str, tuple[Transfer[S], ...]]


def split(reads: Reads) -> list[tuple[str, ...]]:
    """The pieces, in the order of their first nodes; every node is in exactly one. Linear in nodes and edges."""
    readers: dict[str, int] = dict.fromkeys(reads, 0)
    for node, parents in reads.items():
        for parent in _known(node, parents, readers):
            readers[parent] += 1
    piece_of: dict[str, list[str]] = {}
    pieces: list[list[str]] = []
    for node, parents in reads.items():
        before = list(dict.fromkeys(parents))
        if len(before) == 1 and readers[before[0]] == 1:
            piece = piece_of[before[0]]
        else:
            piece = list[str]()
            pieces.append(piece)
        piece.append(node)
        piece_of[node] = piece
    return [tuple(piece) for piece in pieces]


def make_programs(reads: Reads, seats: Mapping[str, S]) -> list[Program[S]]:
    """The program of every rank set, in the order in which they first run something.

    ``seats``: where the nodes run that need a Model. One that needs none runs where it is read, by the first that reads
    it in the shared order; one that nobody reads, where the last of what it reads was made. ConfigError if no node of
    the step needs a Model.
    """
    if not seats:
        raise ConfigError("no node of the step has a Model, so nothing says where it runs. Give one a role on a Model.")
    where = _seated(reads, seats)
    nodes: dict[S, list[str]] = {}
    receives: dict[S, dict[str, list[Transfer[S]]]] = {}
    sends: dict[S, dict[str, list[Transfer[S]]]] = {}
    sent: set[tuple[str, S]] = set()
    for node, parents in reads.items():
        here = where[node]
        nodes.setdefault(here, []).append(node)
        for parent in dict.fromkeys(parents):
            there = where[parent]
            if there == here or (parent, here) in sent:
                continue
            sent.add((parent, here))
            transfer = Transfer(parent, there, here)
            receives.setdefault(here, {}).setdefault(node, []).append(transfer)
            sends.setdefault(there, {}).setdefault(parent, []).append(transfer)
    return [
        Program(
            ranks=ranks,
            nodes=tuple(own),
            receives={node: tuple(found) for node, found in receives.get(ranks, {}).items()},
            sends={node: tuple(found) for node, found in sends.get(ranks, {}).items()},
        )
        for ranks, own in nodes.items()
    ]


def _seated(reads: Reads, seats: Mapping[str, S]) -> dict[str, S]:
    """Where every node runs."""
    place = {node: number for number, node in enumerate(reads)}
    where = dict(seats)
    first: dict[str, str] = {}  # by node: the first that reads it
    for node, parents in reads.items():
        for parent in _known(node, parents, place):
            first.setdefault(parent, node)
    for node in reversed(list(reads)):
        if node not in where and node in first and first[node] in where:
            where[node] = where[first[node]]
    some = next(iter(seats.values()))
    for node, parents in reads.items():
        if node not in where:
            last = max(parents, key=place.__getitem__, default=None)
            where[node] = some if last is None else where[last]
    return where


def _known(node: str, parents: Sequence[str], before: Mapping[str, object]) -> dict[str, None]:
    """Each once. An id that is not there is a fault of the caller."""
    assert all(parent in before for parent in parents), (node, parents)
    return dict.fromkeys(parents)
