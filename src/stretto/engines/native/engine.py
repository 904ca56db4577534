"""The native rollout engine as its callers see it: asyncio, validation, deadlines. The work is in the engine thread.

    event loop                         engine thread
    ----------                         -------------
    generate ── submit ──────────────> scheduler: admit, step, ...
             <── completions, in one call_soon_threadsafe per turn
    update_weights ── open ──────────> drain or pause, then answer with the weights
      sink.write (any thread) copies into them while nothing runs
                   ── close ─────────> new version, caches flushed, go on

A generator waits for its mailbox, at most until its deadline. The thread waits for commands when there is no work.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager

import numpy as np
import torch

from stretto.engines.native.cache import KEYS, Padding, round_up
from stretto.engines.native.choice import Choice, open_forward
from stretto.engines.native.forward import HeldWeights
from stretto.engines.native.jobs import Failure, Job
from stretto.engines.native.probe import probe_invariance
from stretto.engines.native.scheduler import Scheduler
from stretto.engines.native.stopping import Decode
from stretto.engines.native.thread import EngineThread
from stretto.errors import ConfigError, DataError, EngineError, nearest
from stretto.roles import Completion, EngineStatus, InFlight, MemoryLevel, Request, Sampling, WeightSink
from stretto.types import Json

__all__ = ["NativeEngine"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class NativeEngine:
    """Generates with a decoder, batched, in this process. A ``RolloutEngine``.

    hf_config: the model's ``config.json``. slots: sequences decoded at the same time. max_len: longest prompt and
    completion together, in tokens. dtype: ``float32`` or ``bfloat16``. threads: intra-op threads of the engine thread.
    decode: token ids to text without special tokens, called on the engine thread; requests with stop strings need it.
    forward: ``native`` computes with Stretto's own code (llama, qwen2, qwen3), ``hf`` with a module of transformers,
    and ``auto`` with the first where it can. head_dtype: of the logits' product (None: as ``dtype``).
    batch_invariant: whether products are padded so that bits do not depend on company. prefix_tokens: how many tokens
    of prompts are remembered for later ones that begin alike (0: none).

    It holds no weights, and refuses requests, until the first ``update_weights`` window has closed. With one thread the
    bits of a request (tokens and log-probs) do not depend on what else runs, unless ``batch_invariant`` is off;
    ``probe_invariance`` checks that.
    A request waits for ``deadline_s`` from the moment ``generate`` is first iterated.
    """

    def __init__(
        self,
        hf_config: Mapping[str, Json],
        *,
        slots: int,
        max_len: int,
        dtype: str = "float32",
        device: str = "cpu",
        threads: int = 1,
        forward: Choice = "auto",
        head_dtype: str | None = None,
        batch_invariant: bool = True,
        prefix_tokens: int = 0,
        decode: Decode | None = None,
    ) -> None:
        self._decode = decode
        self._slots = slots
        self._max_len = max_len
        for name in (dtype, head_dtype or dtype):
            if name not in _DTYPES:
                raise ConfigError(f"The native engine has no dtype {name!r}.{nearest(name, _DTYPES)}")
        for name, value, least in (
            ("slots", slots, 1),
            ("max_len", max_len, 2),
            ("threads", threads, 1),
            ("prefix_tokens", prefix_tokens, 0),
        ):
            if value < least:
                raise ConfigError(f"{name} of the native engine must be at least {least}, got {value}.")
        try:
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise ConfigError(f"engine.device={device!r} cannot be used: {reason}. Set engine.device=cpu.") from error
        place = torch.device(device)
        self._forward = open_forward(
            hf_config,
            forward,
            max_len=round_up(max_len, KEYS),
            dtype=_DTYPES[dtype],
            device=place,
            head_dtype=_DTYPES[head_dtype or dtype],
        )
        positions = self._forward.sizes.max_positions
        if positions is not None and max_len > positions:
            raise ConfigError(
                f"max_len {max_len} of the native engine is past the {positions} positions the model "
                "was made for (max_position_embeddings). Use a shorter max_len."
            )
        padding = Padding(invariant=False)
        if batch_invariant:  # one slot never has company
            padding = Padding.found(self._forward.products, place, threads=threads, alone=slots == 1)
        self._scheduler = Scheduler(
            self._forward,
            num_slots=slots,
            max_len=max_len,
            device=place,
            padding=padding,
            prefix_tokens=prefix_tokens,
            decode=decode,
        )
        self._thread = EngineThread(self._scheduler, threads=threads)
        self._pending: dict[str, Job] = {}
        self._window_open = False

    @property
    def slots(self) -> int:
        """Sequences decoded at the same time."""
        return self._slots

    @property
    def max_len(self) -> int:
        """Longest prompt and completion together, in tokens."""
        return self._max_len

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._forward.sizes.vocab_size

    async def generate(self, request: Request) -> AsyncGenerator[Completion, None]:
        """Yield each completion as it finishes. Bad requests raise DataError; a failed or late one EngineError."""
        self._check(request)
        job = Job(request=request, loop=asyncio.get_running_loop())
        self._pending[request.id] = job
        self._thread.post(lambda: self._scheduler.submit(job))
        try:
            for _ in request.seeds:
                if not job.mailbox:
                    await self._wait_for_mail(job)
                item = job.mailbox.popleft()
                if isinstance(item, Failure):
                    raise EngineError(f"Request {request.id!r} was not finished: {item.message}") from item.cause
                yield item
        finally:
            del self._pending[request.id]
            if not job.over:
                self._thread.post(lambda: self._scheduler.discard(job))

    async def abort(self, ids: Sequence[str]) -> None:
        """Stop these requests; what they wrote so far is yielded with ``finish="aborted"``.

        Ids that are not pending, such as those that have just finished, are passed over.
        """
        await self._thread.ask(lambda: self._scheduler.abort(ids))

    @asynccontextmanager
    async def update_weights(self, version: int, *, in_flight: InFlight) -> AsyncIterator[WeightSink]:
        """A window in which all weights are replaced; see ``RolloutEngine``.

        ``drain`` finishes every request taken before it. ``keep`` pauses them; they go on under the new weights with
        their old keys and values, and their later tokens carry the new version. ``recompute`` does the same with new
        keys and values. Later requests wait in all cases.
        """
        if self._window_open:
            raise EngineError(
                f"An update window is open already, so version {version} cannot open one. Close it first."
            )

        def open_window(ready: Future[HeldWeights]) -> None:
            self._scheduler.open_window(ready, in_flight)

        self._window_open = True
        try:
            try:
                window = self._forward.window(await self._thread.answer(open_window))
            except BaseException:
                self._thread.post(self._scheduler.cancel_window)
                raise
            try:
                yield window
                window.check_complete()
            except BaseException as cause:
                window.close()
                await self._fail_window(cause)
                raise
            window.close()
            await self._thread.ask(lambda: self._scheduler.close_window(version))
        finally:
            self._window_open = False

    async def set_memory(self, level: MemoryLevel) -> None:
        """Free or take back memory; refused while requests are pending or a window is open.

        After ``weights_released`` the order is: ``kv_released``, a publication, ``awake``.
        """
        await self._thread.ask(lambda: self._scheduler.set_memory(level))

    async def status(self) -> EngineStatus:
        """Where the engine stands. Does not wait for the engine thread."""
        return EngineStatus(
            version=self._scheduler.version,
            healthy=self._scheduler.healthy and not self._thread.closed,
            pending={name: job.pending_s for name, job in self._pending.items()},
            memory=self._scheduler.memory,
            generated_tokens=self._scheduler.generated_tokens,
            prefilled_tokens=self._scheduler.prefilled_tokens,
            remembered_tokens=self._scheduler.remembered_tokens,
        )

    async def probe_invariance(self) -> None:
        """Check on the held weights that a request's bits do not depend on its company; EngineError if they do."""
        await probe_invariance(
            self, slots=self._slots, max_len=self._max_len, vocab_size=self._forward.sizes.vocab_size
        )

    async def close(self) -> None:
        """End pending requests with EngineError, stop and join the thread. Idempotent."""
        await self._thread.close()

    async def _fail_window(self, cause: BaseException) -> None:
        if not self._thread.closed:
            await self._thread.ask(lambda: self._scheduler.fail_window(cause))

    async def _wait_for_mail(self, job: Job) -> None:
        """Wait until the job's mailbox holds something, at most until its deadline."""
        deadline_s = job.request.deadline_s
        job.arrival.clear()
        if deadline_s is None:
            await job.arrival.wait()
            return
        try:
            async with asyncio.timeout(max(0.0, deadline_s - job.pending_s)):
                await job.arrival.wait()
        except TimeoutError:
            made = job.tokens_made(self._scheduler.steps)
            raise EngineError(
                f"Request {job.request.id!r} has been pending for {job.pending_s:.1f} s, past its deadline of "
                f"{deadline_s:g} s, with {made} tokens made; of {len(job.request.seeds)} completions {job.num_done} "
                f"are done and {job.num_waiting} not started. Raise deadline_s, or lower max_tokens or the load."
            ) from None

    def _check(self, request: Request) -> None:
        """What could never be generated is refused here, with the numbers."""
        if self._thread.closed:
            raise EngineError(f"Request {request.id!r} came to an engine that {self._thread.end}. Make a new one.")
        if request.id in self._pending:
            raise EngineError(f"Request {request.id!r} is pending already. Give each request an id of its own.")
        sampling, length = request.sampling, len(request.token_ids)
        problem = None
        if not request.seeds:
            problem = "has no seeds: give one per completion"
        elif not length:
            problem = "has an empty prompt: give at least one token"
        elif np.min(request.token_ids) < 0 or np.max(request.token_ids) >= self._forward.sizes.vocab_size:
            problem = (
                f"has token ids from {np.min(request.token_ids)} to {np.max(request.token_ids)}, and the model's are "
                f"0 to {self._forward.sizes.vocab_size - 1}: use the model's tokenizer"
            )
        elif length + sampling.max_tokens > self._max_len:
            problem = (
                f"needs {length} prompt tokens + max_tokens {sampling.max_tokens} = {length + sampling.max_tokens}, "
                f"and the engine's max_len is {self._max_len}: shorten one or raise max_len"
            )
        elif sampling.max_tokens < 1:
            problem = f"has max_tokens {sampling.max_tokens}: it must be at least 1"
        elif not 0 <= sampling.temperature < float("inf"):
            problem = f"has temperature {sampling.temperature}: it must be 0 (greedy) or above"
        else:
            problem = self._sampling_problem(sampling)
        if problem:
            raise DataError(f"Request {request.id!r} {problem}.")

    def _sampling_problem(self, sampling: Sampling) -> str | None:
        if sampling.top_k < 0 or not 0 < sampling.top_p <= 1 or not 0 <= sampling.min_p <= 1:
            return (
                f"has top_k {sampling.top_k}, top_p {sampling.top_p} and min_p {sampling.min_p}: top_k is at least 0, "
                "top_p in (0, 1], min_p in [0, 1]"
            )
        if not all(sampling.stop):
            return "has an empty stop string, which would end every completion at once: leave it out"
        if sampling.stop and self._decode is None:
            return "has stop strings, and the engine was made without decode=, so it cannot see text: give it one"
        return None
