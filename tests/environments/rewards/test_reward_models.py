"""The reward ``reward_model``: rows as in training, numbers as the trainer's, other tools' models, what is refused."""

import json
import runpy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.config.backends import TorchBackendConfig
from stretto.config.rewards import RewardConfig
from stretto.data.templates import _TODAY
from stretto.data.tokens import Tokenizer, builtin_tokenizer, load_tokenizer
from stretto.environments.faults import Fault
from stretto.environments.rewards.builtin.models import TODAY, RewardModel, _load
from stretto.environments.rewards.calling import call_rewards, read_answer
from stretto.environments.rewards.resolve import resolve_rewards
from stretto.errors import ConfigError, DataError
from stretto.runtime.binding import tokenize_for
from stretto.runtime.exports import write_model
from stretto.types import Batch, Group, Message, Occasion, Prompt
from stretto.workflows.preferences import closed, make_pair

write_family = runpy.run_path(str(Path(__file__).parents[2] / "data" / "conftest.py"))["write_family"]
SHAPE = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


def scores(group: Group, **settings: object) -> list[float]:
    rewards = resolve_rewards(RewardConfig.model_validate({"use": "reward_model", "with": settings}))
    called = call_rewards(rewards, group, Occasion())
    assert not isinstance(called, Fault), called.cause
    answer = read_answer(rewards, called, group)
    assert not isinstance(answer, Fault), answer.cause
    return [row["reward_model"] or 0.0 for row in answer.rows]


def trained(path: str, tokenizer: Tokenizer, folder: Path) -> TorchBackend:
    """A backend whose reward model, written to ``folder``, has a head that is not 0."""
    backend = TorchBackend({"reward": ModelSpec(path=path, value_head=True)}, TorchBackendConfig(), 3)
    for tensor in backend.tensors("reward"):
        if tensor.name == "value_head.weight":
            tensor.data.copy_(torch.linspace(-1, 1, tensor.data.numel()).reshape(tensor.data.shape))
    folder.mkdir()
    write_model(backend, "reward", tokenizer, folder)
    return backend


def values_of(backend: TorchBackend, group: Group) -> list[float]:
    ends = closed(Batch(groups=(group,)))
    (values,) = backend.score("reward", ends, frozenset({"values"}))
    return [float(values.row(index)[-1]) for index in range(len(ends.keys))]


def text_pair(tokenizer: Tokenizer, chosen="12", rejected="1234") -> Group:
    data = {"chosen": chosen, "rejected": rejected}
    prompt = Prompt(uid="u", text="5+7=", token_ids=tokenizer.encode_prompt("5+7="), data=data)
    return make_pair(prompt, tokenize_for(tokenizer))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[TorchBackend, Path]:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return trained("builtin:tiny-llama-char", builtin_tokenizer(), folder), folder


def test_it_says_what_the_trainer_says(tiny):
    backend, folder = tiny
    group = text_pair(builtin_tokenizer())
    found = scores(group, path=str(folder))
    assert found == pytest.approx(values_of(backend, group), rel=1e-5, abs=1e-6)
    assert len(set(found)) == 2
    assert found == scores(group, path=str(folder))


def test_an_attempt_that_was_cut_has_no_end(tiny):
    _, folder = tiny
    group = text_pair(builtin_tokenizer())
    scorer = _load(str(folder), None, "cpu")
    whole, cut = group.trajectories[0], replace(group.trajectories[0], finish="length")
    assert scorer.row(group.prompt, whole, chat=False) == whole.token_ids_T.tolist()
    assert scorer.row(group.prompt, cut, chat=False) == whole.token_ids_T.tolist()[:-1]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory) -> Callable[[str], tuple[Path, Tokenizer]]:
    """The folder of a small model of a family, with its tokenizer and template."""

    def make(family: str) -> tuple[Path, Tokenizer]:
        folder = tmp_path_factory.mktemp(family) / "model"
        write_family(folder, family)
        size = load_size(folder)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            LlamaForCausalLM(LlamaConfig(vocab_size=size, **SHAPE)).save_pretrained(folder)
        # What save_pretrained says of special ids is not the family's.
        written = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**written, "eos_token_id": None, "bos_token_id": None}))
        shutil.rmtree(folder.parent / "again", ignore_errors=True)
        fresh = write_family(folder.parent / "again", family)
        shutil.copy(fresh / "generation_config.json", folder)
        return folder, load_tokenizer(folder)

    return make


def load_size(folder: Path) -> int:
    known = json.loads((folder / "tokenizer.json").read_text())
    return 1 + max(max(known["model"]["vocab"].values()), *(token["id"] for token in known["added_tokens"]))


@pytest.mark.parametrize("family", ["llama3", "qwen25", "qwen3", "smollm2", "gemma"])
def test_messages_are_read_as_in_training(chat_model, tmp_path, family):  # pitfall 14: a pad that is the eos
    folder, tokenizer = chat_model(family)
    backend = trained(str(folder), tokenizer, tmp_path / "reward")
    messages = (Message(role="user", content="hello"),)
    ids = tokenizer.encode_prompt(messages)
    data = {"chosen": "ok", "rejected": "hello in the"}
    group = make_pair(Prompt(uid="u", text="", token_ids=ids, data=data, messages=messages), tokenize_for(tokenizer))
    scorer = _load(str(tmp_path / "reward"), None, "cpu")
    for row in group.trajectories:
        assert scorer.row(group.prompt, row, chat=False) == row.token_ids_T.tolist()
    assert scores(group, path=str(tmp_path / "reward")) == pytest.approx(values_of(backend, group), rel=1e-4, abs=1e-5)
    config = json.loads((tmp_path / "reward" / "config.json").read_text())
    assert config["pad_token_id"] not in {*tokenizer.stop_ids, *tokenizer.turn_end}


