"""Loading of recipes: files, extends, overrides, and the sentence for everything that can be wrong."""

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.config.algorithms import PpoConfig
from stretto.config.evaluation import powers, settings_of, targets
from stretto.config.load import load_recipe, recipe_from_mapping
from stretto.config.overrides import apply_overrides, apply_resume_overrides
from stretto.config.reading import parse_value
from stretto.config.recipe import Recipe
from stretto.config.rollouts import SamplingConfig
from stretto.errors import ConfigError
from stretto.recipes import FOLDER, packaged, path_of


def load(source: str, *overrides: str) -> Recipe:
    return load_recipe(source, overrides, packaged=FOLDER).recipe


def message(source: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source, *overrides)
    return str(caught.value)


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


# --- packaged recipes ---------------------------------------------------------------------------------------------


def test_every_packaged_recipe_loads_and_names_its_runs():
    for name, path in packaged().items():
        loaded = load_recipe(name, [], packaged=FOLDER)
        assert (loaded.hint, Path(loaded.origin)) == (name, path)
        assert loaded.recipe.schedule.deterministic


def test_quickstart_is_what_it_says():
    recipe = load("quickstart")
    assert recipe.algorithm.type == "grpo"
    assert recipe.warmup is not None
    assert recipe.warmup.until == {"held_out/accuracy": 0.45}
    assert (recipe.sampling.n, recipe.schedule.groups_per_step, recipe.steps) == (8, 16, 1000)
    assert load("ppo-addition").algorithm.type == "ppo"
    assert load("ppo-addition").warmup == recipe.warmup


def test_unknown_names_get_the_nearest():
    assert "Did you mean 'quickstart'?" in message("quikstart")
    with pytest.raises(ConfigError, match="Did you mean 'quickstart'"):
        path_of("quickstar")


# --- files --------------------------------------------------------------------------------------------------------


def test_numbers_as_people_write_them(tmp_path):
    path = write(tmp_path / "a.yaml", "steps: 1e3\nbackend: {lr: 3e-5, eps: 1.e-8}\nseed: 1_000\nname: no\n")
    recipe = load(path)
    assert (recipe.steps, recipe.backend.lr, recipe.seed, recipe.name) == (1000, 3e-5, 1000, "no")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_way_to_write_a_float_is_a_float(value):
    for text in (repr(value), f"{value:e}", f"{value:.17g}", f"{value:E}"):
        assert float(parse_value(text, text)) == pytest.approx(value, rel=1e-6, abs=1e-300)
        assert isinstance(parse_value(text, text), (int, float))


@given(st.integers())
def test_every_integer_stays_one(value):
    assert parse_value(str(value), "x") == value
    assert parse_value(f"{value:+d}", "x") == value


@pytest.mark.parametrize("text", ["on", "yes", "2024-01-01", "1:30", "1e", "e5", "1.2.3"])
def test_what_is_no_number_is_text(text):
    assert parse_value(text, text) == text


def test_special_scalars():
    assert parse_value("null", "x") is None
    assert parse_value("~", "x") is None
    assert parse_value("true", "x") is True
    assert parse_value(".inf", "x") == math.inf
    assert parse_value("[1, 2e-1]", "x") == [1, 0.2]


def test_extends_merges_deeply_relative_to_the_file(tmp_path, monkeypatch):
    (tmp_path / "base").mkdir()
    write(tmp_path / "base" / "a.yaml", "steps: 5\nbackend: {lr: 1e-3, eps: 1e-7}\nsave: {every: 2}\n")
    write(tmp_path / "base" / "b.yaml", "extends: a.yaml\nbackend: {lr: 2e-3}\n")
    path = write(tmp_path / "c.yaml", "extends: [quickstart, base/b.yaml]\nsave: {keep_last: 7}\n")
    monkeypatch.chdir("/")
    recipe = load(path)
    assert (recipe.steps, recipe.backend.lr, recipe.save.every, recipe.save.keep_last) == (5, 2e-3, 2, 7)
    assert recipe.save.keep_best == "held_out/accuracy"  # the packaged one, two levels down
    assert recipe.backend.model_dump()["eps"] == 1e-7


def test_extends_in_a_circle_is_refused(tmp_path):
    write(tmp_path / "a.yaml", "extends: b.yaml\n")
    write(tmp_path / "b.yaml", "extends: [a.yaml]\n")
    assert "extends itself (a.yaml -> b.yaml -> a.yaml)" in message(str(tmp_path / "a.yaml"))


