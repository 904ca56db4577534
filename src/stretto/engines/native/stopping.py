"""Stop strings: whether the text of a row's new tokens contains one yet, looked at as each token comes.

Owns the incremental decoding, a window of the last few tokens at a time. It does not own what becomes of the row
(``slots``), nor the text that is kept (``Completion.cut``).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray

from stretto.types import Ints

__all__ = ["Decode", "StopWatch"]

Decode: TypeAlias = Callable[[Ints], str]
"""Token ids to text, special tokens left out."""

_INCOMPLETE = "�"
"""What decoders write for bytes that are not a whole character yet."""


class StopWatch:
    """Watches one row for its stop strings.

    ``tokens[start:]`` is all that is decoded: from ``start`` to ``read`` stand the tokens of the last text that was
    settled, as context, because decoders look at a token's neighbours; what follows them may be part of a character.
    Of settled text as many characters are kept as a stop string that is not complete yet could have in it.
    """

    def __init__(self, decode: Decode, stops: Sequence[str]) -> None:
        self._decode, self._stops = decode, tuple(stops)
        self._keep = max(len(stop) for stop in self._stops) - 1
        self._tail = ""
        self._start = self._read = 0

    def see(self, tokens: NDArray[Any]) -> str | None:
        """The stop string that the text of ``tokens`` (all of the row's, one more than last time) now contains.

        Of several that one token completes it is the one that begins first, and of those the longest; so a text is cut
        at one place, whatever the order in which stop strings were given.
        """
        settled = self._decode(tokens[self._start : self._read])
        text = self._decode(tokens[self._start :])
        fresh = text[len(settled) :]
        seen = self._tail + fresh.rstrip(_INCOMPLETE)
        found = [(seen.index(stop), -len(stop), stop) for stop in self._stops if stop in seen]
        if found:
            return min(found)[2]
        if fresh and not fresh.endswith(_INCOMPLETE):
            self._tail = seen[-self._keep :] if self._keep else ""
            self._start, self._read = self._read, len(tokens)
        return None
