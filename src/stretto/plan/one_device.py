"""The plan for one device: every Model on it, one rank, and the memory that takes against what is there.

Pure: no device is asked. Activations and what the process itself takes are estimates; every other part is that of the
native engine and the torch backend, which take turns in one process, but for long prompts that samples share while they
run and the padding of the KV cache.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from stretto.config.backends import TorchBackendConfig
from stretto.errors import ConfigError, nearest
from stretto.plan.activations import Computing, activation_bytes, microbatch_tokens
from stretto.plan.models import ModelFacts
from stretto.plan.sizes import LARGE_MATRIX, PROMPT_ROWS, show_bytes

__all__ = ["PARTS", "DeviceFacts", "ModelPlan", "Plan", "Usage", "check_plan", "make_plan"]

PARTS = ("weights", "gradients", "optimizer", "engine copy", "kv cache", "activations")
"""What memory goes to, in the order it is shown."""

PROCESS = 270 * 2**20
"""What Python, torch and their code take of a CPU's memory."""

MOMENTS = {"adamw": 8.0, "adamw8bit": 2 * (1 + 4 / 256)}
"""Bytes a parameter for AdamW's two moments: float32 each, or a code and a share of a block's scale."""

_KINDS = ("generate", "score", "train")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A device by name (``cpu``, ``cuda:0``) and the bytes of memory a run may take on it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How engine and backend use Models; ``engine_bytes`` are those of one number, ``head_bytes`` those of one of the
    head's matrix (None: as the others).

    ``slots`` sequences of up to ``max_len`` tokens are decoded at the same time by each of ``engines`` (evaluations may
    have their own), and ``prefix_tokens`` of prompts are remembered. Master weights are float32 whatever
    the backend computes in. ``adapter_parameters``: of a set of low-rank adapters, which alone are trained, and which
    are all that a Model that only scores adds to the policy; None: without.
    """

    slots: int
    max_len: int
    backend: TorchBackendConfig
    engine_bytes: int = 4
    head_bytes: int | None = None
    prefix_tokens: int = 0
    engines: int = 1
    adapter_parameters: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """One Model on its device: what it does there, and bytes by part (``PARTS``)."""

    name: str
    roles: tuple[str, ...]
    parameters: int
    memory: Mapping[str, int]

    @property
    def resident_bytes(self) -> int:
        """What it holds all the time: everything but activations."""
        return sum(size for part, size in self.memory.items() if part != "activations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who sits where, and what follows.

    ``layout`` is ``replicated``: each Model whole on the one device. ``programs`` gives each rank set its per-step
    nodes in order. ``process_groups`` is empty: one rank talks to nobody.
    """

    device: DeviceFacts
    models: tuple[ModelPlan, ...]
    programs: Mapping[tuple[int, ...], tuple[str, ...]]
    layout: str = "replicated"
    process_groups: tuple[tuple[int, ...], ...] = ()

    @property
    def total_bytes(self) -> int:
        """Everything resident, and the activations of the largest Model: Models compute one at a time."""
        turns = max((model.memory["activations"] for model in self.models), default=0)
        return self.process_bytes + sum(model.resident_bytes for model in self.models) + turns

    @property
    def process_bytes(self) -> int:
        """What the process takes before it holds a Model."""
        return PROCESS if self.device.name.startswith("cpu") else 0

    @property
    def fits(self) -> bool:
        """Whether the device has that much."""
        return self.total_bytes <= self.device.memory_bytes


def make_plan(
    models: Mapping[str, ModelFacts],
    roles: Mapping[str, Collection[str]],
    program: Sequence[str],
    device: DeviceFacts,
    usage: Usage,
) -> Plan:
    """The plan for one device.

    ``models`` are the Models there are; ``roles`` are those a graph needs, with the roles each is needed in
    (``stretto.graph.models_of``); ``program`` are the ids of its per-step nodes in order. A needed Model without facts
    raises ConfigError.
    """
    for name in roles:
        if name not in models:
            raise ConfigError(
                f"the workflow needs the Model {name!r}, which no config provides.{nearest(name, models)} "
                "Put its nodes on a Model of the run."
            )
    return Plan(
        device=device,
        models=tuple(_model_plan(name, models[name], roles[name], usage) for name in models if name in roles),
        programs=MappingProxyType({(0,): tuple(program)}),
    )


def check_plan(plan: Plan) -> None:
    """Refuse a plan that does not fit, with the numbers."""
    if plan.fits:
        return
    short = plan.total_bytes - plan.device.memory_bytes
    largest = max(
        ((size, part, model.name) for model in plan.models for part, size in model.memory.items()), default=None
    )
    most = f" The largest part is {largest[1]} of {largest[2]}, {show_bytes(largest[0])}." if largest else ""
    raise ConfigError(
        f"the run needs {show_bytes(plan.total_bytes)} on {plan.device.name}, which has "
        f"{show_bytes(plan.device.memory_bytes)}: {show_bytes(short)} too little.{most} "
        "Use a smaller model, engine.slots, engine.max_len or backend.microbatch_tokens, engine.dtype=bfloat16, "
        "backend.activation_checkpointing=true or backend.optimizer=adamw8bit."
    )


def _model_plan(name: str, facts: ModelFacts, roles: Collection[str], usage: Usage) -> ModelPlan:
    trains, generates = "train" in roles, "generate" in roles
    count = facts.parameters
    places = (usage.slots + min(usage.slots, PROMPT_ROWS)) * usage.max_len + usage.prefix_tokens
    kv = places * facts.kv_values_per_token * usage.engine_bytes
    held, learned = count, count
    if usage.adapter_parameters is not None:
        learned = usage.adapter_parameters + facts.value_head * facts.hidden
        held = usage.adapter_parameters + count * (trains or generates)
    memory = {
        "weights": 4 * held,
        "gradients": 4 * learned * trains,
        "optimizer": round(MOMENTS[usage.backend.optimizer] * learned) * trains,
        "engine copy": (usage.engine_bytes * count + _head_copy(facts, usage)) * generates * usage.engines,
        "kv cache": kv * generates * usage.engines,
        "activations": _activations(facts, roles, usage),
    }
    assert tuple(memory) == PARTS
    return ModelPlan(
        name=name,
        roles=tuple(kind for kind in _KINDS if kind in roles),
        parameters=count,
        memory=MappingProxyType(memory),
    )


def _head_copy(facts: ModelFacts, usage: Usage) -> int:
    """What the engine's head takes beside an embedding that is tied to it: it is packed, or of another type. (In
    bfloat16 it is packed by CPUs that multiply that type only.)"""
    matrix, width = facts.vocab_size * facts.hidden, usage.head_bytes or usage.engine_bytes
    return matrix * width if facts.tied and (matrix >= LARGE_MATRIX or width != usage.engine_bytes) else 0


def _activations(facts: ModelFacts, roles: Collection[str], usage: Usage) -> int:
    """Of one micro-batch; see ``stretto.plan.activations``."""
    if "train" not in roles and "score" not in roles:
        return 0
    config, backward = usage.backend, "train" in roles
    how = Computing.of(config, longest=usage.max_len, backward=backward, learns=usage.adapter_parameters is None)
    return activation_bytes(facts, microbatch_tokens(facts, config, how), how)
