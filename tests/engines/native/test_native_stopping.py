"""Stop strings: found at the very token, across tokens and inside characters, and what an engine makes of them."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from stretto.data.tokens import builtin_tokenizer
from stretto.engines.native.stopping import StopWatch
from stretto.roles import Completion, Request, Sampling
from stretto.workflows.nodes import rollout


def _byte_level():
    """Bytes as byte-level BPE writes them, and a few longer pieces."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, "ĊĊ", "Ċâ", "</", "answer", ">Ċ", "âĤ"]
    backend = tokenizers.Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return backend


def _byte_fallback():
    """SentencePiece's way: pieces with a mark for spaces, and bytes for what has no piece."""
    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁a", "b", "▁", "▁</", "answer", ">", "\n", "€"]
    backend = tokenizers.Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], unk_token="<unk>"))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(parts)
    backend.add_special_tokens([AddedToken("<eos>", special=True)])
    return backend


BACKENDS = {"bytes": _byte_level(), "fallback": _byte_fallback()}
STOPS = ["\n\n", "\n", "</answer>", "€", "\n€", "a", "ab", "é\n", " a", "b a"]
TEXTS = ["a b", "x€", "\n€\n", "</answer>\n", "é", "\n", "ab", " a", "漢字", "</answ", "<eos>"]


def _encode(backend, text):
    """Ids that decode to the text: pieces where there are any, else bytes."""
    vocab = backend.get_vocab()
    if text == "<eos>":
        return [vocab[text]]
    if backend is BACKENDS["bytes"]:
        return backend.encode_batch([text])[0].ids or [vocab[c] for c in _as_bytes(text)]
    ids = []
    for character in text.replace(" ", "▁"):
        ids += [vocab[character]] if character in vocab else [vocab[f"<0x{b:02X}>"] for b in character.encode()]
    return ids


def _as_bytes(text):
    pre = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(piece for piece, _ in pre.pre_tokenize_str(text))


@pytest.mark.parametrize("name", list(BACKENDS))
@settings(deadline=None, max_examples=250)
@given(data=st.data())
def test_a_stop_string_is_found_at_the_token_that_completes_it(name, data):
    """Against decoding everything at every token."""
    backend = BACKENDS[name]
    size = backend.get_vocab_size()
    some = st.one_of(
        st.sampled_from(TEXTS).map(lambda text: _encode(backend, text)),
        st.integers(0, size - 1).map(lambda index: [index]),
    )
    ids = np.array([i for part in data.draw(st.lists(some, min_size=1, max_size=14)) for i in part], np.int32)
    stops = data.draw(st.lists(st.sampled_from(STOPS), min_size=1, max_size=3, unique=True))

    def decode(token_ids):
        return backend.decode(token_ids.tolist(), skip_special_tokens=True)

    watch = StopWatch(decode, stops)
    for made in range(1, len(ids) + 1):
        text = decode(ids[:made]).rstrip("�")
        there = [stop for stop in stops if stop in text]
        found = watch.see(ids[:made])
        assert (found in there) if there else found is None, (text, there, found)
        if there:
            first = min(text.index(stop) for stop in there)
            completion = Completion(
                index=0, token_ids_T=ids, logprobs_T=np.zeros(0), versions=(), finish="stop", stop=found
            )
            assert completion.cut(decode(ids[:made])) == text[:first]
            return


def test_of_two_stop_strings_the_one_that_begins_first_cuts():
    def decode(token_ids):
        return "".join(chr(i) for i in token_ids.tolist())

    for stops in (("b", "ab"), ("ab", "b")):
        watch = StopWatch(decode, stops)
        ids = np.array([ord(c) for c in "xab"], np.int32)
        assert [watch.see(ids[:n]) for n in (1, 2, 3)] == [None, None, "ab"]


def test_what_is_decoded_does_not_grow_with_the_text():
    lengths = []

    def decode(token_ids):
        lengths.append(len(token_ids))
        return "".join(chr(i) for i in token_ids.tolist())

    watch = StopWatch(decode, ["</answer>"])
    ids = np.full(5000, ord("x"), np.int32)
    assert all(watch.see(ids[:n]) is None for n in range(1, 5001))
    assert max(lengths) == 2


def _decode(token_ids):
    return "".join(f"{i:02d}" for i in token_ids.tolist())


def test_an_engine_ends_rows_at_their_stop_strings_and_says_which(llama, collect):
    """Text is two digits a token, so that "13" may be a token or the border of two."""

    async def main():
        engine = await llama.engine(slots=16, decode=_decode)
        prompt = np.array([5, 9, 40], np.int32)

        def request(name, **sampling):
            return Request(id=name, token_ids=prompt, seeds=tuple(range(40)), sampling=Sampling(**sampling))

        plain, cut = await asyncio.gather(
            collect(engine, request("plain", max_tokens=24)),
            collect(engine, request("cut", max_tokens=24, stop=("13", "888"), stop_ids=(7,))),
        )
        seen = set()
        for whole, ended in zip(plain, cut, strict=True):
            made = next(
                (
                    n
                    for n in range(1, 25)
                    if any(s in _decode(whole.token_ids_T[:n]) for s in ("13", "888")) or whole.token_ids_T[n - 1] == 7
                ),
                24,
            )
            assert np.array_equal(ended.token_ids_T, whole.token_ids_T[:made])  # its tokens stay
            assert ended.logprobs_T.tobytes() == whole.logprobs_T[:made].tobytes()
            text = _decode(ended.token_ids_T)
            assert ended.stop == next((s for s in ("13", "888") if s in text), None)
            assert ended.finish == ("stop" if ended.stop or ended.token_ids_T[-1] == 7 else "length")
            assert ended.stop is None or ended.stop not in ended.cut(text)
            assert whole.stop is None and whole.cut("a13") == "a13"
            seen.add((ended.stop, ended.finish))
        assert {("13", "stop"), (None, "stop"), (None, "length")} <= seen
        await engine.close()

    asyncio.run(main())


def test_a_trajectory_keeps_the_tokens_and_the_text_before():
    tokenizer = builtin_tokenizer()
    written = tokenizer.encode("12</a>")

    class Generate:
        model, draw, temperature = "policy", 3, 1.0

        async def complete(self, token_ids, *, samples, turn=0):
            zeros = np.zeros(len(written), np.float32)
            yield Completion(index=0, token_ids_T=written, logprobs_T=zeros, versions=(), finish="stop", stop="</a>")

    prompt, alone = SimpleNamespace(token_ids=tokenizer.encode("q")), SimpleNamespace(budget=None)
    (trajectory,) = asyncio.run(rollout(prompt, Generate(), tokenizer, alone, n=1)).trajectories
    assert (trajectory.text, trajectory.num_written, trajectory.info) == ("12", 6, {"stop": "</a>"})
