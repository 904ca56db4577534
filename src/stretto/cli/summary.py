"""What is said when a run ends, and by ``runs show`` and ``runs list``: plain text made from its record."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stretto.api.progress import duration
from stretto.api.scores import interval_words, percent, score_words, set_words
from stretto.cli.curve import curve_of, draw_chart
from stretto.cli.plot import Plot, save_plot
from stretto.store import Evaluation, Example, PhaseBody, RunView, word_for

__all__ = ["Pair", "compared", "describe_run", "end_of_run", "run_table"]

NUM_PROBLEMS = 3
FLAT_STEPS = 5
WARMUP, MAIN = "warmup", "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One held-out problem at the first and at the last evaluation of the main phase."""

    before: Example
    after: Example

    @property
    def changed(self) -> bool:
        """Whether the answer is another one now."""
        return self.before.completion != self.after.completion


def compared(evaluations: Sequence[Evaluation], num: int = NUM_PROBLEMS) -> list[Pair]:
    """The first ``num`` problems whose answers changed between the first and the last evaluation, whatever became of
    them; filled up with others if fewer did."""
    if len(evaluations) < 2:
        return []
    later = {example.uid: example for example in evaluations[-1].body.examples}
    pairs = [Pair(before=e, after=later[e.uid]) for e in evaluations[0].body.examples if e.uid in later]
    return sorted(pairs, key=lambda pair: not pair.changed)[:num]


def end_of_run(view: RunView, *, unicode: bool = True) -> str:
    """The summary of a run that has ended: figures, curve (also saved as ``curve.png``), problems, what to try next."""
    workflow = _workflow(view)
    curve = curve_of(view, workflow)
    parts = ["\n".join(_figures(view))]
    if curve.main or curve.reward:
        picture = view.path / "curve.png"
        save_plot([view], picture, Plot(title=f"{view.name}: {workflow}, seed {view.seed}"))
        parts.append(f"{draw_chart(curve, unicode=unicode)}\n\nThe same as a picture: {picture}")
    parts += _nothing_learned(view) + _silent_parts(view) + _failed_evaluations(view)
    problems = _problems(compared(view.leading()))
    if problems:
        heading = set_words(view.evaluated()[0]).capitalize()
        parts.append("\n".join([f"{heading} problems, before and after:", *problems]))
    parts.append("\n".join(["Next:", *_next(view)]))
    return "\n\n".join(parts) + "\n"


def _nothing_learned(view: RunView) -> list[str]:
    """A sentence if the run ended in steps that could teach nothing: groups whose attempts all got the same reward."""
    flat = [value for _, value in view.history("credit/constant_groups")]
    steps = next((n for n, value in enumerate(reversed(flat)) if value < 1.0), len(flat))
    if steps < FLAT_STEPS:
        return []
    return [
        f"In the last {steps} steps all attempts of every group got the same reward, so nothing could be learned. If "
        "that is not because all are right, look at what was written (`stretto runs export --what samples`): "
        "backend.lr may be too high, or the task too hard for what the model can do."
    ]


def _silent_parts(view: RunView) -> list[str]:
    """A sentence for each part of the reward that applied to no attempt of the main phase."""
    config = view.info.config.get("reward")
    named = config.get("parts") if isinstance(config, Mapping) else None
    if not isinstance(named, Mapping) or not view.history("reward/mean"):
        return []
    return [
        f"reward.parts.{name} applied to no attempt: it gave None for each (a forgotten return?), so nothing was "
        "learned from it."
        for name in named
        if not view.history(f"reward/{name}")
    ]


def _failed_evaluations(view: RunView) -> list[str]:
    """A sentence if evaluations failed: how many, and why the last one did."""
    failed = [error for error in view.errors() if error.is_evaluation]
    if not failed:
        return []
    last = failed[-1]
    many = f"{len(failed)} evaluations failed" if len(failed) > 1 else "An evaluation failed"
    return [f"{many}, and training went on. The last: {last.where}: {last.message}"]


def describe_run(view: RunView, *, unicode: bool = True) -> str:
    """A run as it stands: figures, curve, last metrics, errors."""
    curve = curve_of(view, _workflow(view))
    parts = ["\n".join(_figures(view))]
    if curve.main or curve.reward:
        parts.append(draw_chart(curve, unicode=unicode))
    if view.metrics:
        width = max(map(len, view.metrics))
        parts.append("\n".join(f"  {name:<{width}}  {value:.5g}" for name, value in sorted(view.metrics.items())))
    errors = [f"  {f'{e.where}: ' if e.is_evaluation else ''}{e.type}: {e.message}" for e in view.errors()]
    if errors:
        parts.append("\n".join(["Errors:", *errors]))
    return "\n\n".join(parts) + "\n"


