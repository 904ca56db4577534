"""A builder of groups for the tests of environments."""

from collections.abc import Callable

import numpy as np
import pytest

from stretto.types import Group, Key, Prompt, Span, Trajectory


@pytest.fixture
def make_group() -> Callable[..., Group]:
    """``make_group(draw, texts, **data)``: a group with one trajectory per text."""

    def make(draw: int = 0, texts: tuple[str, ...] = ("a", "b"), num_tokens: int = 4, **data) -> Group:
        prompt = Prompt(uid=f"p{draw}", text="1+1=", token_ids=np.arange(3, dtype=np.int32), data=data)
        trajectories = tuple(
            Trajectory(
                key=Key(draw, i),
                token_ids_T=np.arange(num_tokens, dtype=np.int32),
                mask_T=np.ones(num_tokens, np.uint8),
                logprobs_T=np.zeros(num_tokens, np.float32),
                versions=(Span(0, num_tokens),),
                finish="stop",
                text=text,
            )
            for i, text in enumerate(texts)
        )
        return Group(draw=draw, prompt=prompt, trajectories=trajectories)

    return make
