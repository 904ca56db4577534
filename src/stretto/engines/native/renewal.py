"""Keys and values of sequences under way, made anew by other weights: what a window does that lets them go on
(``in_flight="recompute"``). Owns no memory: it fills the cache's rows and the shared prompts they attend to."""

from stretto.engines.native.cache import KVCache
from stretto.engines.native.forward import HeldWeights
from stretto.engines.native.prefill import Prefill
from stretto.engines.native.shared import SharedPrompts
from stretto.engines.native.slots import Slots

__all__ = ["renew"]


def renew(weights: HeldWeights, slots: Slots, cache: KVCache, prefill: Prefill, shared: SharedPrompts) -> int:
    """Compute every active row's tokens but the last, which the next step computes; how many tokens that took."""
    renewed: set[int] = set()
    computed = 0
    for begin in range(0, slots.active, prefill.rows):
        rows = range(begin, min(begin + prefill.rows, slots.active))
        sequences = [slots.sequence(row)[:-1] for row in rows]
        places, _, known = prefill.run(weights, sequences)
        computed += sum(map(len, sequences)) - known
        for row, place in zip(rows, places, strict=True):
            base, end = int(slots.base[row]), int(slots.position[row])
            fresh = prefill.cache.tensor[:, :, place]
            cache.tensor[:, :, row, :, : end - base] = fresh[:, :, :, base:end]
            number = int(slots.shared[row])
            if number >= 0 and number not in renewed:
                shared.renew(number, fresh[:, :, :, :base])
                renewed.add(number)
    return computed
