"""Which prompts are trained on, and in which order: the held-out split, the draws, and how many there are.

Pure functions of a seed, stable across machines, processes and numpy versions: a resumed run needs no cursor but the
next draw. Owns no prompts and reads no files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from stretto.errors import DataError
from stretto.types import Prompt

__all__ = ["DrawOrder", "Extent", "draws_of", "split"]


def split(prompts: Sequence[Prompt], share: float, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """``(train, held_out)``: the share, rounded half up, of the prompts whose uids rank first is held out.

    A uid's rank is the xxh3_128 hash of ``"<seed>:<uid>"``. Both lists come in that order, so neither depends on the
    order of the source, and the first k held-out prompts are a fixed random choice. A share that leaves one side
    without a prompt (other than shares 0 and 1) raises DataError.
    """
    ranked = sorted(prompts, key=lambda prompt: (xxhash.xxh3_128_digest(_identity(seed, prompt.uid)), prompt.uid))
    num_held_out = int(np.floor(share * len(ranked) + 0.5))
    if share < 1 and num_held_out == len(ranked):
        raise DataError(
            f"prompts.held_out={share} of {len(ranked)} prompts leaves none to train on. "
            "Give more prompts or a smaller held_out."
        )
    if share > 0 and num_held_out == 0:
        raise DataError(
            f"prompts.held_out={share} of {len(ranked)} prompts is none, so nothing could be evaluated. "
            "Give more prompts, a larger held_out, or held_out=0."
        )
    return ranked[num_held_out:], ranked[:num_held_out]


def _identity(seed: int, uid: str) -> bytes:
    # Data files may hold lone surrogates; a uid may be any string.
    return f"{seed}:{uid}".encode("utf-8", "surrogatepass")


class DrawOrder:
    """Which of ``n`` items each draw takes: draw d is item ``perm(seed, d // n)[d % n]``.

    ``perm(seed, epoch)`` is the stable argsort of the first n raw 64-bit outputs of PCG64, seeded through numpy's
    SeedSequence with the four 32-bit words (seed low, seed high, epoch low, epoch high). numpy promises both streams
    for all versions, unlike those of ``Generator.permutation``. Any draw can be asked for; one permutation is kept.
    """

    def __init__(self, n: int, seed: int) -> None:
        """An order of ``n`` >= 1 items; ``seed`` is in [0, 2**64)."""
        if n < 1:
            raise DataError("there are no prompts to draw from. Check the prompt source and prompts.held_out.")
        assert 0 <= seed < 2**64, seed
        self.n = n
        self.seed = seed
        self._epoch = -1
        self._permutation: NDArray[np.int64] = np.zeros(0, np.int64)

    def item(self, draw: int) -> int:
        """The index, in [0, n), of the item that ``draw`` >= 0 takes."""
        assert draw >= 0, draw
        epoch, place = divmod(draw, self.n)
        return int(self.permutation(epoch)[place])

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        """The items [n] of a pass in their order. Not to be written to."""
        if epoch != self._epoch:
            words = [self.seed & 0xFFFFFFFF, self.seed >> 32, epoch & 0xFFFFFFFF, epoch >> 32]
            raw = np.random.PCG64(np.random.SeedSequence(words)).random_raw(self.n)
            self._permutation = np.argsort(raw, kind="stable").astype(np.int64)
            self._epoch = epoch
        return self._permutation


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How far a phase goes: ``draws`` groups in ``steps`` steps. Only the last step may hold fewer than the others."""

    draws: int
    steps: int


def draws_of(steps: int | None, epochs: int | None, groups_per_step: int, n: int) -> Extent:
    """The extent of a phase over ``n`` prompts: the first of ``steps`` and ``epochs`` that is reached ends it.

    A phase by steps has full steps only, going round the prompts as often as it takes; one by epochs draws every
    prompt ``epochs`` times, the last step holding what is left.
    """
    assert steps is not None or epochs is not None, "a phase has an end"
    limits: list[int] = []
    if steps is not None:
        limits.append(steps * groups_per_step)
    if epochs is not None:
        limits.append(epochs * n)
    draws = min(limits)
    return Extent(draws=draws, steps=-(-draws // groups_per_step))
