"""Teachers: who may teach, what is refused before a run, and that their weights stay."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stretto.backends.torch.hf_config import load_hf_config
from stretto.config.load import recipe_from_mapping
from stretto.data.tokens import builtin_tokenizer
from stretto.errors import ConfigError, DataError
from stretto.graph import workflow
from stretto.runtime.build import Given, prepare
from stretto.runtime.graphs import main_graph
from stretto.runtime.phases import main_phase
from stretto.runtime.unread import refuse_unread
from stretto.testing import FakeBackend
from stretto.types import Prompt, StepReport
from stretto.workflows.nodes import collect, distribution, learn_distribution, report, rollout

TINY = "builtin:tiny-llama-char"


def recipe(teacher: str | Path | None = TINY, revision: str | None = None, **sections: object):
    named = {} if teacher is None else {"teacher": {"path": str(teacher), "revision": revision}}
    tree = {"steps": 1, "algorithm": {"type": "distill"}, "prompts": {"max": 4}, **named, **sections}
    return recipe_from_mapping(tree)


@pytest.fixture
def folder(tmp_path) -> Callable[..., Path]:
    """A folder like the built-in model, its config and tokenizer changed; no weights that could be loaded."""

    def make(vocabulary: Callable[[dict], None] | None = None, **config: object) -> Path:
        path = tmp_path / "teacher"
        shutil.rmtree(path, ignore_errors=True)
        builtin_tokenizer().save(path)
        (path / "config.json").write_text(json.dumps({**load_hf_config(TINY), **config}))
        (path / "model.safetensors").write_bytes(b"")
        if vocabulary is not None:
            known = json.loads((path / "tokenizer.json").read_text())
            vocabulary(known["model"]["vocab"])
            (path / "tokenizer.json").write_text(json.dumps(known))
        return path

    return make


def test_a_like_model_may_teach(folder):
    job = prepare(recipe(folder(vocab_size=128)), Given())
    assert job.teacher == str(folder(vocab_size=128))
    assert prepare(recipe(), Given()).teacher == TINY


def swapped(vocab: dict) -> None:
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


def test_who_speaks_otherwise_is_refused(folder):
    with pytest.raises(
        DataError,
        match=r"has another vocabulary than the policy: token 'a' is 70 here, and the teacher has it as 71",
    ):
        prepare(recipe(folder(swapped)), Given())
    with pytest.raises(DataError, match=r"gives probabilities to 90 tokens, and the policy to 100"):
        prepare(recipe(folder(vocab_size=90)), Given())
    with pytest.raises(DataError, match=r"was made for 10 tokens, and a row may have \d+"):
        prepare(recipe(folder(max_position_embeddings=10)), Given())


def test_more_tokens_than_there_are(folder):
    top = {"type": "distill", "teacher_logprobs": "top_k", "top_k": 101}
    with pytest.raises(ConfigError, match=r"algorithm.top_k=101 is more than the 100 tokens there are"):
        prepare(recipe(algorithm=top), Given())
    prepare(recipe(algorithm={**top, "top_k": 100}), Given())


def test_a_teacher_that_is_not_there():
    with pytest.raises(DataError, match=r"the model folder 'nowhere' does not exist. Set teacher.path to"):
        prepare(recipe("nowhere"), Given())
    with pytest.raises(DataError, match=r"teacher.revision='main' is of a hub id"):
        prepare(recipe(revision="main"), Given())


def test_a_teacher_that_nobody_asks_is_refused():
    asked = recipe(algorithm={"type": "grpo"})
    with pytest.raises(ConfigError, match=r"^teacher is set, and no workflow of the run has a teacher"):
        refuse_unread(asked, [main_graph(asked)])


@workflow
def taught(prompt: Prompt, *, n: int = 2) -> StepReport:
    batch = collect(rollout(prompt, n=n))
    return report(learn_distribution(batch, distribution(batch, on="teacher")))


def test_a_workflow_of_ones_own_needs_one_too():
    with pytest.raises(ConfigError, match=r"the workflow has a Model teacher, and teacher.path names none"):
        prepare(recipe(None, algorithm={"type": "grpo"}), Given(workflow=taught))
    assert prepare(recipe(algorithm={"type": "grpo"}), Given(workflow=taught)).teacher == TINY


def test_a_phase_leaves_the_teacher_as_it_is():
    asked = recipe()
    job = prepare(asked, Given())
    phase = main_phase(asked, main_graph(asked), job.train, job.phases[0].sampling)

    class Watched(FakeBackend):
        def copy(self, source: str, target: str) -> None:
            raise AssertionError(f"{target} was set to {source}")

    phase.begin(Watched(["policy", "teacher"]))
