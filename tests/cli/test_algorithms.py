"""``stretto algorithms``: every algorithm is listed and shown, with the settings that its model has."""

import json
import re

import pytest

from stretto.cli import completion
from stretto.cli.main import main
from stretto.config.algorithms import ALGORITHMS, ComposedConfig, PolicyGradient
from stretto.config.algorithms.presets import PRESETS
from stretto.config.fields import sections_of, variant_of


def run(capsys, *arguments: str) -> str:
    assert main(["algorithms", *arguments]) == 0
    return capsys.readouterr().out


def test_the_list_has_every_algorithm_once_with_a_line(capsys):
    text = run(capsys, "list")
    assert text == run(capsys)
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  ")]
    assert sorted(name for name, _ in lines) == sorted(ALGORITHMS)
    assert all(len(summary) > 20 for _, summary in lines)
    rows = json.loads(run(capsys, "list", "--json"))
    assert {row["name"]: row["summary"] for row in rows} == dict(lines)
    assert len({row["family"] for row in rows}) >= 4


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_shown(name, capsys):
    model, text = ALGORITHMS[name], run(capsys, "show", name)
    assert text.startswith(f"{name}\n")
    assert model.paper in text
    for line in model.formula.splitlines():
        assert line in text
    assert "╌" in text  # the line between the two worlds of its graph
    settings = text.partition("Settings: algorithm.KEY=VALUE\n")[2].partition("\n\n")[0]
    shown = re.findall(r"^  [ *] (\w+)=", settings, flags=re.MULTILINE)
    assert sorted(shown) == sorted(set(model.model_fields) - {"type"})
    found = json.loads(run(capsys, "show", name, "--json"))
    assert sorted(s["key"] for s in found["settings"]) == sorted(shown)
    assert (found["name"], found["formula"], found["paper"]) == (name, model.formula, model.paper)
    for setting in found["settings"]:
        assert setting["doc"], setting["key"]
        assert setting["allowed"], setting["key"]
    assert all(line == line.rstrip() for line in text.splitlines())


def test_every_algorithm_of_a_paper_names_it():
    for name, model in ALGORITHMS.items():
        if issubclass(model, PolicyGradient) and model is not ComposedConfig:
            assert re.search(r"arXiv:\d{4}\.\d{5}", model.paper), name
        assert model.formula, name


def test_what_differs_from_grpo_is_marked(capsys):
    text = run(capsys, "show", "dapo")
    assert "  * clip_high=0.28  (a number, above 0, grpo: 0.2)" in text
    assert "    clip_low=0.2  (a number, above 0, below 1)" in text
    marked = {s["key"] for s in json.loads(run(capsys, "show", "dapo", "--json"))["settings"] if s["differs"]}
    assert marked == {"clip_high", "dynamic_sampling", "overlong_buffer", "overlong_penalty"}
    text = run(capsys, "show", "gpg")
    assert re.search(r"Not read here, but by grpo: scale, .*clip_low", text)


def test_composed_lists_estimators_and_losses(capsys):
    text = run(capsys, "show", "composed")
    for key in ("advantages", "policy_loss"):
        block = text.partition(f"algorithm.{key}.type=NAME")[2].partition("\n\n")[0]
        names = [variant_of(section) for section in sections_of(ComposedConfig.model_fields[key])]
        assert re.findall(r"^  (\w+)", block, flags=re.MULTILINE) == names
    parts = json.loads(run(capsys, "show", "composed", "--json"))["parts"]
    assert {"key", "name", "summary", "settings"} == set(parts[0])
    assert "algorithm.policy_loss" not in run(capsys, "show", "grpo")


def test_an_unknown_name_has_its_nearest(capsys):
    assert main(["algorithms", "show", "dpao"]) == 2
    assert "no algorithm is called 'dpao'. Did you mean 'dapo'?" in capsys.readouterr().err
    assert main(["algorithms", "show", "vespo"]) == 2
    assert "algorithm.policy_loss.type=vespo of algorithm.type=composed" in capsys.readouterr().err


@pytest.mark.parametrize(("framework", "name"), [(f, name) for f, by in PRESETS.items() for name in by])
def test_every_preset_is_shown(framework, name, capsys):
    text = run(capsys, "show", name, "--preset", framework)
    assert f"Preset {framework}, " in text
    found = json.loads(run(capsys, "show", name, "--preset", framework, "--json"))
    (preset,) = (p for p in found["presets"] if p["name"] == framework)
    defaults = {s["key"]: s["default"] for s in found["settings"]}
    vetted = {s["key"]: s["vetted"] for s in found["settings"]}
    assert {key for key in defaults if defaults[key] != vetted[key]} == {*preset["values"], "preset"}
    assert {key: defaults[key] for key in preset["values"]} == preset["values"]


def test_a_preset_says_what_it_keeps(capsys):
    assert "a defect that is kept: a group of one has its own reward" in run(capsys, "show", "grpo", "--preset", "verl")
    text = run(capsys, "show", "gpg", "--preset", "verl")
    assert "counts rows whose reward is not 0" in text
    assert main(["algorithms", "show", "ppo", "--preset", "trl"]) == 2
    assert "algorithm.preset=trl says nothing of algorithm.type=ppo" in capsys.readouterr().err


def test_names_are_completed():
    assert completion.algorithms("re") == ["reinforce-pp", "remax", "reward-model"]


def test_check_tells_of_a_preset(capsys):
    assert main(["check", "quickstart", "algorithm.preset=verl", "algorithm.dual_clip=4"]) == 0
    out = capsys.readouterr().out
    assert "preset verl (0.8.0.dev): singleton=raw_over_1_plus_eps" in out
    assert "dual_clip" not in out
    assert "  a defect that is kept: a group of one has its own reward" in out