def test_extends_of_the_same_base_twice_is_fine(tmp_path):
    write(tmp_path / "a.yaml", "steps: 5\n")
    write(tmp_path / "b.yaml", "extends: a.yaml\n")
    write(tmp_path / "c.yaml", "extends: a.yaml\nseed: 3\n")
    assert load(write(tmp_path / "d.yaml", "extends: [b.yaml, c.yaml]\n")).seed == 3


def test_a_file_may_change_the_type_of_what_it_extends(tmp_path):
    write(tmp_path / "a.yaml", "steps: 5\nalgorithm: {type: grpo, scale: none, clip_low: 0.1}\n")
    recipe = load(write(tmp_path / "b.yaml", "extends: a.yaml\nalgorithm: {type: ppo}\n"))
    assert recipe.algorithm.type == "ppo"
    assert recipe.algorithm.clip_low == 0.1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: 5\nsave: {every: 1}\nsteps: 6\n", ":3: steps is written twice (first on line 1)"),
        ("steps: 5\nsave:\n  every: 1\n  every: 2\n", ":4: save.every is written twice (first on line 3)"),
        ("steps: [5\n", "not valid YAML"),
        ("- a\n- b\n", "a recipe is a mapping"),
        ("steps: 5\n3: x\n", ":2: the key '3' is not text"),
        ("extends: {a: 1}\n", "must be the name of a recipe, or a list of names"),
        ("extends: quikstart\n", "Did you mean 'quickstart'?"),
        ("a: &x {b: *x}\n", ":1: a.b contains itself"),
        ("a: &x [1, *x]\n", ":1: a contains itself"),
        ("steps: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        ("", "the run has no end"),
        ("steps: 5\nevaluate: {every: 0}\n", ":2: evaluate.every=0 cannot be used"),
    ],
)
def test_broken_files_say_where(tmp_path, text, said):  # pitfall 35
    path = write(tmp_path / "r.yaml", text)
    assert said in message(path)


def test_missing_files_name_the_nearest(tmp_path):
    write(tmp_path / "mine.yaml", "steps: 5\n")
    assert "Did you mean 'mine.yaml'?" in message(str(tmp_path / "mime.yaml"))
    assert "cannot be read" in message(write_binary(tmp_path / "x.yaml"))


def write_binary(path: Path) -> str:
    path.write_bytes(b"\xff\xfe\x00steps")
    return str(path)


