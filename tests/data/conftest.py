"""Small tokenizers that speak as those of known families do: their special tokens, their templates' behaviour."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

TEMPLATES = Path(__file__).parent / "chat"
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ t", "t h", "Ġ hello", "i n", "o k", "\u010a \u010a", "1 2")
LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# family: special tokens, eos, pad, bos, eos of generation_config.json by token
FAMILIES = {
    "llama3": (LLAMA, "<|eot_id|>", None, "<|begin_of_text|>", ["<|end_of_text|>", "<|eot_id|>"]),
    "llama32": (LLAMA, "<|end_of_text|>", None, "<|begin_of_text|>", ["<|end_of_text|>"]),
    "qwen25": (CHATML, "<|im_end|>", "<|endoftext|>", None, ["<|im_end|>", "<|endoftext|>"]),
    "qwen3": (CHATML, "<|im_end|>", "<|im_end|>", None, ["<|im_end|>", "<|endoftext|>"]),
    "smollm2": (CHATML, "<|im_end|>", "<|im_end|>", "<|im_start|>", ["<|im_end|>"]),
    "gemma": (("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"), "<eos>", "<pad>", "<bos>", ["<eos>"]),
}


def byte_level(bos: str | None) -> tokenizers.Tokenizer:
    """As the tokenizers of Llama 3, Qwen and SmolLM split text, with eleven merges."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(m.replace(" ", "") for m in MERGES)]
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in MERGES]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if bos == "<|begin_of_text|>":
        single = [(bos, len(vocab))]
        backend.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=single)
    return backend


def sentence_pieces() -> tokenizers.Tokenizer:
    """As Gemma's: spaces become a mark, what is unknown becomes bytes, and merges cross words."""
    letters = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "\n", *map(chr, range(0x21, 0x7F))]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello"), ("\n", "\n"), ("o", "▁")]
    vocab = {token: index for index, token in enumerate([*letters, *(a + b for a, b in merges)])}
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def write_family(folder: Path, family: str) -> Path:
    """The folder of a small tokenizer with the template of ``family``."""
    specials, eos, pad, bos, stops = FAMILIES[family]
    backend = sentence_pieces() if family == "gemma" else byte_level(bos)
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    if family == "qwen3":
        backend.add_tokens([AddedToken(s, special=False, normalized=False) for s in ("<think>", "</think>")])
    folder.mkdir(parents=True)
    backend.save(str(folder / "tokenizer.json"))
    named = {"eos_token": eos, "pad_token": pad, "bos_token": bos}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **{k: v for k, v in named.items() if v is not None}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ids = [backend.token_to_id(stop) for stop in stops]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    template = (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def chat_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder per family, by name."""
    root = tmp_path_factory.mktemp("chat")
    return {family: write_family(root / family, family) for family in FAMILIES}
