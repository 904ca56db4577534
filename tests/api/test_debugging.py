"""A recorded step made again: to the bit, from the right place, with what its edges carried; or refused with why."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from stretto import StepReport, workflow
from stretto.api import debug, resume, start
from stretto.cli.main import main
from stretto.config.load import load_recipe, recipe_from_mapping
from stretto.errors import ConfigError, NodeError, ResumeError, RewardError
from stretto.recipes import FOLDER
from stretto.runtime.build import Given
from stretto.store import RunView, decode_group
from stretto.types import Group, Prompt, Trajectory
from stretto.workflows.nodes import collect, demonstrate, imitate, report, rollout, score

SHORT = Path(__file__).parents[1] / "e2e" / "short.yaml"
QUIET = "evaluate={every: null, at_start: false, at_end: false}"


def tokens(prompt: Prompt, trajectory: Trajectory) -> float:
    return float(trajectory.token_ids_T.sum() % 7)


def short(*overrides: str, given: Given | None = None) -> RunView:
    return start(load_recipe(str(SHORT), [QUIET, *overrides], packaged=FOLDER).recipe, given=given)


@pytest.fixture(autouse=True, scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """A warm-up of 3 steps and a main phase of 8; checkpoints of steps 3 and 6 and the last are kept."""
    folder = tmp_path_factory.mktemp("debugging")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield short("name=run", "save.every=3", "warmup.evaluate={every: null, at_end: false}")


@pytest.mark.parametrize(
    ("phase", "step", "began"),
    [
        ("warmup", 0, "the model as it was loaded"),
        ("warmup", 2, "the model as it was loaded, 2 steps of its phase made again on the way"),
        ("main", 1, "the model as it was loaded, 1 step of its phase made again on the way"),
        ("main", 6, "checkpoint step-6"),
        ("main", 7, "checkpoint step-6, 1 step of its phase made again on the way"),
    ],
)
def test_every_step_is_made_again_to_the_bit(run, phase, step, began):
    made = debug("run", step, phase=phase)
    assert made.differing == () and made.compared > 10
    assert made.began == began
    assert [row.id for row in made.nodes if not row.recorded] == [s.id for s in made_graph(phase).step_nodes]
    assert made.nodes[0].recorded and made.nodes[0].runs == (4 if phase == "main" else 16)


def made_graph(phase: str):
    from stretto.api import graph_of

    return graph_of(load_recipe(str(SHORT), [], packaged=FOLDER).recipe, phase)


def test_a_damaged_checkpoint_is_passed_over_and_the_bits_are_the_same(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "run")
    weights = copy / "checkpoints/step-6/policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    made = debug(copy, 7)
    assert made.differing == () and "the model" in made.began
    assert "checkpoint step-6 was passed over" in made.notes[0]


def test_the_run_is_only_read(run):
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    debug("run", 7, node="group")
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_numbers_that_are_not_the_recorded_ones_end_in_status_3(run, tmp_path, capsys):
    copy = shutil.copytree(run.path, tmp_path / "run")
    lines = (copy / "events.jsonl").read_text().splitlines()
    changed = [line.replace('"grad_norm":', '"grad_norm":1') if '"step":7' in line else line for line in lines]
    (copy / "events.jsonl").write_text("\n".join(changed) + "\n")
    assert main(["debug", str(copy), "--step", "7"]) == 3
    out = capsys.readouterr().out
    assert "1 of 29 numbers are not the recorded ones:\n  grad_norm: " in out
    assert "promises the same bits" in out
    assert main(["debug", str(copy), "--step", "6"]) == 0


def test_a_reward_is_called_again_on_what_was_recorded(run):
    made = debug("run", 2, node="scored")
    assert (made.draw, made.began) == (8, "what the run recorded of the draw")
    assert made.differing == () and made.compared > 20
    assert debug("run", 2, node="scored", draw=11).draw == 11


def test_what_was_sampled_is_sampled_again_to_the_bit(run):
    made = debug("run", 4, node="group", draw=18)
    assert made.began.endswith("published as weights 4")
    assert made.differing == () and made.compared > 20
    assert debug("run", 1, node="group", phase="warmup").differing == ()


def test_an_overlapped_run_is_made_again_with_the_weights_that_sampled():
    short("name=ahead", "schedule.max_staleness=1", "warmup=null", "steps=4")
    assert debug("ahead", 3).differing == ()
    made = debug("ahead", 3, node="group")
    assert made.began.endswith("published as weights 2") and made.differing == ()


def test_settings_are_those_with_which_the_step_was_made():
    short("name=decays", "warmup=null", "steps=3", "backend.lr_decay=linear")
    resume(Path("runs/decays"), ["steps=6"])
    assert debug("decays", 1).differing == ()
    assert debug("decays", 4).differing == ()


def test_filtered_and_failed_draws_count_in_the_numbers():
    def fails(prompt: Prompt, trajectory: Trajectory) -> float:
        if trajectory.key.draw == 3:
            raise ValueError("no")
        return float(trajectory.key.draw % 4)

    policy = "reward={use: 'python:fails', on_error: drop, max_dropped: 0.9, workers: 0}"
    given = Given(reward=fails, filter=lambda group: "two" if group.draw % 4 == 2 else True)
    short("name=drops", "warmup=null", "steps=3", policy, "filter.use=python:drops", given=given)
    made = debug("drops", 1, filter=given.filter)
    assert made.differing == () and RunView(Path("runs/drops")).metrics["filter/use"] > 0
    assert debug("drops", 0, filter=given.filter).differing == ()
    with pytest.raises(ResumeError, match=r"Python objects .*\(filter\). Debug it from Python: stretto.debug\('drops'"):
        debug("drops", 1)
    again = debug("drops", 0, node="scored", draw=4, filter=given.filter, reward=lambda prompt, trajectory: 5.0)
    rewards = {f"draw 4 sample {i}.{name}" for i in range(4) for name in ("reward", "rewards.fails")}
    assert {d.where for d in again.differing} == rewards
    assert (again.differing[0].a, again.differing[0].b) == ("0.0", "5.0")
    with pytest.raises(RewardError, match=r"failed on .*draw 3.*no"):
        debug("drops", 0, node="scored", draw=3, filter=given.filter, reward=fails)


def test_draws_that_moved_to_an_earlier_step_are_found_where_they_were_trained_on():
    """Both waves run at once, and the data ends: what the first loses it takes from the second."""
    fake = {
        "epochs": 1,
        "name": "moved",
        "engine": {"type": "fake"},
        "backend": {"type": "fake"},
        "prompts": {"type": "builtin", "name": "addition", "max": 5, "held_out": 0},
        "sampling": {"n": 2, "max_tokens": 4},
        "schedule": {"groups_per_step": 18, "max_staleness": 1},
        "reward": {"use": "exact_match", "workers": 0},
        "filter": {"use": "python:keeps"},
    }

    def keeps(group: Group) -> bool:
        return group.draw not in (3, 4, 30)

    start(recipe_from_mapping(fake), given=Given(filter=keeps))
    for step, draws in ((0, [*range(3), *range(5, 20)]), (1, [*range(20, 30), *range(31, 36)])):
        made = debug("moved", step, filter=keeps)
        assert made.differing == ()
        assert [group.draw for group in made.values["scored"]] == draws


def test_a_run_that_failed_in_a_loss_is_debugged_at_the_step_that_failed(run, tmp_path, monkeypatch):
    module = "loss_that_fails"
    (tmp_path / f"{module}.py").write_text(FAILING)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NodeError, match="not a loss"):
        short("name=lost", "warmup=null", f"workflow={module}:mine")
    with pytest.raises(NodeError, match=r"node 'learn' .* failed: ValueError: not a loss"):
        debug("lost", 2, node="learn")
    made = debug("lost", 2, node="batch")
    assert made.notes == ("the run did not train this step to its end",) and made.compared == 0
    assert debug("lost", 1).differing == ()


FAILING = """
from stretto import Batch, Prompt, Train, UpdateReport, node, workflow
from stretto.workflows.nodes import collect, imitate, report, rollout, score


