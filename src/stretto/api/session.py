"""``stretto.session``: the parts of a run, for a loop of one's own.

    with stretto.session("grpo", reward=mine, model="path") as s:
        for _ in range(100):
            groups = s.rollout(s.prompts(8), n=8)
            s.train(groups)          # the recipe's own step, or s.update(batch, ..., loss=f)
            s.publish()

A session opens what a run opens (engine, reward processes, learner) and closes it on every way out. It keeps no record
of its own: what a loop wants to remember it prints or saves. Calls are synchronous; the work runs on the threads that
it runs on in a run, with the same seeds, so that equal calls give equal bits.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar, get_args, overload

from stretto.algorithms.aggregation import aggregation_weights
from stretto.api.arguments import PromptsLike, RewardLike, What, ask, with_model
from stretto.api.checks import check_choice, check_count, check_groups, check_prompts, check_rate, prompt_of
from stretto.api.place import Place, empty_folder, of_session, read_place, write_place
from stretto.config.algorithms import Aggregation
from stretto.config.by_step import whole_at
from stretto.config.debugging import DebugConfig
from stretto.config.recipe import Recipe
from stretto.errors import ConfigError, DataError, StoreError, nearest
from stretto.graph import Graph, NodeSpec, boundary_inputs, run_group
from stretto.roles import Want
from stretto.runtime.build import Given, max_len_of, prepare
from stretto.runtime.calling import call_group_node, check_group
from stretto.runtime.disposer import Disposer
from stretto.runtime.evaluation import EvalResult, evaluate
from stretto.runtime.graphs import main_graph
from stretto.runtime.learning import begin_phase
from stretto.runtime.opening import open_parts
from stretto.runtime.parts import Parts
from stretto.runtime.publishing import Publisher
from stretto.runtime.unread import refuse_unread
from stretto.together import together
from stretto.types import Batch, Column, Group, LossRef, Message, Prompt, Setting, StepReport, UpdateReport

__all__ = ["Session", "session"]

T = TypeVar("T")


class Session:
    """An opened session; made by ``stretto.session``. Not for several threads at the same time."""

    def __init__(self, recipe: Recipe, given: Given) -> None:
        if recipe.offload.acts:
            raise ConfigError(
                "a session calls engine and trainer in any order, and offload lets them take turns. Leave offload out."
            )
        self._job = prepare(recipe, given)
        refuse_unread(recipe, self._job.graphs)
        self._phase = self._job.phases[-1]
        self._given = given
        self._max_len = max_len_of(self._job)
        self._graphs: dict[int | None, Graph] = {None: self._phase.graph}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="stretto-session", daemon=True)
        self._thread.start()
        self._disposer = Disposer()
        self._closed = False
        self._next_draw = self._next_prompt = 0
        self._version, self._unpublished = -1, 0
        try:
            self._parts: Parts = self._run(open_parts(self._job, self._disposer, trains=False))
            self._run(self._parts.learners.call(begin_phase, self._last))
            self._publisher = Publisher(self._parts, recipe.publish)
            self.publish()
        except BaseException as failure:
            self._leave(failure)
            raise

    # --- what it is made of ----------------------------------------------------------------------------------------

    @property
    def recipe(self) -> Recipe:
        """The recipe, resolved."""
        return self._job.recipe

    @property
    def version(self) -> int:
        """The version of the weights that rollouts are sampled from: 0 at first, one more with each ``publish``."""
        return self._version

    @property
    def train_prompts(self) -> Sequence[Prompt]:
        """Every prompt to train on."""
        return self._job.train

    @property
    def held_out(self) -> Sequence[Prompt]:
        """The prompts kept for evaluation."""
        return self._job.held_out

    def prompts(self, count: int) -> list[Prompt]:
        """The next ``count`` prompts to train on, in the order in which a run of the same seed would draw them."""
        check_count("prompts", count, least=0)
        begin, self._next_prompt = self._next_prompt, self._next_prompt + count
        return [self._phase.prompt_of(index) for index in range(begin, begin + count)]

    def prompt(
        self, content: str | Sequence[Message | Mapping[str, str]], uid: str | None = None, **data: object
    ) -> Prompt:
        """A prompt made on the spot, from text or chat messages; ``data`` is what judges it (``answer=...``)."""
        made = prompt_of(self._job.tokenizer, content, uid, data)
        self._check_length(made.text, len(made.token_ids))
        return made

    # --- a step ----------------------------------------------------------------------------------------------------

    @overload
    def rollout(self, prompt: Prompt, n: int | None = None) -> Group: ...

    @overload
    def rollout(self, prompt: Sequence[Prompt], n: int | None = None) -> list[Group]: ...

    def rollout(self, prompt: Prompt | Sequence[Prompt], n: int | None = None) -> Group | list[Group]:
        """``n`` attempts at a prompt (or at each of several, at the same time), judged as the recipe says.

        It runs the per-group part of the recipe's workflow, so an environment or a node of one's own is heeded. ``n``
        left out is ``sampling.n``. Every group is another draw, with seeds of its own.
        """
        self._check_open()
        if n is not None:
            check_count("n", n)
        several = not isinstance(prompt, Prompt)
        prompts = check_prompts(prompt if several else [prompt])
        self._check_rollout(prompts)
        graph = self._graph(n)
        begin, self._next_draw = self._next_draw, self._next_draw + len(prompts)
        groups = self._run(together([self._group(graph, p, begin + i) for i, p in enumerate(prompts)]))
        return groups if several else groups[0]

    def keeps(self, group: Group) -> bool:
        """Whether the recipe's ``filter`` would let a run train on this group."""
        return self._phase.filter.judge(group.draw, {"group": group}) is None

    def train(self, groups: Group | Iterable[Group]) -> StepReport:
        """One step as the recipe's algorithm does it: advantages, reference, updates.

        Nothing is published by it: call ``publish()`` before the next rollout.
        """
        self._check_open()
        (boundary,) = self._boundary(self._phase.graph)
        rows = check_groups([groups] if isinstance(groups, Group) else groups)
        self._unpublished += 1
        step, worker = self._version, self._parts.worker
        result = self._run(worker.call(worker.run, self._phase.graph, {boundary: rows}, self._lr, step))
        self._run(worker.call(self._phase.end_step, self._parts.backend, step))
        return result.report

    def score(self, batch: Batch, want: Want = "logprobs", *, model: str = "policy") -> Column:
        """Per-token numbers of a Model over a batch, without gradient: logprobs, entropy or (of a critic) values."""
        self._check_open()
        check_choice("want", want, get_args(Want))
        check_groups(batch.groups)
        return self._run(self._parts.worker.call(self._parts.backend.score, model, batch, frozenset({want})))[0]

    def update(
        self,
        batch: Batch,
        *columns: Column,
        loss: str | Callable[..., object],
        model: str = "policy",
        lr: float | None = None,
        aggregate: Aggregation = "token_mean",
        norm: float | None = None,
        **settings: Setting,
    ) -> UpdateReport:
        """One optimizer update of ``loss`` over ``batch``.

        ``loss``: a built-in name (``clip``, ``sft``, ``value_clip``, ...), ``module:function``, or a function
        ``(tokens, **settings)`` that returns a LossOutput or a scalar tensor; see ``stretto.algorithms.losses``.
        ``columns`` are per token and come to the loss by name; ``weights`` is added by ``aggregate`` (and ``norm``,
        where that divides by a constant) if it is not among them. ``lr`` left out is the recipe's at this version.
        """
        self._check_open()
        check_choice("aggregate", aggregate, get_args(Aggregation))
        check_groups(batch.groups)
        if all(column.name != "weights" for column in columns):
            columns = (*columns, aggregation_weights(batch, aggregate, norm=norm))
        ref = LossRef(use=loss, settings=settings) if isinstance(loss, str) else _by_function(loss, settings)
        rate = self._lr(model) if lr is None else check_rate(lr)

        def learn() -> UpdateReport:
            backend = self._parts.backend
            metrics = backend.accumulate(model, batch, columns, ref)
            self._unpublished += model == "policy"  # here, so that what is refused or raises does not count
            report = backend.update(model, rate)
            return UpdateReport(model=model, metrics={**metrics, **report.metrics}, skipped=report.skipped)

        return self._run(self._parts.worker.call(learn))

    def publish(self) -> int:
        """Give the engine the policy's weights as they are now, and return their version."""
        self._check_open()
        self._version += 1
        self._run(self._publisher.publish(self._version, self._last, self._phase))
        self._unpublished = 0
        return self._version

    def evaluate(self, limit: int | None = None, *, name: str | None = None) -> EvalResult:
        """Evaluate what was last published on a set, on at most ``limit`` of its prompts.

        ``name`` is ``held_out`` or one of ``evaluate.sets``; by default the first there is.
        """
        self._check_open()
        if limit is not None:
            check_count("limit", limit)
        sets = {eval_set.name: eval_set for eval_set in self._job.phases[-1].sets}
        if not sets:
            raise ConfigError("there is nothing to evaluate on: prompts.held_out=0. Set prompts.held_out=0.2.")
        if name is not None and name not in sets:
            raise ConfigError(f"there is no evaluation set {name!r}.{nearest(name, sets)}")
        found = sets[name or next(iter(sets))]
        if limit is not None:
            found = replace(found, prompts=found.everything[:limit])
        return self._run(evaluate(self._parts, found))

    # --- to and from disk ------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write weights, optimizers and where the session stands into ``folder``, which must be empty or new."""
        self._check_open()
        path = empty_folder(folder)
        self._run(self._parts.worker.call(lambda: self._parts.backend.capture()(path)))
        place = Place(self._next_draw, self._next_prompt, self._version, self._parts.worker.memory)
        write_place(path, place, of_session(self._job))

    def load(self, folder: str | Path) -> None:
        """Go on where ``save`` left off, to the same bits, in a session of the same recipe. Publishes."""
        self._check_open()
        path = Path(folder)
        at = read_place(path, of_session(self._job))
        self._run(self._parts.worker.call(self._parts.backend.load, path))
        self._next_draw, self._next_prompt = at.next_draw, at.next_prompt
        self._parts.worker.memory = dict(at.memory)
        self._version = at.version - 1
        self.publish()

    def export(self, folder: str | Path) -> None:
        """Write what is trained, the policy or a reward model, as a Hugging Face folder, tokenizer included."""
        self._check_open()
        path = Path(folder)
        if path.exists():
            raise StoreError(f"{path} exists, and an export overwrites nothing. Give a new folder.")
        self._run(self._parts.export(self._job.exports, path))

    # --- life ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close everything. Idempotent; a ``with`` block does it on every way out."""
        self._leave(None)

    def __enter__(self) -> "Session":
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, cause: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(cause)

    def _leave(self, cause: BaseException | None) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            kind = None if cause is None else type(cause)
            self._run(self._disposer.__aexit__(kind, cause, None), cancel=False)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            # An exit in a task breaks the loop off; whoever waits for the task gets it, if the loop goes on.
            with suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
                return

    def _run(self, work: Coroutine[object, object, T], *, cancel: bool = True) -> T:
        """The result of ``work`` on the session's loop. Ctrl-C cancels it, unless ``cancel`` is off, and comes through
        once it has ended; what the learner has begun it finishes before it does anything else."""
        outcome: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda task: _hand_over(task, outcome))

        self._loop.call_soon_threadsafe(begin)
        interrupt: KeyboardInterrupt | None = None
        while not outcome.done():
            try:
                wait([outcome], timeout=0.5)  # a wait without end would keep Python from running signal handlers
            except KeyboardInterrupt as error:
                interrupt = error
                if cancel:
                    self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
        if interrupt is not None:
            raise interrupt
        return outcome.result()

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("this session is closed. Work inside its `with` block, or open another.")

    def _check_rollout(self, prompts: Sequence[Prompt]) -> None:
        """Prompts that can be rolled out, and weights that are no staler than the recipe allows."""
        most = whole_at(self.recipe.schedule.max_staleness, self._version)
        if self._unpublished > most:
            raise ConfigError(
                f"{self._unpublished} update(s) have not been published, so these rollouts would be of weights "
                f"older than schedule.max_staleness={most} allows. Call publish() after the update."
            )
        for prompt in prompts:
            self._check_length(prompt.text, len(prompt.token_ids))

    def _check_length(self, text: str, num_tokens: int) -> None:
        room = self._max_len - self._phase.sampling.max_tokens
        if num_tokens > room:
            raise DataError(
                f"the prompt {text[:40]!r} has {num_tokens} tokens, and the engine has room for {room} beside "
                f"sampling.max_tokens={self._phase.sampling.max_tokens}. Open it with "
                f'engine={{"max_len": {num_tokens + self._phase.sampling.max_tokens}}} or more.'
            )

    @property
    def _last(self) -> int:
        """The place of the phase that a session is: the main one."""
        return len(self._job.phases) - 1

    def _lr(self, model: str) -> float:
        return self._phase.lr(model, self._version)

    def _graph(self, n: int | None) -> Graph:
        """The workflow with another number of attempts."""
        if n not in self._graphs:
            recipe = self._job.recipe
            sampling = recipe.sampling.model_copy(update={"n": n})
            self._graphs[n] = main_graph(recipe.model_copy(update={"sampling": sampling}), self._given.workflow)
        return self._graphs[n]

    def _boundary(self, graph: Graph) -> tuple[str]:
        nodes = tuple(boundary_inputs(graph))
        if len(nodes) != 1:
            raise ConfigError(
                f"workflow {graph.name!r} hands over the groups of {len(nodes)} nodes ({', '.join(nodes)}), and a "
                "session takes one. Use a workflow with one collect."
            )
        return (nodes[0],)

    async def _group(self, graph: Graph, prompt: Prompt, draw: int) -> Group:
        phase = self._phase
        binding = self._parts.binding(phase.namespace, phase.sampling, temperature=phase.temperature)
        step = self._version  # a session has no steps of its own: a publication ends what counts as one

        async def invoke(spec: NodeSpec, inputs: Mapping[str, object]) -> object:
            return await call_group_node(graph, spec, inputs, binding.bind(spec, draw, step))

        (boundary,) = self._boundary(graph)
        values = await run_group(graph, prompt, invoke)
        return check_group(boundary, values[boundary], draw)