def run_table(views: Sequence[RunView]) -> str:
    """One line per run."""
    rows = [("run", "status", "steps", "seed", "accuracy", "wall")]
    for view in views:
        warm = _warms_up(view)
        evaluations = view.leading(MAIN) or (view.leading(WARMUP) if warm else [])
        accuracy = percent(evaluations[-1].body.accuracy) if evaluations else "-"
        steps = f"{view.steps_of(WARMUP)} of warm-up" if warm else f"{view.steps}"
        rows.append((view.name, view.status, steps, f"{view.seed}", accuracy, duration(view.wall_s)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in rows) + "\n"


def _figures(view: RunView) -> list[str]:
    times = f"{duration(view.wall_s)} (CPU time {duration(view.cpu_s)})"
    lines = [f"Run {view.name}: {view.status}, {view.steps} steps in {times}, seed {view.seed}, in {view.path}"]
    if _warms_up(view):
        seen = view.leading(WARMUP)
        accuracy = ""
        if seen:
            last = seen[-1].body
            accuracy = f", {percent(last.accuracy)} of {last.n} {set_words(last.name)} problems right"
        lines.append(f"Warm-up: {view.steps_of(WARMUP)} steps{accuracy}")
    return lines + [_gain(view, name) for name in view.evaluated()]


def _gain(view: RunView, name: str) -> str:
    """From the first to the last evaluation of a set in the main phase."""
    evaluations = view.evaluations(MAIN, name)
    first, last = evaluations[0].body, evaluations[-1].body
    gain = f" ({100 * (last.accuracy - first.accuracy):+.1f} points)" if len(evaluations) > 1 else ""
    before = f"{percent(first.accuracy)} -> " if len(evaluations) > 1 else ""
    interval = interval_words(name, last.metrics)
    sure = f", 95% interval {interval}" if interval else ""
    how = "sampled" if _temperature(view, name) else "greedy"
    how = "by pairs" if f"{name}/pairs" in last.metrics else how
    called = "Held-out" if name == "held_out" else name
    several = score_words(name, last.metrics)
    return f"{called} accuracy: {before}{percent(last.accuracy)}{gain}, {how}, {last.n} problems{sure}{several}"


def _temperature(view: RunView, name: str) -> float:
    """What a set is sampled at in the main phase, by the configuration."""
    evaluate = view.info.config.get("evaluate")
    section = evaluate if isinstance(evaluate, Mapping) else {}
    sets = section.get("sets")
    own = sets.get(name) if isinstance(sets, Mapping) else None
    found = own.get("temperature") if isinstance(own, Mapping) else None
    found = section.get("temperature") if found is None else found
    return found if isinstance(found, float | int) else 0.0


def _warms_up(view: RunView) -> bool:
    """Whether all steps that the run has done so far are of its warm-up."""
    return not view.steps and view.steps_of(WARMUP) > 0


def _problems(pairs: Sequence[Pair]) -> list[str]:
    rows = [(_line(p.before.prompt), _answer(p.before), _answer(p.after), _line(str(p.after.answer))) for p in pairs]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    return [
        f"  {prompt:<{widths[0]}}  {before:<{widths[1]}}  ->  {after:<{widths[2]}}  (answer {answer})"
        for prompt, before, after, answer in rows
    ]


def _answer(example: Example) -> str:
    if example.reward is None:
        return _line(example.completion)
    return f"{_line(example.completion)} {'right' if example.reward >= 1 else 'wrong'}"


def _line(text: str) -> str:
    """Text on one line of bounded length, with what a terminal would act on escaped."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _next(view: RunView) -> list[str]:
    run = word_for(view.path)
    commands = [(f"stretto runs show {run}", "its figures again; --json for programs")]
    if view.status == "done":
        commands.append((f"stretto eval {run}", "the trained policy on every held-out problem"))
        commands.append((f"stretto resume {run} steps={2 * view.steps}", "train on"))
    else:
        commands.append((f"stretto resume {run}", "go on where it stopped"))
    if re.fullmatch(r"quickstart(-\d+)?", view.name):  # what a run of another recipe would repeat, nobody knows here
        commands.append((f"stretto train quickstart seed={view.seed + 1}", "the same from another start"))
        commands.append(("stretto train ppo-addition", "the same task by PPO"))
        commands.append(("stretto graph ppo-addition", "what a step of it does"))
    width = max(len(command) for command, _ in commands)
    return [f"  {command:<{width}}  {what}" for command, what in commands]


def _workflow(view: RunView) -> str:
    names = [e.body.workflow for e in view.events if isinstance(e.body, PhaseBody) and e.phase == "main"]
    return names[0] if names else "main"