@node
def fit(batch: Batch, model: Train) -> UpdateReport:
    if model.step == 2:
        raise ValueError("not a loss")
    return imitate(batch, model)


@workflow
def mine(prompt: Prompt, *, n: int = 4):
    scored = score(rollout(prompt, n=n))
    batch = collect(scored)
    learn = fit(batch)
    return report(learn)
"""


def test_a_run_that_failed_in_a_reward_is_debugged_at_the_draw_that_failed():
    def fails(prompt: Prompt, trajectory: Trajectory) -> float:
        if trajectory.key.draw == 9:
            raise ValueError("cannot read this")
        return 0.0

    with pytest.raises(RewardError):
        short("name=failed", "warmup=null", "reward.use=python:fails", "reward.workers=0", given=Given(reward=fails))
    with pytest.raises(RewardError, match=r"draw 9.*cannot read this"):
        debug("failed", 2, node="scored", reward=fails)
    made = debug("failed", 2, node="scored", reward=lambda prompt, trajectory: 1.0)
    assert made.draw == 9 and made.differing == () and made.compared == 0
    assert debug("failed", 1).differing == ()
    with pytest.raises(ConfigError, match=r"has recorded . of the 4 groups of step 2|no group of step 2"):
        debug("failed", 2)


def test_the_edges_are_written_as_tensors_and_lines(run, tmp_path):
    made = debug("run", 7, dump=tmp_path / "out")
    index = json.loads((tmp_path / "out/index.json").read_text())
    assert (index["run"], index["phase"], index["step"]) == ("run", "main", 7)
    assert list(index["nodes"]) == ["scored", "batch", "credit", "learn", "report"]
    assert {f for n in index["nodes"].values() for f in n["files"]} | {"index.json", "rows.jsonl"} == {
        p.name for p in (tmp_path / "out").iterdir()
    }
    credit = load_file(tmp_path / "out/credit.safetensors")
    assert np.array_equal(credit["advantages"], made.values["credit"].advantages.values)
    assert index["nodes"]["credit"]["tensors"]["advantages"]["shape"] == list(credit["advantages"].shape)
    groups = [decode_group(line) for line in (tmp_path / "out/scored.jsonl").read_text().splitlines()]
    assert [g.draw for g in groups] == [28, 29, 30, 31]
    report = json.loads((tmp_path / "out/report.jsonl").read_text())
    assert report["metrics.loss"] == made.values["report"].metrics["loss"].value
    rows = [json.loads(line) for line in (tmp_path / "out/rows.jsonl").read_text().splitlines()]
    assert rows[0] == {"draw": 28, "sample": 0, "part": 0, "model": "policy", "tokens": [0, rows[1]["tokens"][0]]}
    assert rows[-1]["tokens"][1] == len(credit["advantages"])
    with pytest.raises(ConfigError, match="exists already, and nothing is written over"):
        debug("run", 7, dump=tmp_path / "out")


def test_of_a_node_its_own_edges_are_written(run, tmp_path):
    debug("run", 7, node="credit", dump=tmp_path / "out")
    assert list(json.loads((tmp_path / "out/index.json").read_text())["nodes"]) == ["batch", "credit"]
    debug("run", 7, node="scored", dump=tmp_path / "draw")
    assert sorted(p.name for p in (tmp_path / "draw").iterdir()) == ["group.jsonl", "index.json", "scored.jsonl"]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"step": 8}, r"no group of step 8 of phase main: its steps there are 0 to 7, counted from 0"),
        ({"step": 0, "node": "score"}, "has no node 'score'. Did you mean 'scored'"),
        ({"step": 0, "node": "credit", "draw": 1}, "draw 1 is asked for, and only per-group nodes"),
        ({"step": 0, "node": "scored", "draw": 9}, "no draw 9 of step 0 of phase main. Its draws are 0, 1, 2, 3"),
        ({"step": 9, "node": "scored"}, "no draw of step 9 of phase main. Choose a step that was begun"),
        ({"step": 0, "phase": "late"}, "no phase 'late'. Its phases: warmup, main"),
    ],
)
def test_what_cannot_be_made_again_is_refused_with_the_reason(run, asked, why):
    with pytest.raises(ConfigError, match=why):
        debug("run", **asked)


def test_a_workflow_that_only_python_knew_is_passed_again():
    @workflow
    def mine(prompt: Prompt, *, n: int = 4) -> StepReport:
        batch = collect(score(rollout(prompt, n=n)))
        return report(imitate(batch))

    short("name=python", "warmup=null", "steps=2", "workflow=python:mine", given=Given(workflow=mine))
    assert debug("python", 1, workflow=mine).differing == ()
    with pytest.raises(
        ResumeError, match=r"\(workflow\). Debug it from Python: stretto.debug\('python', 1, workflow=\.\.\."
    ):
        debug("python", 1)


def test_a_step_of_two_batches_is_refused():
    @workflow
    def both(prompt: Prompt, *, n: int = 4) -> StepReport:
        shown = imitate(collect(demonstrate(prompt)))
        tried = imitate(collect(score(rollout(prompt, n=n))))
        return report(shown, tried)

    given = Given(workflow=both)
    short("name=both", "warmup=null", "steps=1", "workflow=python:both", given=given)
    with pytest.raises(ConfigError, match=r"hands over the groups of 2 nodes .* a record keeps one group a draw"):
        debug("both", 0, workflow=both)


def test_a_run_that_trained_nothing_has_no_step(run):
    short("name=rolls", "warmup=null", "steps=2", "debug.train=false")
    with pytest.raises(ConfigError, match=r"trained nothing .* with debug.rollouts_from=rolls, and debug that run"):
        debug("rolls", 0)
    assert debug("rolls", 1, node="scored").differing == ()
    made = debug("rolls", 1, node="group", draw=7)
    assert made.differing == () and made.compared > 20


def test_a_fork_names_the_run_that_has_its_first_steps(run):
    resume(run.path, ["steps=10"], fork="fork")
    assert debug("fork", 9).differing == ()
    with pytest.raises(
        ConfigError, match=r"no group of step 2 .* 8 to 9, counted from 0. It is a fork: look at run 'run'"
    ):
        debug("fork", 2)


def test_draws_of_several_versions_are_not_sampled_again():
    fake = {
        "steps": 6,
        "name": "mixed",
        "engine": {"type": "fake", "delay_s": 0.02, "spread": 1.0},
        "backend": {"type": "fake", "step_s": 0.03},
        "prompts": {"type": "builtin", "name": "addition", "max": 4},
        "sampling": {"n": 2, "max_tokens": 8},
        "schedule": {"groups_per_step": 2, "max_staleness": 3, "in_flight": "keep", "deterministic": False},
        "reward": {"use": "exact_match", "workers": 0},
    }
    view = start(recipe_from_mapping(fake))
    mixed = [r for r in view.groups() if len({s.version for t in r.group.trajectories for s in t.versions}) > 1]
    assert mixed, "the fake engine mixes versions"
    with pytest.raises(ConfigError, match=r"not sampled by one version of the weights .*in_flight=keep"):
        debug("mixed", mixed[0].step, node="group", draw=mixed[0].group.draw)
    assert debug("mixed", mixed[0].step, node="scored", draw=mixed[0].group.draw).differing == ()


def test_breakpoints_are_as_before_afterwards(run):
    hook = sys.breakpointhook
    debug("run", 0)
    assert sys.breakpointhook is hook
