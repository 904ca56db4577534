"""The configuration reference is what the models say, and every key has its line."""

from pathlib import Path

from stretto.config.checking import known_keys
from stretto.config.fields import field_docs
from stretto.config.recipe import Recipe
from stretto.config.reference import help_fields, reference_markdown

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_committed_page_is_what_the_models_say():
    assert PAGE.read_text(encoding="utf-8") == reference_markdown(), (
        "docs/configuration.md is out of date: python -m stretto.config.reference > docs/configuration.md"
    )


def test_every_key_has_a_doc_line_and_stands_in_the_page():
    page = reference_markdown()
    for doc in field_docs(Recipe):
        assert doc.doc, doc.key
        home = doc.key.removeprefix("warmup.") if ".sets." in doc.key else doc.key
        for section in ("prompts", "reward"):
            home = home.removeprefix("evaluate.sets.NAME.") if f".NAME.{section}." in home else home
        assert f"| `{home}` |" in page, doc.key
    assert {d.key for d in field_docs(Recipe)} == set(known_keys())


def test_defaults_are_those_a_recipe_gets():
    assert dict(help_fields("evaluate."))["evaluate.every"].endswith("default null]")
    assert dict(help_fields("prompts.path"))["prompts.path (datasets)"].endswith(" [text; required]")
    assert help_fields("algorithm.lam")[0] == (
        "algorithm.lam (ppo, vapo)",
        "Lambda of the advantages; with length_alpha the least one, and null is 0. "
        "[a number, 0 or more, at most 1, or null; default 0.95]",
    )


def test_help_has_every_key_once():
    shown = help_fields()
    names = [name for name, _ in shown]
    assert len(set(names)) == len(names)
    bare = {name.partition(" (")[0] for name in names}
    elsewhere = tuple(name.removesuffix("*") for name in bare if name.endswith(".*"))
    left_out = {key for key in known_keys() if key not in bare and not key.endswith(".type")}
    assert left_out
    assert all(key.startswith(elsewhere) for key in left_out)
    pointers = {name: text for name, text in shown if name.endswith(".*")}
    assert pointers["warmup.evaluate.*"].startswith(
        "The keys of evaluate.*, with values of its own; where left out, every=10"
    )
    assert pointers["evaluate.sets.NAME.prompts.*"] == "The keys of prompts.*, with values of its own."
    assert "prompts.system (jsonl, parquet, datasets, reasoning_gym, python)" in names
    assert "algorithm.clip_high (grpo)" in names
    assert not any(name.startswith("algorithm.tau_pos") for name in names)
    assert dict(shown)["algorithm.*"] == "Of another algorithm: `stretto algorithms show NAME`."
    assert len(names) < 300
