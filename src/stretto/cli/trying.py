"""``stretto try``: the audit of a recipe, as text or JSON. The looking is in ``stretto.api.audit``.

Imports inside functions keep ``stretto --help`` quick.
"""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.commands import KEYS, RECIPE

if TYPE_CHECKING:
    from stretto.api.audit.findings import AuditReport, DataFigures, Finding, ModelFigures, Quantiles, RewardFigures

__all__ = ["register", "render_audit"]

PROBLEM = 2
"""The exit status when a problem was found: it is about what the user gave."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="try")(try_recipe)


def try_recipe(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help=RECIPE)],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help=KEYS)] = None,
    prompts: Annotated[int, typer.Option("--prompts", help="Prompts to score and to sample, at most.")] = 64,
    samples: Annotated[
        int | None, typer.Option("--samples", help="Samples of each prompt; by default sampling.n.")
    ] = None,
    no_model: Annotated[bool, typer.Option("--no-model", help="Do not load and sample the model.")] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Begin nothing more after this time, for reward and model each.")
    ] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Try reward, data and sampling before training.

    Scores answers that are made to be right, empty, junk or of another prompt with the recipe's own judge, looks at
    the data, and samples a few groups of the model. Trains and keeps nothing. Exit status 2 if there is a problem.

    Example: stretto try quickstart --no-model
    """
    from stretto.config.load import load_recipe
    from stretto.recipes import FOLDER

    loaded = load_recipe(recipe, overrides or [], packaged=FOLDER)

    from stretto.api.audit.auditing import AuditOptions, audit

    options = AuditOptions(prompts=prompts, samples=samples, model=not no_model, budget_s=seconds)
    report = audit(loaded.recipe, hint=loaded.hint, options=options)
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        sys.stdout.write(render_audit(report))
    if not report.ok:
        raise typer.Exit(PROBLEM)


def render_audit(report: "AuditReport") -> str:
    """An audit as text: figures, then findings with their remedies."""
    parts = [_data(report)]
    if report.reward is not None:
        parts.append(_reward(report.reward))
    if report.model is not None:
        parts.append(_model(report.model))
    if report.left_out:
        parts.append(list(report.left_out))
    parts += [_finding(finding) for finding in report.findings]
    parts.append([_verdict(report)])
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _data(report: "AuditReport") -> list[str]:
    data = report.data
    lines = [f"{report.recipe}: {data.num_train:,} prompts to train on, {data.num_held_out:,} held out"]
    rows = [("prompts, in tokens", _spread(data.prompt_tokens), _limits(data))]
    if data.answer_tokens is not None:
        rows.append(("answers, in tokens", _spread(data.answer_tokens), f"sampling.max_tokens={data.max_tokens}"))
    rows.append(("passes over the prompts", f"{data.passes:.3g}", ""))
    return lines + _table(rows)


def _limits(data: "DataFigures") -> str:
    told = [] if data.max_prompt_tokens is None else [f"prompts.max_prompt_tokens={data.max_prompt_tokens}"]
    if data.context is not None:
        told.append(f"the model was made for {data.context} in all")
    return ", ".join(told)


def _reward(reward: "RewardFigures") -> list[str]:
    stopped = "" if reward.prompts == reward.asked else f" of {reward.asked}, for want of time (--seconds)"
    lines = [f"Reward {reward.name} of made answers to {reward.prompts} prompts{stopped}:"]
    rows = [("answer", "scored", "failed", "mean", "lowest", "highest", "1 or more")]
    rows += [
        (
            row.label,
            f"{row.scored}",
            f"{row.failed or '-'}",
            *("-" if x is None else f"{x:.3g}" for x in (row.mean, row.lowest, row.highest)),
            f"{row.full}",
        )
        for row in reward.rows
    ]
    lines += _table(rows)
    timing = reward.timing
    if timing is not None:
        s = timing.group_s
        limit = "no timeout" if timing.timeout_s is None else f"reward.timeout_s={timing.timeout_s:g}"
        lines.append(
            f"  time of a group of {timing.size}: median {_seconds(s.median)}, 95% {_seconds(s.p95)}, highest "
            f"{_seconds(s.highest)} ({limit}); {_seconds(timing.step_s)} a step"
        )
    lines.append(f"  {reward.repeated} answers were scored again, in another order, and in another process")
    return lines


def _model(model: "ModelFigures") -> list[str]:
    what, cut = ("samples", "cut by sampling.max_tokens") if model.turns is None else ("episodes", "ended by a budget")
    turns = [] if model.turns is None else [("turns", f"{model.turns:.3g}", "of an episode, on average")]
    flat: list[tuple[str, str, str]] = []
    if model.flat_expected is not None and model.useful_groups is not None:
        expected = f"expected of groups of {model.n}: {_percent(model.flat_expected)}"
        flat = [
            ("groups of equal rewards", _percent(model.flat_observed), expected),
            ("useful groups a step", f"{model.useful_groups:.1f}", f"of {model.groups_per_step}"),
        ]
    return [
        f"The model as it is, {model.samples} {what} of {model.prompts} prompts at temperature {model.temperature:g}:",
        *_table(
            [
                ("mean reward", f"{model.mean_reward:.3g}", f"{_percent(model.share_right)} get 1 or more"),
                (
                    "tokens written",
                    f"{model.written_tokens:.3g}",
                    f"{_percent(model.share_truncated)} {cut}",
                ),
                *turns,
                ("different texts", _percent(model.distinct), f"of the {what} of a prompt"),
                *flat,
                (
                    "sampling of a step",
                    _seconds(model.rollout_s),
                    f"at {model.tokens_per_s:,.0f} tokens/s with {model.sequences} at a time (more are faster)",
                ),
            ]
        ),
    ]


def _finding(finding: "Finding") -> list[str]:
    from stretto.api.audit.findings import shown

    lines = [f"{finding.severity}: {finding.message}"]
    for example in finding.examples:
        reward = "" if example.reward is None else f" gets {example.reward:.6g}"
        lines.append(f"  {shown(example.prompt)} answered {shown(example.answer)}{reward}")
    return [*lines, f"  -> {finding.remedy}"]


def _verdict(report: "AuditReport") -> str:
    told = [(report.count("problem"), "problem"), (report.count("warning"), "warning"), (report.count("note"), "note")]
    counts = ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in told if count)
    if report.ok:
        return f"No problem found{f' ({counts})' if counts else ''}."
    return f"Found {counts}."


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns, the first to the left and the others too, so that it reads in any width."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _spread(q: "Quantiles") -> str:
    return f"{q.lowest:g} to {q.highest:g}, median {q.median:g}, 95% up to {q.p95:g}"


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
