"""What is added to a reward, or taken from it, for the length of an attempt. Pure."""

__all__ = ["overlong_charge"]


def overlong_charge(length: int, *, max_tokens: int, buffer: int, penalty: float = 1.0, capped: bool = True) -> float:
    """What an attempt of ``length`` tokens is charged: 0 up to ``max_tokens - buffer``, then linearly more, ``penalty``
    at ``max_tokens`` and beyond. ``buffer`` is above 0. Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13, where the
    penalty is 1; ``capped=False`` lets it rise beyond, as AReaL does for attempts that are longer than max_tokens.
    """
    share = max(length - (max_tokens - buffer), 0) / buffer
    return penalty * (min(share, 1.0) if capped else share)