def session(
    what: What = "grpo",
    *,
    prompts: PromptsLike | Mapping[str, object] | None = None,
    reward: RewardLike | None = None,
    model: str | Mapping[str, object] | None = None,
    held_out: float | None = None,
    **sections: object,
) -> Session:
    """Open a session; everything is given as to ``stretto.train``. Use it in a ``with`` block.

    ``steps`` need not be given: the loop is yours (a learning rate that decays needs it). A warm-up is refused, since
    nobody would run it: leave it out with ``warmup=None``, and start from a model that was warmed. So is
    ``order.type=success``, since a session does not see what the loop draws.

    Raises ConfigError, GraphError or DataError before anything starts.
    """
    given = with_model(sections, model, held_out)
    asked = ask(what, given, prompts=prompts, reward=reward, endless=True)
    if asked.recipe.warmup is not None:
        raise ConfigError(
            "the recipe has a warm-up, which a session does not run. Pass warmup=None, and as model the folder of a "
            "warmed policy (such as runs/NAME/model)."
        )
    if asked.recipe.debug != DebugConfig():
        raise ConfigError(
            "debug chooses which half of a run's main phase runs, and in a session the loop does. Leave debug out, and "
            "call rollout() or train() alone."
        )
    if asked.recipe.order.type == "success":
        raise ConfigError(
            "order.type=success follows what comes of a run's draws, and in a session the loop draws the prompts. Pass "
            'order={"type": "shuffle"}, and choose from s.train_prompts as you like.'
        )
    return Session(asked.recipe, asked.given)


def _hand_over(task: "asyncio.Task[T]", outcome: "Future[T]") -> None:
    if task.cancelled():
        outcome.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


def _by_function(function: Callable[..., object], settings: Mapping[str, Setting]) -> LossRef:
    name = getattr(function, "__name__", type(function).__name__)
    return LossRef(use=f"python:{name}", settings=settings, function=function)
