"""What the engine thread does: admission into slots, decode steps, update windows, memory levels. Runs in that thread.

    waiting ──admit (in order)──> slots ──step──> slots ──stop, length, abort──> completion

One turn admits what fits (prompts computed once, copied to their samples' rows), then draws one token for every active
row. While a window is open nothing runs; requests that came after it was asked for wait in ``held`` until it closes.
Which request sits where, and beside whom, changes no bit of it (see ``forward``).
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import torch
from numpy.typing import NDArray

from stretto.engines.native.cache import KEYS, KVCache, Padding, round_up
from stretto.engines.native.forward import Forward, HeldWeights
from stretto.engines.native.jobs import Failure, Job, Prefix, deliver
from stretto.engines.native.prefill import Prefill, padded_length
from stretto.engines.native.prefixes import Prefixes
from stretto.engines.native.renewal import renew
from stretto.engines.native.sampling import draw_tokens
from stretto.engines.native.shared import SharedPrompts, is_shared
from stretto.engines.native.slots import Slots
from stretto.engines.native.stopping import Decode
from stretto.errors import EngineError, StrettoError, TrainError
from stretto.memory import give_back_memory
from stretto.plan.sizes import PROMPT_ROWS
from stretto.roles import Completion, InFlight, MemoryLevel
from stretto.types import Finish

__all__ = ["Scheduler"]


class Scheduler:
    """The state of the engine. Other threads read ``version``, ``healthy``, ``memory`` and the counters only."""

    def __init__(
        self,
        forward: Forward,
        *,
        num_slots: int,
        max_len: int,
        device: torch.device,
        padding: Padding,
        prefix_tokens: int = 0,
        decode: Decode | None = None,
    ) -> None:
        self.version = -1
        self.memory: MemoryLevel = "awake"
        self.generated_tokens = 0
        self.prefilled_tokens = 0
        self.remembered_tokens = 0
        self.steps = 0
        self._forward, self._device = forward, device
        self._num_slots = num_slots
        self._padding, self._prefix_tokens = padding, prefix_tokens
        self._rows = padding.rows(num_slots)
        self._length = round_up(max_len, KEYS)
        self._refill_at = max(1, num_slots // 16)
        self._slots = Slots(self._rows, max_len, decode)
        self._cache: KVCache | None = None
        self._prefill: Prefill | None = None
        self._prefixes: Prefixes | None = None
        self._shared: SharedPrompts | None = None
        self._weights: HeldWeights | None = None
        self._jobs: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._held: deque[Job] = deque()
        self._outbox: list[tuple[Job, Completion | Failure]] = []
        self._window: Future[HeldWeights] | None = None
        self._renews = False
        self._paused = False
        self._refusal: Failure | None = Failure(
            message="The engine holds no weights yet. Publish them in an update_weights window first."
        )
        self._allocate_caches()

    @property
    def healthy(self) -> bool:
        """Whether the engine holds whole weights and has not failed since it got them."""
        return self._refusal is None

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return not self._paused and (self._slots.active > 0 or bool(self._waiting))

    # --- requests --------------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Take a request, or hand back why not."""
        refusal = self._refusal
        if refusal is None and self.memory != "awake":
            refusal = Failure(message="The engine's KV cache is released. Call set_memory('awake') first.")
        if refusal is not None:
            job.over = True
            self._outbox.append((job, refusal))
            return
        self._jobs[job.request.id] = job
        (self._held if self._window else self._waiting).append(job)

    def abort(self, ids: Sequence[str]) -> None:
        """End these requests with what they have; ids that are not pending are passed over."""
        jobs = [self._jobs[i] for i in dict.fromkeys(ids) if i in self._jobs]
        self._end_rows(self._slots.rows_of(set(jobs)), "aborted")
        for job in jobs:
            for sample in range(job.next_sample, len(job.request.seeds)):
                empty = Completion(
                    index=sample,
                    token_ids_T=np.zeros(0, np.int32),
                    logprobs_T=np.zeros(0, np.float32),
                    versions=(),
                    finish="aborted",
                )
                self._hand_over(job, empty)
        self._forget_waiting()
        self._pause_if_drained()

    def discard(self, job: Job) -> None:
        """Drop a request that nobody waits for any more."""
        if job.over:
            return
        job.over = True
        self._jobs.pop(job.request.id)
        self._remove_rows(self._slots.rows_of({job}))
        self._forget_waiting()
        self._pause_if_drained()

    def flush(self) -> None:
        """Deliver what has been made."""
        if self._outbox:
            items, self._outbox = self._outbox, []
            deliver(items)

    def fail(self, cause: BaseException) -> None:
        """Become unhealthy: every request gets ``cause``, and so does every later one until a window succeeds."""
        message = str(cause) if isinstance(cause, StrettoError) else f"The native engine failed: {cause!r}."
        self._refuse(f"{message} The engine serves again after the next whole publication.", cause)

    def close(self, end: str = "was closed", cause: BaseException | None = None) -> None:
        """End everything pending, and refuse what comes, with what became of the engine."""
        window, self._window = self._window, None
        if window and not window.done():
            window.set_exception(EngineError(f"The engine {end} while an update window was opening."))
        self._refuse(f"The engine {end}.", cause)
        self._cache = self._prefill = self._prefixes = self._shared = self._weights = None

    # --- weights and memory ----------------------------------------------------------------------------------------

    def open_window(self, ready: "Future[HeldWeights]", in_flight: InFlight) -> None:
        """Pause, when every request taken so far is done (``drain``) or at once; then answer ``ready``."""
        assert self._window is None
        if self.memory == "weights_released":
            raise EngineError(
                "The engine's weights are released, so there is no room to publish into. "
                "Call set_memory('kv_released') or set_memory('awake') first."
            )
        if self._weights is None:
            self._weights = self._forward.new_weights(invariant=self._padding.invariant)
        self._window, self._renews = ready, in_flight == "recompute"
        if in_flight == "drain":
            self._pause_if_drained()
        else:
            self._pause()

    def close_window(self, version: int) -> None:
        """Serve ``version``. Computed prompts that wait for slots are computed anew; running ones keep their cache, or
        what is in it is computed anew too."""
        if self._prefixes:
            self._prefixes.forget()
        try:
            self._forward.settle(self._weights)
            if self._renews and self._slots.active:
                assert self._weights and self._cache and self._prefill and self._shared
                self.prefilled_tokens += renew(self._weights, self._slots, self._cache, self._prefill, self._shared)
        except Exception as cause:
            self.fail_window(cause)
            raise
        self._slots.end_version(self.version)
        for job in self._waiting:
            job.prefix = None
        if self._refusal is not None and self._cache and self._prefill and self._shared:
            # A failed engine may have left NaN behind, which no mask can hide.
            self._cache.tensor.zero_()
            self._prefill.cache.tensor.zero_()
            self._shared.clean()
        self.version = version
        self._refusal = None
        self._resume()

    def cancel_window(self) -> None:
        """Go on with the old weights, which nobody has touched."""
        if self._window:
            self._resume()

    def fail_window(self, cause: BaseException) -> None:
        """The weights are half written: refuse requests until a window succeeds."""
        self._refuse(
            f"The last weight update did not finish ({cause}), so the engine holds parts of two versions. "
            "Publish again in a new window.",
            cause,
        )
        self._resume()

    def set_memory(self, level: MemoryLevel) -> None:
        """Free or take memory. Requests in the engine, or an open window, refuse it."""
        if self._jobs or self._window:
            what = f"requests {', '.join(sorted(self._jobs)[:5])} are pending" if self._jobs else "a window is open"
            raise EngineError(f"Memory cannot be set to {level!r} while {what}. Drain or abort first.")
        if level == "awake":
            self._allocate_caches()
        else:
            self._cache = self._prefill = self._prefixes = self._shared = None
        if level == "weights_released":
            self._weights = None
            self._refusal = Failure(
                message="The engine's weights were released. Call set_memory('kv_released'), publish the weights in an "
                "update_weights window, then set_memory('awake')."
            )
        self.memory = level
        if level != "awake":
            give_back_memory()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    # --- one turn --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Admit what fits, draw one token for every active row, hand over what ended."""
        assert self._weights and self._cache and self._prefill and self._shared
        while self._should_admit():
            self._admit(self._weights, self._cache, self._prefill)
        if self._slots.active:
            self._decode(self._weights, self._cache, self._shared)
        self._pause_if_drained()

    def _should_admit(self) -> bool:
        """Refilling by small handfuls would compute prompts in small products: wait for a sixteenth of the slots."""
        free = self._num_slots - self._slots.active
        if not self._waiting or not free:
            return False
        if free >= self._refill_at:
            return True
        return free >= sum(job.num_waiting for job in self._waiting)

    def _admit(self, weights: HeldWeights, cache: KVCache, prefill: Prefill) -> None:
        chosen = self._choose(prefill.rows)
        fresh = [job for job, _ in chosen if job.prefix is None]
        sources: dict[Job, int] = {}
        logits: list[torch.Tensor] = []
        if fresh:
            rows, fresh_logits, remembered = prefill.run(weights, [job.request.token_ids for job in fresh])
            sources = dict(zip(fresh, rows, strict=True))
            logits.append(fresh_logits)
            self.remembered_tokens += remembered
            self.prefilled_tokens += sum(len(job.request.token_ids) for job in fresh) - remembered
        start = self._slots.active
        logit_rows: list[int] = []
        for job, count in chosen:
            samples = range(job.next_sample, job.next_sample + count)
            job.next_sample += count
            job.started.update(dict.fromkeys(samples, self.steps))
            if job.prefix is None:
                row = sources[job]
                logit_rows += [row] * count
                job.prefix = self._keep(job, prefill.cache.tensor[:, :, row], logits[0][row])
            else:
                logit_rows += [sum(len(part) for part in logits)] * count
                logits.append(job.prefix.logits[None])
            rows = self._slots.add(job, samples, job.prefix.shared)
            kept = job.prefix.keys_values
            if kept is not None:
                cache.tensor[:, :, rows, :, : kept.shape[3]] = kept[:, :, None]
            if not job.num_waiting:
                job.prefix = None
        self._draw(torch.cat(logits)[logit_rows], slice(start, self._slots.active))

    def _keep(self, job: Job, computed: torch.Tensor, logits: torch.Tensor) -> Prefix:
        """A computed prompt for the samples of ``job``: in a place that they share, or, if some have to wait, as a copy
        of ``computed`` [layers, 2, kv_heads, length, head_dim], which the next prompts will overwrite."""
        assert self._shared
        length = len(job.request.token_ids)
        computed = computed[:, :, :, : padded_length(length)]
        if self._forward.shares_prompts and is_shared(job.request):
            waiting = {job.prefix.shared for job in self._jobs.values() if job.prefix is not None}
            used = waiting | set(self._slots.shared[: self._slots.active].tolist())
            return Prefix(logits=logits.clone(), shared=self._shared.put(computed, length, used - {-1}))
        if job.num_waiting:
            return Prefix(logits=logits.clone(), keys_values=computed.clone())
        return Prefix(logits=logits, keys_values=computed)

    def _choose(self, max_prompts: int) -> list[tuple[Job, int]]:
        """The next requests in order with the number of samples that fit, at most ``max_prompts`` to compute."""
        free = self._num_slots - self._slots.active
        chosen: list[tuple[Job, int]] = []
        while self._waiting and free and len(chosen) < max_prompts:
            job = self._waiting[0]
            count = min(free, job.num_waiting)
            chosen.append((job, count))
            free -= count
            if count < job.num_waiting:
                break
            self._waiting.popleft()
        return chosen

    def _decode(self, weights: HeldWeights, cache: KVCache, prompts: SharedPrompts) -> None:
        slots = self._slots
        active = slots.active
        rows = self._padding.rows(active)
        longest = int((slots.position[:active] - slots.base[:active]).max()) + 1
        keys = self._padding.keys(longest, cache, 1)
        shared = prompts.past(slots.shared[:rows], slots.base[:rows], self._device)
        ids = torch.from_numpy(slots.token[:rows, None]).to(self._device)
        positions = torch.from_numpy(slots.position[:rows, None]).to(self._device)
        state = self._forward.hidden(weights, cache, 0, ids, positions, keys, shared)
        logits = self._forward.logits(weights, state[:, 0])
        slots.position[:active] += 1
        self.steps += 1
        self._draw(logits[:active], slice(0, active))

    def _draw(self, logits: torch.Tensor, rows: slice) -> None:
        tokens, logprobs = draw_tokens(logits, self._slots.draws(rows))
        if not np.isfinite(logprobs).all():
            row = rows.start + int(np.flatnonzero(~np.isfinite(logprobs))[0])
            raise TrainError(
                f"Weights version {self.version} give a log-prob that is not finite for request "
                f"{self._slots.job(row).request.id!r}: training has diverged. Lower the learning rate or max_grad_norm."
            )
        self._slots.record(rows, tokens, logprobs)
        self.generated_tokens += len(tokens)
        ended, stopped = self._slots.finished()
        if len(ended):
            self._end_rows(ended[stopped], "stop", ended[~stopped])

    # --- endings ---------------------------------------------------------------------------------------------------

    def _end_rows(self, rows: NDArray[np.int64], finish: Finish, at_length: NDArray[np.int64] | None = None) -> None:
        """Hand over ``rows`` as ``finish`` and ``at_length`` as ``length``, in row order, and free them."""
        finishes: dict[int, Finish] = dict.fromkeys(rows.tolist(), finish)
        if at_length is not None:
            finishes.update(dict.fromkeys(at_length.tolist(), "length"))
        ended = sorted(finishes)
        for row in ended:
            self._hand_over(self._slots.job(row), self._slots.completion(row, finishes[row], self.version))
        self._remove_rows(np.array(ended, np.int64))

    def _hand_over(self, job: Job, completion: Completion) -> None:
        job.num_done += 1
        job.tokens_done += len(completion.token_ids_T)
        job.started.pop(completion.index, None)
        self._outbox.append((job, completion))
        if job.num_done == len(job.request.seeds):
            job.over = True
            self._jobs.pop(job.request.id)

    def _remove_rows(self, rows: NDArray[np.int64]) -> None:
        if len(rows):
            moves = self._slots.remove(rows)
            if len(moves.source) and self._cache:
                source = torch.from_numpy(moves.source).to(self._device)
                target = torch.from_numpy(moves.target).to(self._device)
                self._cache.move(source, target, moves.length)

    def _forget_waiting(self) -> None:
        self._waiting = deque(job for job in self._waiting if not job.over)
        self._held = deque(job for job in self._held if not job.over)

    def _refuse(self, message: str, cause: BaseException | None) -> None:
        """Set why nothing is served, and end every request with it."""
        self._refusal = Failure(message=message, cause=cause)
        for job in self._jobs.values():
            job.over = True
            self._outbox.append((job, self._refusal))
        self._jobs.clear()
        self._forget_waiting()
        self._slots.clear()
        self._pause_if_drained()

    # --- pausing ---------------------------------------------------------------------------------------------------

    def _pause_if_drained(self) -> None:
        if self._window and not self._paused and not self._slots.active and not self._waiting:
            self._pause()

    def _pause(self) -> None:
        assert self._window and self._weights
        self._paused = True
        self.flush()  # whoever opens the window finds the drained completions delivered
        self._window.set_result(self._weights)

    def _resume(self) -> None:
        self._window = None
        self._paused = False
        self._waiting += self._held
        self._held.clear()

    def _allocate_caches(self) -> None:
        if self._cache is None:
            cache = self._forward.new_cache(self._rows, self._length)
            self._shared = SharedPrompts(self._forward.new_cache, self._length, self._padding)
            self._prefixes = Prefixes(self._prefix_tokens, cache.tensor)
            prompts = min(self._rows, PROMPT_ROWS)
            self._prefill = Prefill(self._forward, prompts, self._length, self._padding, self._prefixes)
            self._cache = cache  # the last, so that what could not be taken whole is taken anew