def test_a_function_makes_a_recipe(tmp_path, monkeypatch):
    (tmp_path / "my_recipes_xyz.py").write_text(
        "from stretto.config.recipe import Recipe\n"
        "def small():\n    return {'steps': 3, 'save': {'every': 2}}\n"
        "def whole():\n    return Recipe(steps=4)\n"
        "def wrong():\n    return 5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load_recipe("my_recipes_xyz:small", ["save.every=1"], packaged=FOLDER)
    assert (loaded.hint, loaded.recipe.steps, loaded.recipe.save.every) == ("small", 3, 1)
    assert load("my_recipes_xyz:whole", "algorithm.type=ppo").algorithm.type == "ppo"
    assert "Did you mean 'small'?" in message("my_recipes_xyz:smal")
    assert "returned int" in message("my_recipes_xyz:wrong")
    assert "there is no module 'my_recipes_xyw'" in message("my_recipes_xyw:small")


# --- overrides ----------------------------------------------------------------------------------------------------


def test_only_what_was_given_counts_as_given():
    given = Recipe(steps=4, algorithm=PpoConfig(), sampling=SamplingConfig(n=3))
    recipe = recipe_from_mapping({"steps": 4, "algorithm": PpoConfig(), "sampling": SamplingConfig(n=3)})
    assert recipe == given
    assert recipe.sampling.model_fields_set == {"n"}
    assert recipe.algorithm.model_fields_set == {"type"}
    changed, _ = apply_overrides(given, ["sampling.max_tokens=3"])
    assert changed.sampling.model_fields_set == {"n", "max_tokens"}
    assert load("quickstart").algorithm.model_fields_set == {"type"}


def test_overrides_set_keys_sections_and_nulls():
    recipe = load("quickstart", "steps=10", "backend.lr=3e-5", "warmup=null", "save={every: 50}", "name=7")
    assert (recipe.steps, recipe.backend.lr, recipe.warmup, recipe.save.every, recipe.name) == (10, 3e-5, None, 50, "7")
    assert recipe.save.keep_best is None  # the section was replaced whole
    assert load("quickstart", "warmup.until.held_out/accuracy=0.9").warmup.until == {"held_out/accuracy": 0.9}


def test_a_section_left_out_is_filled_with_its_documented_values():
    recipe = recipe_from_mapping(
        {"steps": 1, "warmup": {"until": {"held_out/accuracy": 0.5}}}, ["warmup.evaluate.limit=9"]
    )
    assert recipe.warmup is not None
    assert (recipe.warmup.evaluate.every, recipe.warmup.evaluate.limit) == (10, 9)


def test_changing_a_type_drops_what_the_recipe_said_of_the_old_one_only():  # pitfall 25
    mapping = {"steps": 5, "algorithm": {"type": "grpo", "scale": "none", "clip_low": 0.1}}
    assert recipe_from_mapping(mapping, ["algorithm.type=ppo"]).algorithm.clip_low == 0.1  # type: ignore[union-attr]
    for order in (["algorithm.scale=none", "algorithm.type=ppo"], ["algorithm.type=ppo", "algorithm.scale=none"]):
        with pytest.raises(ConfigError, match=r"algorithm.scale is not read by algorithm.type=ppo, only by type grpo"):
            recipe_from_mapping(mapping, order)
    # A key that neither type knows is still a typo.
    with pytest.raises(ConfigError, match=r"algorithm.clip_lo is not a key .* Did you mean 'algorithm.clip_low'"):
        recipe_from_mapping({"steps": 5, "algorithm": {"clip_lo": 0.1}}, ["algorithm.type=ppo"])


def test_the_default_type_counts_when_none_is_written():
    assert recipe_from_mapping({"steps": 1, "algorithm": {"scale": "none"}}).algorithm.type == "grpo"
    assert (
        recipe_from_mapping({"steps": 1, "algorithm": {"scale": "none"}}, ["algorithm.type=sft"]).algorithm.type
        == "sft"
    )
    assert recipe_from_mapping({"steps": 1, "sampling": SamplingConfig(n=3)}, ["sampling.max_tokens=2"]).sampling.n == 3


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stesp=3", "stesp is not a key of recipes. Did you mean 'steps'?"),
        ("backend.rate_of_learning=3", "backend.rate_of_learning is not a key of recipes with backend.type=torch."),
        ("reward.timeout=3", "Did you mean 'reward.timeout_s'?"),
        ("warmup.evaluate.evry=3", "Did you mean 'warmup.evaluate.every'?"),
        ("algorithm.lam=0.9", "algorithm.lam is not read by algorithm.type=grpo, only by type ppo, vapo."),
        ("algorithm.type=gpro", "algorithm.type=gpro is not known. Did you mean 'grpo'?"),
        ("algorithm.scale=group-std", "or batch_std. Did you mean 'group_std'?"),
        (
            "evaluate.every=0",
            "it must be a number of steps from 1, or a text such as 10 minutes or 0.5 epochs",
        ),
        (
            "save.every=-1",
            "save.every=-1 cannot be used: it must be a number of steps from 1",
        ),
        ("save.every=false", "save.every=null leaves it out"),
        ("warmup.evaluate.every=0", "warmup.evaluate.every=0 cannot be used"),
        ("steps=0", "steps=0 cannot be used: it must be a whole number, 1 or more"),
        ("steps=true", "steps=true cannot be used"),
        ("steps=1.5", "steps=1.5 cannot be used: it must be a whole number"),
        ("backend.lr=0", "backend.lr=0 cannot be used: it must be a number, above 0, or such values by step."),
        ("backend.lr=.inf", "backend.lr=inf cannot be used"),
        ("backend.lr=.nan", "backend.lr=nan cannot be used"),
        ("backend.lr=fast", "backend.lr=fast cannot be used"),
        ("backend.betas=[1, 2, 3]", "backend.betas=[1, 2, 3] cannot be used: it must be a list of 2 numbers"),
        ("sampling=3", "sampling=3 cannot be used: it must be a section"),
        ("algorithm=rloo", "Write algorithm.type=rloo."),
        ("engine=native", "Write engine.type=native."),
        ("reward=my:own", "Write reward.use=my:own."),
        ("model=some/folder", "Write model.path=some/folder."),
        ("sampling.n=1", "or algorithm.type=ppo, reinforce-pp or remax, which compare none"),
        ("engine=null", "engine=null cannot be used"),
        ("name=a/b", "name=a/b cannot be used"),
        ("warmup.until.x=high", "warmup.until.x=high cannot be used: it must be a number."),
        ("prompts.type=jsonl", "prompts.path is missing"),
        ("schedule.max_staleness=-1", "schedule.max_staleness=-1 cannot be used"),  # pitfall 35
        ("schedule.max_staleness=2", "Set schedule.in_flight=keep (or recompute) and schedule.deterministic=false"),
        ("schedule.in_flight=keep", "with max_staleness=0 there are none. Set schedule.max_staleness=1 or more"),
        ("schedule={max_staleness: 1, in_flight: keep}", "lets time decide which weights write a token"),
        ("schedule.in_flight=kep", "schedule.in_flight=kep"),
        ("schedule.over_sample=1.5", "Set schedule.deterministic=false"),
        ("schedule={over_sample: 1.5, deterministic: false, max_staleness: 1}", "Set it to 0, or rest=carry"),
        ("schedule.rest=carry", "Set schedule.over_sample=1.5, or leave rest out"),
        (
            "schedule={over_sample: 3.5, rest: carry, max_staleness: 2, in_flight: keep, deterministic: false}",
            "max_staleness=3 or more",
        ),
        ("engine.threads=2", "schedule.deterministic=true needs engine.threads=1, got 2"),
        ("engine.batch_invariant=false", "schedule.deterministic=true needs engine.batch_invariant=true"),
        ("engine.prefix_tokens=31", "engine.prefix_tokens=31 would remember nothing"),
        ("engine.prefix_tokens=-1", "engine.prefix_tokens=-1 cannot be used"),
        ("sampling.top_k=3", "Set sampling.top_k=0 and top_p=1 and min_p=0"),  # pitfall 17
        ("sampling.top_p=0.9", "Set sampling.top_k=0 and top_p=1 and min_p=0"),
        ("sampling.min_p=0.1", "sampling.top_k=0, top_p=1.0, min_p=0.1 cut the distribution that is sampled from"),
        ("sampling.stop=['']", "sampling.stop has an empty text"),
        ("evaluate.n=4", "evaluate.n=4 with temperature=0 would make the same greedy attempt 4 times."),
        ("evaluate.top_p=0.9", "evaluate.top_p=0.9 cuts what is sampled from, and temperature=0 always takes"),
        ("evaluate.stop=['']", "evaluate.stop has an empty text"),
        ("evaluate.vote='('", "evaluate.vote='(' is not a regular expression: missing )"),
        ("evaluate.sets=3", "evaluate.sets=3 cannot be used: it must be a mapping of names to sections."),
        ("evaluate.sets.gsm=3", "evaluate.sets.gsm=3 cannot be used: it must be a section."),
        ("evaluate.sets.gsm.promts=3", "Did you mean 'evaluate.sets.gsm.prompts'?"),
        ("evaluate.sets.gsm.limit=3", "evaluate.sets.gsm.prompts is missing"),
        ("evaluate.sets.gsm.prompts={max: 3, path: x}", "evaluate.sets.gsm.prompts.path is not read by"),
        ("evaluate.sets.gsm.prompts={max: 0}", "evaluate.sets.gsm.prompts.max=0 cannot be used"),
        ("evaluate.sets.held_out.prompts={max: 3}", "Give it another name."),
        ("evaluate.sets={'a b': {prompts: {max: 3}}}", "evaluate.sets has a set called 'a b'."),
        ("evaluate.sets.gsm={prompts: {max: 3}, top_k: 5}", "evaluate.sets.gsm.top_k=5 cuts what is sampled from"),
        ("save.keep_best=held_out/pass@4", "is no metric of the evaluations that is to rise."),
        ("save.keep_best=held_out/truncated", "is no metric of the evaluations that is to rise."),
        ("sampling.stop=['\ufffd']", "U+FFFD stands for bytes"),
        ("sampling.stop=now", "sampling.stop=now cannot be used: it must be a list of texts."),
        ("prompts.held_out=0", "Set prompts.held_out=0.2"),
        ("save.keep_best=held_out/acuracy", "Did you mean 'held_out/accuracy'?"),
        (
            "warmup.until={held_out/acuracy: 1}",
            "it cannot wait for 'held_out/acuracy'. Did you mean 'held_out/accuracy'?",
        ),
        ("backend.betas=[0.9, 1.0]", "backend.betas=[0.9, 1.0] cannot be used: both are 0 or more and below 1."),
        ("engine.type=fake", "engine.type=fake cannot sample from the weights of backend.type=torch."),
        ("warmup.evaluate.every=null", "Set warmup.evaluate.every to a number of steps."),
        ("seed.x=1", "seed is one value, not a section"),
        ("steps", "'steps' is not an override. Write key=value"),
        ("=3", "is not an override"),
        ("steps =3", "is not an override"),
        ("steps=", "Write steps=null"),
        ("steps=[", "not a YAML value"),
    ],
)
def test_each_fault_has_its_sentence(override, said):  # pitfall 25, pitfall 35
    assert said in message("quickstart", override)


