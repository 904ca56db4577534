"""Seeds of samples: one 64-bit number from the identity of a sample, the same on every machine and forever.

Owns the derivation only. No rank, worker or wall clock enters, so siblings always differ and a run repeats.
"""

import struct
from collections.abc import Mapping
from typing import Literal

import xxhash

__all__ = ["NAMESPACES", "Namespace", "choice_seed", "environment_seed", "evaluation_seed", "order_seed", "sample_seed"]

Namespace = Literal["train", "evaluation", "warmup"]
"""Draws of each namespace count from 0 by themselves."""

NAMESPACES: Mapping[Namespace, int] = {"train": 0, "evaluation": 1, "warmup": 2}
"""The number of each namespace in the hashed bytes. A number is never given to another namespace."""

_SAMPLE = struct.Struct("<QQQQQ")
_ENVIRONMENT = struct.Struct("<QQQQQ8s")
_CHOICE = struct.Struct("<QQQ8s")
_ORDER = struct.Struct("<QQ8s")


def sample_seed(run_seed: int, namespace: Namespace, draw: int, sample: int, turn: int = 0) -> int:
    """The seed of one completion, in [0, 2**64).

    xxh3_64 (seed 0) of (run seed, namespace, draw, sample, turn) as little-endian unsigned 64-bit integers.
    """
    packed = _SAMPLE.pack(run_seed, NAMESPACES[namespace], draw, sample, turn)
    return xxhash.xxh3_64_intdigest(packed)


def environment_seed(run_seed: int, namespace: Namespace, draw: int, sample: int, turn: int) -> int:
    """The seed of an environment's random numbers in one call, in [0, 2**64).

    xxh3_64 (seed 0) of (run seed, namespace, draw, sample, turn) as little-endian unsigned 64-bit integers and the
    bytes ``"environ"`` padded with zeros to 8.
    """
    packed = _ENVIRONMENT.pack(run_seed, NAMESPACES[namespace], draw, sample, turn, b"environ")
    return xxhash.xxh3_64_intdigest(packed)


def evaluation_seed(run_seed: int, name: str) -> int:
    """What takes the place of the run's seed in one evaluation set, in [0, 2**64): draws count its prompts from 0.

    xxh3_64 (seed 0) of the run seed as a little-endian unsigned 64-bit integer, the bytes ``"eval"`` and the set's name
    in UTF-8.
    """
    return xxhash.xxh3_64_intdigest(struct.pack("<Q", run_seed) + b"eval" + name.encode())


def order_seed(run_seed: int, namespace: Namespace) -> int:
    """The seed of the ``DrawOrder`` of one namespace, in [0, 2**64).

    xxh3_64 (seed 0) of (run seed, namespace) as little-endian unsigned 64-bit integers and the bytes ``"order"``
    padded with zeros to 8.
    """
    return xxhash.xxh3_64_intdigest(_ORDER.pack(run_seed, NAMESPACES[namespace], b"order"))


def choice_seed(run_seed: int, namespace: Namespace, draw: int) -> int:
    """The random number by which a draw chooses its prompt where chance decides, in [0, 2**64).

    xxh3_64 (seed 0) of (run seed, namespace, draw) as little-endian unsigned 64-bit integers and the bytes ``"choice"``
    padded with zeros to 8.
    """
    return xxhash.xxh3_64_intdigest(_CHOICE.pack(run_seed, NAMESPACES[namespace], draw, b"choice"))
