"""``TorchBackend``: the Models of one worker, scored and trained with torch in one process, or on several ranks.

    accumulate   cut the batch into micro-batches in key order; each: forward, loss as a weighted sum, backward
    update       norm of the gradient -> clip -> AdamW at the given rate -> gradient cleared; not finite: skipped

Gradients and master weights are float32; bfloat16 is autocast around the forward pass. Nothing here reads or moves a
global random state, and everything repeats to the bit at an equal number of threads. How tokens are packed, attention,
log-probs, losses and files are in modules of their own.

On several ranks Models are cut into shards, and every rank calls every method, in the same order and with the same
arguments. Rows are shared out; ranks with fewer micro-batches compute idle ones, for weights are gathered together.
Gradients, metrics and failures are sums over all ranks, and what is returned is whole and equal on each.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import xxhash
from torch import Tensor
from torch.nn import Parameter

from stretto.algorithms.losses import Tokens, resolve_loss, with_ess
from stretto.backends.torch.attention import gather_rows
from stretto.backends.torch.devices import open_device
from stretto.backends.torch.given import SAMPLED, SAMPLER, given_columns
from stretto.backends.torch.held import Held, moments_of, weights_of
from stretto.backends.torch.logprobs import Head, over_vocabulary, token_logprobs
from stretto.backends.torch.lora import BaseOrigin, export_adapter
from stretto.backends.torch.models import ModelSpec, Network, build_network
from stretto.backends.torch.optimizer import AdamW
from stretto.backends.torch.packing import Microbatches, Pack, idle_pack, microbatches
from stretto.backends.torch.ranks import WHOLE, Cut, Ranks, check_ranks
from stretto.backends.torch.shards import local_of, whole_of
from stretto.backends.torch.shelf import Shelf
from stretto.backends.torch.state import (
    check_base,
    check_fixed,
    export_folder,
    hash_tensors,
    load_model,
    load_optimizer,
)
from stretto.backends.torch.stored import is_stored
from stretto.config.backends import TorchBackendConfig
from stretto.errors import ConfigError, StoreError, nearest
from stretto.families.shapes import facts_of
from stretto.plan import Computing, microbatch_tokens
from stretto.roles import NamedTensor, TrainMemory, Want
from stretto.types import Array, Batch, Column, Json, LossRef, Metric, Metrics, UpdateReport, merge_metrics

__all__ = ["ModelSpec", "TorchBackend", "set_threads"]


def set_threads(threads: int) -> None:
    """Give the calling thread this many intra-op threads.

    torch keeps the number per calling thread: call this first in the thread that will use the backend.
    """
    torch.get_num_threads()  # a thread's first torch call takes over a process-wide default: make it before ours
    torch.set_num_threads(threads)


class TorchBackend:
    """Implements ``stretto.roles.TrainBackend``."""

    def __init__(
        self,
        models: Mapping[str, ModelSpec],
        config: TorchBackendConfig,
        seed: int,
        *,
        offload_to: Literal["memory", "disk"] = "memory",
        ranks: Ranks | None = None,
    ) -> None:
        """Build every Model of ``models``. DataError names a folder that cannot be used, ConfigError a device.

        ``offload_to``: where what ``set_memory`` releases goes. ``ranks``: those among which Models are cut."""
        self._config = config
        self._ranks = ranks if ranks is not None and ranks.size > 1 else None
        self._cut = WHOLE if self._ranks is None else self._ranks.cut
        if self._ranks is not None:
            check_ranks(self._ranks.size, config, offload_to)
        self._offload_to: Literal["memory", "disk"] = offload_to
        self._away: dict[str, Shelf[tuple[str, str]]] = {}
        self._device = open_device(config.device, "backend.device")
        self._models: dict[str, Held] = {}
        self._specs = dict(models)
        # The policy first: with adapters, a frozen Model that starts from the same base is a set of adapters on it.
        for name, spec in sorted(models.items(), key=lambda item: (item[0] != "policy", item[0])):
            network, base = self._build(name, spec, models.get("policy"), seed)
            facts = None
            if config.microbatch_memory is not None:
                facts = facts_of(network.config, value_head=spec.value_head)
            self._models[name] = Held(network, None, facts, base, fixed=spec.fixed)
            self._most_tokens(self._models[name], Batch(groups=()), backward=spec.trainable)
        self._cut_models()
        for name, held in self._models.items():
            if models[name].fixed:
                held.base = {"path": models[name].path, "weights": hash_tensors(held.network.weights())}
            if models[name].trainable:
                held.optimizer = AdamW(held.network.own_parameters(), config)

    def score(self, model: str, batch: Batch, want: frozenset[Want]) -> tuple[Column, ...]:
        """Per-token Columns, float32, in the order logprobs, entropy, values; 0 where nothing was written."""
        network = self._held(model).network
        for name in sorted(want):
            if (name == "values") != network.has_values:
                have = "values" if network.has_values else "logprobs and entropy"
                raise ConfigError(f"{name} of Model {model!r} were asked for, and it gives {have}. Name another Model.")
        columns: dict[str, Array] = {
            name: np.zeros(batch.num_tokens, np.float32) for name in ("logprobs", "entropy", "values") if name in want
        }
        most = self._most_tokens(self._held(model), batch, backward=False)
        with torch.no_grad():
            for pack, idle in self._evened(microbatches(batch, most, self._device, share=self._cut_of_rows)):
                if idle:
                    self._hidden(network, pack)
                    continue
                places = pack.flat_N.cpu().numpy()
                for name, tensor in self._says(network, self._hidden(network, pack), pack).items():
                    if name in columns:
                        columns[name][places] = tensor.cpu().numpy()
        network.release()
        if self._ranks is not None:
            # What others have computed is 0 here.
            columns = {name: self._ranks.add(self._send(values)).cpu().numpy() for name, values in columns.items()}
        return tuple(Column.per_token(name, batch, values) for name, values in columns.items())

    def accumulate(self, model: str, batch: Batch, columns: tuple[Column, ...], loss: LossRef) -> Metrics:
        """Add the gradient of ``loss`` over ``batch``; see ``stretto.algorithms.losses`` for what a loss is given.

        ``columns`` are per token and belong to ``batch``; ``weights`` must be among them. A loss that is not finite is
        remembered: the next ``update`` skips.
        """
        held = self._trained(model)
        function = resolve_loss(loss)
        given = given_columns(batch, columns, self._device)
        teachers = [self._held(name).network for name in loss.teachers]
        parts: list[Metrics] = []
        most = self._most_tokens(held, batch, backward=True)
        packs = microbatches(batch, most, self._device, loss.unit, self._cut_of_rows)
        for pack, idle in self._evened(packs, held.network):
            if idle:
                _go_back(self._says(held.network, self._idle_hidden(held.network, pack, teachers), pack))
                continue
            tokens = self._tokens(held.network, pack, given, teachers)
            out = function(tokens if loss.unit == "group" else replace(tokens, groups_R=None))
            parts.append(out.metrics)
            total = out.total.item()
            if math.isfinite(total):
                out.total.backward()
            else:
                held.failure = f"the loss of a micro-batch is {total}"
                if self._ranks is not None:
                    _go_back({"logprobs": tokens.logprobs_N, "values": tokens.values_N})
        if self._ranks is not None:
            for network in (held.network, *teachers):
                network.release()
            said = self._ranks.gather((merge_metrics(parts), held.failure))
            parts = [metrics for metrics, _ in said]
            held.failure = next((failure for _, failure in said if failure is not None), None)
        return with_ess(merge_metrics(parts))

    def update(self, model: str, lr: float) -> UpdateReport:
        """Clip to ``max_grad_norm``, step AdamW at ``lr``, clear the gradient.

        Skipped, with weights and optimizer untouched, if a loss or the gradient's norm was not finite, or if nothing
        was accumulated (no token to train on).
        """
        held = self._trained(model)
        assert held.optimizer is not None
        assert "optimizer" not in self._away, "the optimizer's state is released: set_memory('awake')"
        parameters = held.optimizer.parameters
        grads = [local_of(p.grad) for p in parameters.values() if p.grad is not None]
        metrics = {"lr": Metric("mean", lr)}
        norm_of = torch.nn.utils.get_total_norm if self._ranks is None else self._ranks.norm
        norm = norm_of(grads) if grads else torch.zeros(())
        value = norm.item()
        if held.failure is None and not grads:
            held.failure = "there is no gradient: no token of the batch was written by the policy"
        elif held.failure is None and not math.isfinite(value):
            held.failure = f"the norm of the gradient is {value}"
        skipped, held.failure = held.failure, None
        if skipped is None:
            metrics["grad_norm"] = Metric("mean", value)
            if value > self._config.max_grad_norm:
                # As torch.nn.utils.clip_grads_with_norm_, which takes no shards.
                torch._foreach_mul_(grads, self._config.max_grad_norm / (norm + 1e-6))  # pyright: ignore[reportPrivateImportUsage]
            held.optimizer.step(lr)
        _clear_gradients(parameters)
        return UpdateReport(model=model, metrics=metrics, skipped=skipped)

    def tensors(self, model: str) -> Iterator[NamedTensor]:
        """Every weight by Hugging Face name in a fixed order; ``lm_head.weight`` is there even if it is tied.

        Of a Model in shards one at a time is whole, on every rank, and gone when the next one is asked for.
        """
        for name, tensor in self._held(model).network.published():
            yield NamedTensor(name=name, data=whole_of(tensor))

    def gradients(self, model: str) -> Iterator[NamedTensor]:
        """What is accumulated since the last update, by name, tied weights once: to look at and to compare."""
        for name, parameter in self._held(model).network.own_parameters().items():
            if parameter.grad is not None:
                yield NamedTensor(name=name, data=whole_of(parameter.grad))

    def weights_hash(self, model: str) -> str:
        """A hash over the weights' names, types, shapes and bytes: equal for runs that went the same way."""
        return hash_tensors(self._held(model).network.published())

    def copy(self, source: str, target: str) -> None:
        """Set the trunk of ``target``, and its head if both have the same one, to those of ``source``."""
        into = self._held(target).network
        weights = self._held(source).network.own_parameters()
        wanted = {name: p for name, p in into.own_parameters().items() if not name.startswith("value_head.")}
        for name, parameter in wanted.items():
            if name not in weights or weights[name].shape != parameter.shape:
                raise ConfigError(
                    f"Model {target!r} cannot take the weights of {source!r}: {name!r} is missing there or has another "
                    "shape. Give both the same path."
                )
        with torch.no_grad():
            for name, parameter in wanted.items():
                local_of(parameter).copy_(local_of(weights[name]))

    def reset_optimizer(self, model: str) -> None:
        """Forget AdamW's moments and step counts, and any gradient."""
        held = self._trained(model)
        parameters = held.network.own_parameters()
        _clear_gradients(parameters)
        held.optimizer = AdamW(parameters, self._config)
        held.failure = None

    def capture(self, *, copy: bool = False) -> Callable[[Path], None]:
        """What writes ``<model>.safetensors``, and ``<model>.optimizer.safetensors`` and ``.json`` where it is trained.

        Of a Model with adapters these are the adapters, and ``<model>.base.json`` says by a hash what they stand on; of
        a fixed Model there is that file alone. What has been released is read from where it lies. Ranks that hold
        shards write files of their own (``stored``), and any number of ranks reads them.
        """
        lying = self._lies("weights"), self._lies("optimizer")
        states = [held.state(name, *lying, self._cut) for name, held in self._models.items()]
        if self._ranks is not None and not self._ranks.writes:
            states = []
        if copy:
            states = [state.copied() for state in states]

        def write(folder: Path) -> None:
            for state in states:
                state.write(folder)

        return write

    def set_memory(self, level: TrainMemory) -> None:
        """Put optimizer state, or weights as well, where ``offload.to`` says, or take them back."""
        for held in self._models.values() if self._ranks is not None else ():
            held.network.put_shards(torch.device("cpu") if level == "weights_released" else self._device)
        for part, tensors in (("optimizer", moments_of), ("weights", weights_of)):
            away = level == "weights_released" or (level == "optimizer_released" and part == "optimizer")
            if away and part not in self._away:
                shelf = self._away[part] = Shelf(self._offload_to)
                try:
                    shelf.put(tensors(self._models))
                except BaseException:
                    del self._away[part]
                    raise
            elif not away and part in self._away:
                self._away.pop(part).give_back()

    def load(self, path: Path) -> None:
        """Restore every Model from ``path``, with all memory taken back. StoreError names a file that is missing or of
        another Model or base."""
        self.set_memory("awake")
        for name, held in self._models.items():
            if self._specs[name].fixed:
                assert held.base is not None
                check_fixed(name, held.base, path / f"{name}.base.json")
                continue
            if not is_stored(path, name):
                raise StoreError(f"the checkpoint {str(path)!r} has no weights of Model {name!r}. Take another one.")
            load_model(held.network, path, name, self._cut)
            if held.base is not None:
                check_base(held.base, path / f"{name}.base.json")
            if held.optimizer is not None:
                self.reset_optimizer(name)
                load_optimizer(held.optimizer, path, name, self._cut)

    def export(self, model: str, path: Path) -> None:
        """Write ``config.json`` and ``model.safetensors`` into ``path``, which is made if it is missing.

        Adapters are merged, or written alone as peft reads them if ``lora.export`` says so.
        """
        network, spec = self._held(model).network, self._specs[model]
        network.release()
        writes = self._ranks is None or self._ranks.rank == 0
        if network.adapter is not None and spec.lora is not None and spec.lora.export == "adapter":
            origin = spec.origin or BaseOrigin(name=spec.path)
            export_adapter(network, network.adapter, spec.lora, origin, path, writes=writes)
        else:
            export_folder(network, path, writes=writes)

    def close(self) -> None:
        """Free every Model. Idempotent."""
        self._models.clear()
        self._away.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _lies(self, part: str) -> Mapping[tuple[str, str], Tensor]:
        """What has been released of it, and where it is read."""
        return self._away[part].read() if part in self._away else {}

    def _build(
        self, name: str, spec: ModelSpec, policy: ModelSpec | None, seed: int
    ) -> tuple[Network, Mapping[str, Json] | None]:
        """The Model, and what its adapters stand on if it has any."""
        build = partial(
            build_network,
            seed=seed,
            device=self._device,
            activation_checkpointing=self._config.activation_checkpointing,
        )
        if spec.lora is None:
            return build(spec, later=self._ranks is not None), None
        frozen = not spec.trainable and not spec.value_head
        if frozen and name != "policy" and policy is not None and (policy.path, policy.lora) == (spec.path, spec.lora):
            held = self._models["policy"]
            return held.network.with_adapters(name, spec.lora, seed=None, trained=False), held.base
        own_seed = xxhash.xxh3_64_intdigest(f"adapters of {name} from {seed}".encode()) >> 1
        base = build(replace(spec, trainable=False))
        known = {"weights": hash_tensors(base.trunk_weights()), "alpha": spec.lora.alpha}
        return base.with_adapters(name, spec.lora, seed=own_seed, trained=spec.trainable), known

    def _cut_models(self) -> None:
        """Every base once, with all adapters that stand on it."""
        done: list[Network] = []
        for held in self._models.values() if self._ranks is not None else ():
            assert self._ranks is not None
            if not any(held.network.stands_on(other) for other in done):
                held.network.cut(self._ranks)
                done.append(held.network)

    @property
    def _cut_of_rows(self) -> Cut:
        """This rank among those that share out rows: copies do as well as shards."""
        return WHOLE if self._ranks is None else Cut(place=self._ranks.rank, parts=self._ranks.size)

    def _evened(self, packs: Microbatches, learns: Network | None = None) -> Iterator[tuple[Pack, bool]]:
        """The packs, and then as many idle ones as make every rank compute equally often. Of a Model that ``learns``
        gradients are summed over copies in the last backward pass alone."""
        # Asked before the first one: ranks wait for each other in every forward pass.
        most = len(packs) if self._ranks is None else self._ranks.most(len(packs))
        idle = (idle_pack(self._device) for _ in range(most - len(packs)))
        for number, pack in enumerate(chain(packs, idle), 1):
            if self._ranks is not None and learns is not None:
                learns.sum_over_copies(now=number == most)
            yield pack, number > len(packs)

    def _send(self, values: Array) -> Tensor:
        return torch.from_numpy(values).to(self._device)

    def _most_tokens(self, held: Held, batch: Batch, *, backward: bool) -> int:
        """Of a micro-batch of ``batch``. ConfigError if ``microbatch_memory`` is too little for any."""
        if held.facts is None:
            return self._config.microbatch_tokens
        longest = max((len(t.token_ids_T) for t in batch.trajectories), default=1)
        learns = held.network.adapter is None
        how = Computing.of(self._config, longest=longest, backward=backward, learns=learns)
        return microbatch_tokens(held.facts, self._config, how)

    def _hidden(self, network: Network, pack: Pack) -> Tensor:
        """The states that predict the written tokens of ``pack`` [N, C], in the type in which a head takes them."""
        low = self._config.dtype == "bfloat16"
        # Kept casts would be all weights of a Model at once, and each is used once.
        with torch.autocast(self._device.type, torch.bfloat16, enabled=low, cache_enabled=self._ranks is None):
            hidden_P = network.hidden(pack)
        hidden_N = gather_rows(hidden_P, pack.source)
        low = (self._config.head_dtype or self._config.dtype) == "bfloat16"
        return hidden_N.bfloat16() if low and not network.has_values else hidden_N

    def _idle_hidden(self, network: Network, pack: Pack, teachers: Sequence[Network]) -> Tensor:
        """As ``_tokens`` computes them, of every Model in turn."""
        with torch.no_grad():
            for teacher in teachers:
                self._hidden(teacher, pack)
        return self._hidden(network, pack)

    def _says(self, network: Network, hidden_N: Tensor, pack: Pack) -> dict[str, Tensor]:
        """What ``network`` says about these tokens: values, or logprobs and entropy, [N] float32."""
        if network.has_values:
            return {"values": network.value_head(hidden_N.float()).squeeze(1)}
        # Outside autocast: the head decides itself what is kept in float32.
        logprobs_N, entropy_N = token_logprobs(
            hidden_N, network.head.weight, pack.targets_N, pack.inverse_temperature_N, network.logits
        )
        return {"logprobs": logprobs_N, "entropy": entropy_N}

    def _tokens(self, network: Network, pack: Pack, given: Mapping[str, Tensor], teachers: Sequence[Network]) -> Tokens:
        own = {name: tensor.index_select(0, pack.flat_N) for name, tensor in given.items()}
        with torch.no_grad():
            heads = [Head(self._hidden(n, pack), n.head.weight, n.logits) for n in teachers]
        # After the teachers: an adapter is active on a shared base until another one is.
        hidden_N = self._hidden(network, pack)
        forward = self._says(network, hidden_N, pack)
        vocabulary = None
        if teachers and not network.has_values:
            own_head = Head(hidden_N, network.head.weight, network.logits)
            vocabulary = partial(over_vocabulary, (own_head, *heads), pack.inverse_temperature_N)
        return Tokens(
            weights_N=own.pop("weights"),
            sampler_logprobs_N=own.pop(SAMPLER),
            sampled_N=own.pop(SAMPLED) != 0,
            rows_N=pack.rows_N,
            num_rows=pack.num_rows,
            columns=own,
            logprobs_N=forward.get("logprobs"),
            entropy_N=forward.get("entropy"),
            values_N=forward.get("values"),
            groups_R=pack.groups_R,
            num_groups=pack.num_groups,
            vocabulary=vocabulary,
        )

    def _held(self, model: str) -> Held:
        assert "weights" not in self._away, "the weights are released: set_memory('awake') or 'optimizer_released'"
        if model not in self._models:
            raise ConfigError(f"the backend holds no Model {model!r}.{nearest(model, self._models)}")
        return self._models[model]

    def _trained(self, model: str) -> Held:
        held = self._held(model)
        if held.optimizer is None:
            raise ConfigError(f"Model {model!r} is frozen and cannot be trained. Train another, or make it trainable.")
        return held


def _go_back(said: Mapping[str, Tensor | None]) -> None:
    """A backward pass that adds exactly 0 to every gradient."""
    outputs = [tensor for tensor in (said.get("logprobs"), said.get("values")) if tensor is not None]
    torch.autograd.backward(outputs, [torch.zeros_like(tensor) for tensor in outputs])


def _clear_gradients(parameters: Mapping[str, Parameter]) -> None:
    """A Model's own alone: another one's adapters may stand on the same modules."""
    for parameter in parameters.values():
        parameter.grad = None