def test_text_may_be_asked_as_a_message(chat_model, tmp_path):
    folder, tokenizer = chat_model("qwen25")
    trained(str(folder), tokenizer, tmp_path / "reward")
    group = text_pair(tokenizer)
    scorer = _load(str(tmp_path / "reward"), None, "cpu")
    row = scorer.row(group.prompt, group.trajectories[0], chat=True)
    asked = tokenizer.encode_prompt((Message(role="user", content="5+7="),))
    assert row[: len(asked)] == asked.tolist() and row[-1] == tokenizer.turn_end[-1]


def test_another_tools_model_reads_by_its_own_template(chat_model, tmp_path):
    folder, tokenizer = chat_model("qwen25")
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    model.config.pad_token_id = tokenizer.backend.token_to_id("<|endoftext|>")
    model.save_pretrained(tmp_path / "other")
    tokenizer.save(tmp_path / "other")
    messages = (Message(role="user", content="hello"),)
    prompt = Prompt(
        uid="u", text="", token_ids=np.ones(1, np.int32), messages=messages, data={"chosen": "a", "rejected": "bc"}
    )
    group = make_pair(prompt, tokenize_for(tokenizer))
    found = scores(group, path=str(tmp_path / "other"))
    scorer = _load(str(tmp_path / "other"), None, "cpu")
    for index, text in enumerate(("a", "bc")):
        said = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n" + text + "<|im_end|>\n"
        row = scorer.row(group.prompt, group.trajectories[index], chat=False)
        assert tokenizer.decode(np.asarray(row), specials=True).endswith(said)
        alone = model.eval()(torch.tensor([row])).logits[0, 0].item()
        assert found[index] == pytest.approx(alone, rel=1e-5, abs=1e-6)


def test_any_classifier_of_one_label_will_do(tmp_path):
    """An encoder: its own special tokens, no end-of-sequence."""
    from tokenizers import Tokenizer as Raw
    from tokenizers import models, pre_tokenizers, processors

    vocab = {token: i for i, token in enumerate(("[PAD]", "[CLS]", "[SEP]", "[UNK]", *"0123456789+="))}
    raw = Raw(models.WordLevel(vocab, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    raw.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    config = BertConfig(vocab_size=len(vocab), num_labels=1, pad_token_id=0, max_position_embeddings=32, **SHAPE)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    group = text_pair(builtin_tokenizer())
    scorer = _load(str(tmp_path), None, "cpu")
    row = scorer.row(group.prompt, group.trajectories[0], chat=False)
    assert (row[0], row[-1], len(row)) == (1, 2, 8)
    assert len(set(scores(group, path=str(tmp_path)))) == 2


def test_the_day_is_that_of_prompts():
    assert TODAY == _TODAY


def test_what_is_no_reward_model_is_refused(tiny, tmp_path):
    _, folder = tiny
    with pytest.raises(ConfigError, match=r"reward.with.path is missing"):
        resolve_rewards(RewardConfig(use="reward_model"))
    with pytest.raises(ConfigError, match=r"the reward model 'runs/nobody/model' is no folder"):
        RewardModel(path="runs/nobody/model")
    with pytest.raises(ConfigError, match=r"has no config.json that can be read"):
        RewardModel(path=str(tmp_path))
    LlamaForCausalLM(LlamaConfig(vocab_size=20, **SHAPE)).save_pretrained(tmp_path / "lm")
    with pytest.raises(ConfigError, match=r"holds a LlamaForCausalLM, which gives no number for a row"):
        RewardModel(path=str(tmp_path / "lm"))
    two = LlamaConfig(vocab_size=20, num_labels=2, **SHAPE)
    LlamaForSequenceClassification(two).save_pretrained(tmp_path / "two")
    with pytest.raises(ConfigError, match=r"has 2 labels, and a reward is one number"):
        RewardModel(path=str(tmp_path / "two"))
    shutil.copytree(folder, tmp_path / "broken")
    config = json.loads((tmp_path / "broken" / "config.json").read_text())
    (tmp_path / "broken" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 5}))
    with pytest.raises(ConfigError, match=r"holds no whole reward model: its weights have no model.layers.4"):
        RewardModel(path=str(tmp_path / "broken")).warm()


def test_prompts_that_it_cannot_read_are_refused_before_a_run(tiny):
    _, folder = tiny
    chat = Prompt(uid="c", text="", token_ids=np.ones(1, np.int32), messages=(Message(role="user", content="x"),))
    with pytest.raises(DataError, match=r"the prompt 'c' is chat messages, and the tokenizer of the reward model"):
        RewardModel(path=str(folder)).check([chat])


def test_a_row_beyond_its_positions_is_a_failure(tiny):
    _, folder = tiny
    group = text_pair(builtin_tokenizer(), chosen="1" * 600)
    called = call_rewards(
        resolve_rewards(RewardConfig.model_validate({"use": "reward_model", "with": {"path": str(folder)}})),
        group,
        Occasion(),
    )
    assert isinstance(called, Fault) and "was made for 512" in called.cause
