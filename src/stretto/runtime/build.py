"""Opens the parts of a run, in the order of a start-up, each owned by the disposer at the line that opens it.

The only file that names the classes behind the Protocols.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import xxhash

from stretto.backends.torch.hf_config import check_weights, load_hf_config
from stretto.config.backends import FakeBackendConfig
from stretto.config.by_step import value_at
from stretto.config.evaluation import HELD_OUT
from stretto.config.prompts import AdditionPrompts
from stretto.config.recipe import Recipe
from stretto.config.rewards import RewardConfig
from stretto.config.rollouts import FakeEngineConfig, NativeEngineConfig
from stretto.data.locations import folder_of, locate
from stretto.data.order import split
from stretto.data.sources import Intake, read_prompts
from stretto.data.tokens import Tokenizer, load_tokenizer
from stretto.environments.contract import Factory, check_factory, check_settings, resolve_environment
from stretto.environments.rewards import Reward, Rewards
from stretto.environments.rewards.resolve import resolve_rewards
from stretto.errors import ConfigError, DataError
from stretto.families.decoder import own_decoder
from stretto.families.facts import max_positions_of
from stretto.graph import Graph, Workflow, models_of
from stretto.roles import Sampling
from stretto.runtime.eval_sets import main_sets, own_rewards, warmup_sets
from stretto.runtime.exports import check_scorer, exported
from stretto.runtime.filters import GroupFilter, filter_of
from stretto.runtime.graphs import main_graph, warmup_graph
from stretto.runtime.pairs import check_pairs
from stretto.runtime.phases import Phase, main_phase, warmup_phase, with_saved
from stretto.runtime.saved import read_saved
from stretto.runtime.scores import check_scores
from stretto.runtime.teachers import check_teacher, locate_teacher
from stretto.store import PromptsBody
from stretto.types import Prompt

if TYPE_CHECKING:
    pass

__all__ = [
    "Given",
    "Job",
    "evaluation_engines",
    "max_len_of",
    "needed_models",
    "prefix_tokens_of",
    "prepare",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Given:
    """Python objects passed to ``stretto.train`` in place of names in the recipe."""

    workflow: Workflow | None = None
    prompts: object | None = None
    reward: Reward | Mapping[str, Reward] | None = None
    environment: Factory | None = None
    filter: GroupFilter | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A recipe with everything resolved that needs no device: what will run, on what. Made before a run is created.

    ``model``: where the policy is read from (a folder, or a built-in name); the recipe names the commit if it is from
    the hub. ``teacher``: the same of the teacher, if there is one.
    """

    recipe: Recipe
    model: str
    phases: tuple[Phase, ...]
    tokenizer: Tokenizer
    train: Sequence[Prompt]
    held_out: Sequence[Prompt]
    intake: Intake
    rewards: Rewards
    set_rewards: Mapping[str, Rewards]
    environment: Factory | None = None
    teacher: str | None = None

    @property
    def exports(self) -> str:
        """The Model that the run hands on."""
        return exported(self.phases[-1].graph)

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph of every phase."""
        return tuple(phase.graph for phase in self.phases)

    @cached_property
    def data_hash(self) -> str:
        """A hash of all prompts with what judges them: a run goes on only with the data it was begun with."""
        return _hash((*self.train, *self.held_out))

    @cached_property
    def set_hashes(self) -> Mapping[str, str]:
        """The same of every further evaluation set, by phase and name: its numbers are of one set of prompts."""
        return {
            f"{phase.name}/{s.name}": _hash(s.everything)
            for phase in self.phases
            for s in phase.sets
            if s.name != HELD_OUT
        }

    @property
    def read(self) -> PromptsBody:
        """What was read of the prompts, as a run records it."""
        return PromptsBody(
            source=self.intake.source,
            read=self.intake.read,
            skipped=self.intake.skipped,
            truncated=self.intake.truncated,
            train=len(self.train),
            held_out=len(self.held_out),
            notes=self.intake.notes,
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest row that may come to be, in training or evaluation."""
        return max(length.tokens for length in self.lengths())

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        evaluated = (prompt for phase in self.phases for s in phase.sets for prompt in s.prompts)
        return max(len(p.token_ids) for p in (*self.train, *self.held_out, *evaluated))

    def lengths(self) -> Iterator["Length"]:
        """The longest prompt with the longest completion of each kind, and the longest attempt of several turns."""
        key, limit = "sampling.max_tokens", self.recipe.sampling.max_tokens
        prompt = max(len(p.token_ids) for p in (*self.train, *self.held_out))
        yield Length(tokens=prompt + limit, what=f"the longest prompt with {key}={limit}", key=key, limit=limit)
        for phase in self.phases:
            for s in phase.sets:
                limit = s.sampling.max_tokens
                what = f"the longest prompt of evaluation set {s.name} with its max_tokens={limit}"
                prompt = max(len(p.token_ids) for p in s.prompts)
                yield Length(tokens=prompt + limit, what=what, key=s.max_tokens_key, limit=limit)
        several = self.recipe.environment
        if several is not None:
            key, limit = "environment.max_total_tokens", several.max_total_tokens
            yield Length(tokens=limit, what=f"an attempt of {key}={limit}", key=key, limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Tokens of a row that may come to be, ``what`` it is, and the ``key`` of the recipe that allows it ``limit``."""

    tokens: int
    what: str
    key: str
    limit: int


def _hash(prompts: Sequence[Prompt]) -> str:
    digest = xxhash.xxh3_64()
    for prompt in prompts:
        digest.update(prompt.uid.encode("utf-8", "surrogatepass"))  # any string may be a uid
        digest.update(prompt.token_ids.tobytes())
        digest.update(json.dumps(dict(prompt.data), sort_keys=True, default=list).encode())
    return digest.hexdigest()


def prepare(recipe: Recipe, given: Given, *, trains: bool = True) -> Job:
    """Resolve the recipe: graphs, tokenizer, prompts, reward. Raises UserError for whatever cannot work; without
    ``trains`` (an evaluation) all prompts may be held out."""
    graphs = [main_graph(recipe, given.workflow)]
    if recipe.warmup is not None:
        graphs.insert(0, warmup_graph(recipe))
    model = locate(recipe.model.path, recipe.model.revision)
    if model.revision != recipe.model.revision:  # the commit of a branch that may move
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"revision": model.revision})})
    models = needed_models(graphs)
    recipe, teacher = locate_teacher(recipe, models)
    if not isinstance(recipe.backend, FakeBackendConfig):
        for path in (model.path, *([teacher] if teacher else [])):
            check_weights(path)
            _check_family(path)
        _check_lora(recipe, model.path)
        if "reward" in models:
            check_scorer(recipe, model.path)
    _check_devices(recipe)
    rewards = resolve_rewards(recipe.reward, given.reward)
    environment = given.environment
    if recipe.environment is not None and environment is None:
        environment = resolve_environment(recipe.environment.use)
    if recipe.environment is not None and environment is not None:
        check_factory(recipe.environment.use, environment)
        check_settings(recipe.environment.use, environment, recipe.environment.settings)
    tokenizer = load_tokenizer(model.path)
    intake = read_prompts(recipe.prompts, tokenizer, given.prompts)
    train, held_out = split(intake.prompts, recipe.prompts.held_out, recipe.seed)
    if trains and not train:
        raise DataError(
            "prompts.held_out=1 leaves no prompt to train on. It is for `stretto eval`; to train, set a smaller share, "
            "such as prompts.held_out=0.2."
        )
    drawn = train or held_out  # an evaluation draws none
    s = recipe.sampling
    sampling = Sampling(
        temperature=value_at(s.temperature, 0),
        top_k=s.top_k,
        top_p=s.top_p,
        min_p=s.min_p,
        max_tokens=s.max_tokens,
        stop_ids=tokenizer.stop_ids,
        stop=s.stop,
    )
    filters = filter_of(recipe, given.filter)
    sets = main_sets(recipe, graphs[-1], held_out, tokenizer)
    phases = [main_phase(recipe, graphs[-1], drawn, sampling, sets, filters)]
    if recipe.debug.rollouts_from is not None and trains:
        saved = read_saved(recipe.runs_dir, recipe.debug.rollouts_from, graphs[-1])
        phases[0] = with_saved(phases[0], saved)
    if recipe.warmup is not None:
        sets = warmup_sets(recipe, graphs[0], held_out, tokenizer)
        phases.insert(0, warmup_phase(recipe, graphs[0], drawn, sampling, sets))
    job = Job(
        recipe=recipe,
        model=model.path,
        phases=tuple(phases),
        tokenizer=tokenizer,
        train=train,
        held_out=held_out,
        intake=intake,
        rewards=rewards,
        set_rewards={key: _named_reward(key, config) for key, config in own_rewards(recipe).items()},
        environment=environment,
        teacher=teacher,
    )
    max_len_of(job)
    if teacher is not None and not isinstance(recipe.backend, FakeBackendConfig):
        check_teacher(recipe, teacher, model.path, tokenizer, job.longest)
    check_scores(recipe, rewards, job.set_rewards, [s for phase in phases for s in phase.sets], environment)
    _check_vocabulary(job)
    _check_judged(job)
    return job


def _named_reward(key: str, config: RewardConfig) -> Rewards:
    try:
        return resolve_rewards(config)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error


def _check_family(path: str) -> None:
    """A family that Stretto has no forward of its own for is looked at before a run is created."""
    config = load_hf_config(path)
    if own_decoder(config) is None:
        # transformers takes seconds to import: the usual families do without.
        from stretto.families.modules import inspect_family

        inspect_family(config)


def _check_judged(job: Job) -> None:
    """The rewards can judge every prompt that they will be given, as far as they can tell before; pairs are pairs."""
    fake = isinstance(job.recipe.engine, FakeEngineConfig)
    positions = None if fake else max_positions_of(load_hf_config(job.model))
    if any(spec.use == "prefer" for graph in job.graphs for spec in graph.nodes):
        check_pairs(job.train, job.tokenizer, positions)
    if any(role.kind == "judge" for graph in job.graphs for spec in graph.nodes for role in spec.roles.values()):
        job.rewards.check(job.train)
    for phase in job.phases:
        for s in phase.sets:
            if s.pairs is not None:
                check_pairs(s.prompts, job.tokenizer, positions)
                continue
            (job.set_rewards[s.judge] if s.judge else job.rewards).check(s.prompts)


def _check_devices(recipe: Recipe) -> None:
    """Devices other than the CPU are tried before a run is created; that costs the import of torch."""
    for key, section in (("backend.device", recipe.backend), ("engine.device", recipe.engine)):
        device = getattr(section, "device", "cpu")
        if device != "cpu":
            from stretto.backends.torch.devices import open_device

            open_device(device, key)


def evaluation_engines(recipe: Recipe) -> int:
    """How many engines a run has for evaluations alone."""
    warmup = recipe.warmup
    return max(recipe.evaluate.engines, warmup.evaluate.engines if warmup and not warmup.until else 0)


def prefix_tokens_of(job: Job) -> int:
    """Tokens of prompts that the native engine remembers."""
    recipe, engine = job.recipe, job.recipe.engine
    if isinstance(engine, FakeEngineConfig):
        return 0
    if engine.prefix_tokens is not None:
        return engine.prefix_tokens
    return engine.slots * max_len_of(job) // 2 if recipe.environment is not None else 0


def max_len_of(job: Job) -> int:
    """The longest sequence the engine must hold, in tokens."""
    e, several = job.recipe.engine, job.recipe.environment
    if several is not None and job.longest_prompt >= several.max_total_tokens:
        raise DataError(
            f"environment.max_total_tokens={several.max_total_tokens} leaves nothing to write after the longest "
            f"prompt, which has {job.longest_prompt} tokens. Raise it, or use shorter prompts."
        )
    needed = max(job.lengths(), key=lambda length: length.tokens)
    longest, needs = needed.tokens, needed.what
    if isinstance(e, FakeEngineConfig):
        return longest
    if e.max_len and e.max_len < longest:
        raise DataError(
            f"engine.max_len={e.max_len} is shorter than {needs}: {longest} tokens. "
            "Raise engine.max_len, or leave it 0."
        )
    positions = max_positions_of(load_hf_config(job.model))
    if positions is not None and (e.max_len or longest) > positions:
        raise DataError(
            f"{needs} is {longest} tokens (engine.max_len={e.max_len}), and the model was made for {positions}. "
            f"Set {_shorter(job, needed, positions)}."
        )
    return e.max_len or longest


def _shorter(job: Job, needed: Length, positions: int) -> str:
    """The keys that make a row fit into the model's positions, with values that do."""
    e = job.recipe.engine
    if isinstance(e, NativeEngineConfig) and e.max_len > positions:
        return f"engine.max_len=0, or at most {positions}"
    prompt = needed.tokens - needed.limit
    fewer = f"{needed.key}={positions - prompt} or less" if prompt < positions else ""
    left = positions - needed.limit
    a_set = needed.key.startswith(("evaluate.", "warmup."))
    if fewer and (needed.limit > positions // 2 or isinstance(job.recipe.prompts, AdditionPrompts) or a_set):
        return fewer
    if a_set or left < 1:
        return f"{needed.key} lower, and shorten the prompts below {positions} tokens: the longest has {prompt}"
    return (
        f"prompts.max_prompt_tokens={left} with prompts.too_long=skip (or truncate, for plain text)"
        f"{f', or {fewer}' if fewer else ''}"
    )


def _check_vocabulary(job: Job) -> None:
    """Every token of a prompt is one the model has: a tokenizer may know more, and a given Prompt may hold anything."""
    if isinstance(job.recipe.engine, FakeEngineConfig):
        return
    size = load_hf_config(job.model).get("vocab_size")
    evaluated = (prompt for phase in job.phases for s in phase.sets for prompt in s.prompts)
    for prompt in (*job.train, *job.held_out, *evaluated):
        ids = prompt.token_ids
        if isinstance(size, int) and (ids.min() < 0 or ids.max() >= size):
            raise DataError(
                f"prompt {prompt.uid!r} has token ids from {ids.min()} to {ids.max()}, and those of the model in "
                f"{job.recipe.model.path} are 0 to {size - 1}. Use the model's own tokenizer, or mend the prompt."
            )


def needed_models(graphs: Sequence[Graph]) -> Mapping[str, frozenset[str]]:
    """Every Model of these graphs with all its roles; the policy is always there."""
    needed: dict[str, frozenset[str]] = {"policy": frozenset({"generate"})}
    for graph in graphs:
        for model, roles in models_of(graph).items():
            needed[model] = needed.get(model, frozenset()) | roles
    return needed


def _check_lora(recipe: Recipe, path: str) -> None:
    """Adapters can be made, on linear maps that the model has, and be exported as asked."""
    if recipe.model.lora is None:
        return
    from stretto.backends.torch.lora import count_adapters, require_peft  # loads torch

    require_peft()
    count_adapters(load_hf_config(path), recipe.model.lora)
    if recipe.model.lora.export == "adapter" and folder_of(path) is None:
        raise ConfigError(
            f"model.lora.export=adapter needs a base that other tools can load, and {path} is drawn from the seed. "
            "Set model.lora.export=merged."
        )