def test_cross_field_rules_have_their_sentence():
    with pytest.raises(ConfigError, match="the run has no end"):
        recipe_from_mapping({})
    with pytest.raises(ConfigError, match=r"none is asked for. Set evaluate.every"):
        recipe_from_mapping({"steps": 1, "save": {"keep_best": "held_out/reward"}, "evaluate": {"at_end": False}})


def test_contradicting_overrides_are_refused():
    assert "steps is given twice (steps=1 and steps=2)" in message("quickstart", "steps=1", "steps=2")
    assert "set the same section" in message("quickstart", "warmup=null", "warmup.lr=1e-3")


def test_all_faults_come_at_once_a_line_each_with_their_place(tmp_path):
    path = write(
        tmp_path / "r.yaml", "stesp: 5\nsave:\n  every: 0\nalgorithm: {type: grpo, lam: 1}\nsampling: {n: x}\n"
    )
    lines = message(path, "reward.retries=0").splitlines()
    assert len(lines) == 5
    starts = sorted(line.partition(" ")[0] for line in lines)
    assert starts == [f"{path}:1:", f"{path}:3:", f"{path}:4:", f"{path}:5:", "reward.retries=0"]


@given(st.sampled_from(sorted(Recipe.model_fields)), st.text("abcdefghijklmnop_", min_size=1, max_size=8))
def test_no_mistyped_top_key_passes(name, tail):  # pitfall 25
    key = f"{name}{tail}"
    if key not in Recipe.model_fields:
        with pytest.raises(ConfigError, match=f"{key} is not a key of recipes"):
            recipe_from_mapping({"steps": 1, key: 1})


