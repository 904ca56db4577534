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
    assert dict(help_fields("warmup.evaluate."))["warmup.evaluate.every"].endswith("default 10]")
    assert dict(help_fields("prompts.path"))["prompts.path (datasets)"].endswith(" [text; required]")
    assert help_fields("algorithm.lam")[0] == (
        "algorithm.lam (ppo)",
        "GAE's lambda. [a number, 0 or more, at most 1; default 0.95]",
    )
    assert len(help_fields()) == len(list(field_docs(Recipe)))
