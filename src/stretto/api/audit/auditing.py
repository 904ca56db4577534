"""The whole audit of a recipe: data, made answers, samples of the model. Trains nothing and writes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from stretto.api.audit.answers import Writer, make_answers
from stretto.api.audit.data import look_at_data
from stretto.api.audit.findings import AuditReport, Finding, ModelFigures, RewardFigures
from stretto.api.audit.learning import model_figures, model_findings
from stretto.api.audit.parts import part_findings, score_findings
from stretto.api.audit.rewards import reward_figures, reward_findings
from stretto.api.audit.sampling import sample_groups
from stretto.api.audit.scoring import score_answers
from stretto.api.host import host
from stretto.config.recipe import Recipe
from stretto.errors import ConfigError
from stretto.graph import Graph
from stretto.runtime.build import Given, Job, prepare
from stretto.runtime.unread import refuse_unread
from stretto.types import Prompt
from stretto.waiting import unless_stopped

__all__ = ["AuditOptions", "audit"]

_ORDER = {"problem": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """How much to look at.

    prompts: at most this many are scored and sampled. samples: siblings of a sampled group, None for the recipe's own
    number. model: whether to load and sample it. budget_s: seconds for the reward, and again for the model, after which
    no more is begun.
    """

    prompts: int = 64
    samples: int | None = None
    model: bool = True
    budget_s: float = 20.0

    def __post_init__(self) -> None:
        for name, value in (("prompts", self.prompts), ("samples", self.samples)):
            if value is not None and value < 1:
                raise ConfigError(f"--{name}={value} leaves nothing to look at. Give 1 or more.")
        if not self.budget_s > 0:
            raise ConfigError(f"--seconds={self.budget_s:g} leaves no time. Give more than 0.")


def audit(
    recipe: Recipe, *, hint: str = "recipe", given: Given | None = None, options: AuditOptions | None = None
) -> AuditReport:
    """Audit a recipe. What would refuse a run raises the same UserError here; what it would learn wrong is a finding.

    ``hint`` is the recipe's name; ``given`` the Python objects of ``stretto.train``. Raises Interrupted on a signal.
    """
    given, options = given or Given(), options or AuditOptions()
    job = prepare(recipe, given)
    refuse_unread(recipe, job.graphs)
    data, findings = look_at_data(job)
    told = "the audit was stopped. There is nothing to keep of it; start it again."
    reward, model, more, left_out = host(lambda stop: unless_stopped(_look(job, given, options), stop, told))
    found = sorted([*findings, *more], key=lambda finding: _ORDER[finding.severity])
    return AuditReport(
        recipe=hint, data=data, reward=reward, model=model, findings=tuple(found), left_out=tuple(left_out)
    )


_Looked = tuple[RewardFigures | None, ModelFigures | None, list[Finding], list[str]]


async def _look(job: Job, given: Given, options: AuditOptions) -> _Looked:
    graph = job.phases[-1].graph
    findings: list[Finding] = []
    left_out: list[str] = []
    reward: RewardFigures | None = None
    model: ModelFigures | None = None
    given_scores: list[Mapping[str, float | None]] = []
    if not _asks_for(graph, "judge"):
        left_out.append(f"The reward was not looked at: no node of workflow {graph.name!r} judges.")
    elif job.recipe.environment is not None:
        instead = " The reward is looked at on sampled episodes instead." if options.model else ""
        left_out.append(
            "No made answers were scored: with an environment there is nothing to judge without an episode." + instead
        )
    else:
        reward, given_scores = await _look_at_reward(job, options, findings, left_out)
    if not _asks_for(graph, "generate"):
        left_out.append(f"The model was not sampled: no node of workflow {graph.name!r} samples.")
    elif not options.model:
        left_out.append("The model was not sampled (--no-model).")
    elif any(finding.code in ("reward.error", "reward.timeout") for finding in findings):
        left_out.append("The model was not sampled: the reward fails. Mend it and try again.")
    else:
        sampled = await sample_groups(
            job, given, prompts=options.prompts, samples=options.samples, budget_s=options.budget_s
        )
        model = model_figures(sampled, job.recipe, _n_of(job))
        findings += model_findings(sampled, model, job.recipe)
        given_scores += [t.rewards for group in sampled.groups for t in group.attempts if t.reward is not None]
    findings[:0] = part_findings(job.rewards, given_scores)  # first, since it explains others
    findings += score_findings(job.recipe, given_scores)
    return reward, model, findings, left_out


async def _look_at_reward(
    job: Job, options: AuditOptions, findings: list[Finding], left_out: list[str]
) -> tuple[RewardFigures, list[Mapping[str, float | None]]]:
    """The figures, and what every made answer got by the reward's parts."""
    recipe = job.recipe
    writer = Writer(tokenizer=job.tokenizer, max_tokens=recipe.sampling.max_tokens)
    prompts = _first_prompts(job, options.prompts)
    answers = make_answers(prompts, writer, recipe.seed)
    if not any(answer.kind == "gold" for answer in answers):
        left_out.append('No right answers were scored: the prompts have no text or number as data["answer"].')
    elif not any(answer.kind == "swapped" for answer in answers):
        left_out.append("No answers of other prompts were scored: all prompts have the same answer.")
    scores = await score_answers(job, answers, writer, _n_of(job), options.budget_s)
    if scores.alone is not None:
        left_out.append(f"The reward was scored in this process only, without a timeout: {scores.alone}")
    findings += reward_findings(scores, recipe)
    figures = reward_figures(_name_of(job), scores, recipe, len(prompts))
    return figures, [parts for scored in scores.first.values() for parts in scored.parts]


def _name_of(job: Job) -> str:
    use = job.recipe.reward.use
    return job.rewards.name if use is None or use.startswith("python:") else use


def _first_prompts(job: Job, most: int) -> list[Prompt]:
    """The prompts that the main phase begins with: a random choice by seed."""
    prompt_of = job.phases[-1].prompt_of
    return [prompt_of(draw) for draw in range(min(most, len(job.train)))]


def _n_of(job: Job) -> int:
    """The siblings of a group: what the node that samples says, else the recipe."""
    for spec in job.phases[-1].graph.nodes:
        n = spec.settings.get("n")
        if isinstance(n, int) and any(role.kind == "generate" for role in spec.roles.values()):
            return n
    return job.recipe.sampling.n


def _asks_for(graph: Graph, kind: str) -> bool:
    return any(role.kind == kind for spec in graph.nodes for role in spec.roles.values())