@given(seed=st.integers(0, 2**63 - 1), steps=st.integers(1, 10**6), lr=st.floats(1e-9, 1.0), n=st.integers(2, 64))
@settings(deadline=None)
def test_a_dumped_recipe_loads_to_itself(tmp_path_factory, seed, steps, lr, n):
    recipe = recipe_from_mapping({"seed": seed, "steps": steps, "backend": {"lr": lr}, "sampling": {"n": n}})
    path = tmp_path_factory.mktemp("r") / "r.yaml"
    path.write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    assert load(str(path)) == recipe


def test_sets_of_evaluations_are_read_laid_over_and_named_by_metrics(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "steps: 1\nevaluate: {n: 4, temperature: 1.0, score: exact, sets: {a: {prompts: {max: 3}, limit: 5}}}\n"
    )
    (tmp_path / "own.yaml").write_text(
        "extends: [base.yaml]\n"
        "evaluate: {sets: {a: {prompts: {type: jsonl, path: x}}, b: {prompts: {max: 2}, temperature: 0, n: 1}}}\n"
        "save: {keep_best: a/pass@4}\n"
    )
    overrides = ["evaluate.sets.a.vote=7", "evaluate.sets.b.reward.use=exact_match", "evaluate.sets.b.vote=x"]
    recipe = load_recipe(str(tmp_path / "own.yaml"), overrides, packaged=FOLDER).recipe
    a, b = recipe.evaluate.sets["a"], recipe.evaluate.sets["b"]
    assert (a.prompts.type, a.limit, a.vote) == ("jsonl", 5, "7")
    assert settings_of(recipe.evaluate, "a").n == 4 and settings_of(recipe.evaluate, "a").score == "exact"
    assert (b.temperature, settings_of(recipe.evaluate, "b").score) == (0, None)  # its own reward has other scores
    known = set(targets(recipe.evaluate))
    assert {"held_out/maj@4", "a/avg@4", "a/pass@2", "b/accuracy/low"} <= known and "b/pass@1" not in known
    assert recipe_from_mapping(recipe.model_dump()) == recipe
    changed, changes = apply_resume_overrides(recipe, ["evaluate.sets.a.limit=9"])
    assert changed.evaluate.sets["a"].limit == 9 and [c.key for c in changes] == ["evaluate.sets"]
    assert powers(1) == (1,) and powers(3) == (1, 2, 3) and powers(8) == (1, 2, 4, 8) and powers(12)[-2:] == (8, 12)


def test_keep_best_of_a_set_needs_no_held_out_share():
    tree = {"steps": 1, "prompts": {"held_out": 0}, "evaluate": {"every": 1, "sets": {"a": {"prompts": {"max": 3}}}}}
    assert recipe_from_mapping({**tree, "save": {"keep_best": "a/accuracy"}})
    with pytest.raises(ConfigError, match=r"prompts\.held_out=0 leaves nothing to evaluate on"):
        recipe_from_mapping({**tree, "save": {"keep_best": "held_out/accuracy"}})
