"""Stretto's engine as a child of ``bench.py``: ``run_native.py MODEL_FOLDER SLOTS MAX_LEN DTYPE [loose]``.

``loose``: with ``batch_invariant`` off.
"""

import asyncio
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import torch
from children import private_stdout, serve

from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.config.backends import TorchBackendConfig
from stretto.engines.native import NativeEngine
from stretto.roles import Request, Sampling


async def opened(folder: str, slots: int, max_len: int, dtype: str, *, invariant: bool) -> NativeEngine:
    """An engine that holds the weights of ``folder``."""
    config = json.loads((Path(folder) / "config.json").read_text())
    engine = NativeEngine(config, slots=slots, max_len=max_len, dtype=dtype, threads=1, batch_invariant=invariant)
    spec = ModelSpec(path=folder, trainable=False)
    backend = TorchBackend({"policy": spec}, TorchBackendConfig(threads=1), seed=0)
    async with engine.update_weights(0, in_flight="drain") as sink:
        for tensor in backend.tensors("policy"):
            sink.write(tensor)
    backend.close()
    return engine


def main() -> None:
    """Serve batches."""
    folder, slots, max_len, dtype = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    answers = private_stdout()
    torch.set_num_threads(1)
    loop = asyncio.new_event_loop()
    engine = loop.run_until_complete(opened(folder, slots, max_len, dtype, invariant="loose" not in sys.argv))
    numbers = itertools.count()

    async def whole(prompt: list[int], n: int, new: int) -> int:
        number = next(numbers)
        request = Request(
            id=str(number),
            token_ids=np.asarray(prompt, np.int32),
            seeds=tuple(range(number * 1000, number * 1000 + n)),
            sampling=Sampling(max_tokens=new),
            deadline_s=None,
        )
        return sum([len(completion.token_ids_T) async for completion in engine.generate(request)])

    async def batch(prompts: list[list[int]], n: int, new: int) -> tuple[int, int]:
        before = (await engine.status()).prefilled_tokens
        tokens = sum(await asyncio.gather(*(whole(prompt, n, new) for prompt in prompts)))
        return tokens, (await engine.status()).prefilled_tokens - before

    serve(lambda prompts, n, new: loop.run_until_complete(batch(prompts, n, new)), answers)
    loop.run_until_complete(engine.close())


if __name__ == "__main__":
    main()
