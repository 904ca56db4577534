"""The backend: scores against a plain forward, gradients that no cut changes, updates, state to the bit."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from stretto.algorithms.aggregation import aggregation_weights
from stretto.backends.torch.backend import ModelSpec, TorchBackend, set_threads
from stretto.config.backends import TorchBackendConfig
from stretto.errors import ConfigError, StoreError
from stretto.roles import TrainBackend
from stretto.types import Batch, Column, LossRef

BUILTIN = "builtin:tiny-llama-char"
POLICY = LossRef(use="clip", settings={"kl_coef": 0.1, "entropy_coef": 0.01})
SFT = LossRef(use="sft")
VALUE = LossRef(use="value_clip")


def backend_of(path=BUILTIN, *, seed=0, frozen=(), **config) -> TorchBackend:
    models = {
        "policy": ModelSpec(path=str(path)),
        "critic": ModelSpec(path=str(path), value_head=True),
        **{name: ModelSpec(path=str(path), trainable=False) for name in frozen},
    }
    return TorchBackend(models, TorchBackendConfig(**config), seed)


def columns_of(batch: Batch, aggregate="token_mean", **extra: np.ndarray) -> tuple[Column, ...]:
    """Weights, and advantages, returns, reference log-probs and old values that depend on the token's key only."""
    rows = [
        np.random.default_rng([t.key.draw, t.key.sample]).normal(size=(4, len(t.mask_T))) for t in batch.trajectories
    ]
    advantages, returns, ref, old = np.concatenate(rows, axis=1) if rows else np.zeros((4, 0))
    values = {"advantages": advantages, "returns": returns, "ref_logprobs": -np.abs(ref), "old_values": old, **extra}
    return (
        aggregation_weights(batch, aggregate),
        *(Column.per_token(name, batch, v.astype(np.float32)) for name, v in values.items()),
    )


@cache
def shared_backend(path: str, budget: int) -> TorchBackend:
    """A backend for tests that only look at gradients; its critic's head is not 0, so its trunk learns as well."""
    backend = backend_of(path, microbatch_tokens=budget)
    for tensor in backend.tensors("critic"):
        if tensor.name == "value_head.weight":
            tensor.data.copy_(torch.linspace(-1, 1, tensor.data.numel()).reshape(tensor.data.shape))
    return backend


def gradient(backend: TorchBackend, model: str) -> torch.Tensor:
    found = torch.cat([t.data.double().reshape(-1) for t in backend.gradients(model)])
    backend.update(model, 0.0)
    return found


def plain_scores(folder, batch: Batch) -> dict[str, np.ndarray]:
    """Log-probs and entropies of one unpacked forward pass per trajectory, by transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    out = {"logprobs": np.zeros(batch.num_tokens), "entropy": np.zeros(batch.num_tokens)}
    for row, t in enumerate(batch.trajectories):
        ids = torch.from_numpy(t.token_ids_T).long()[None]
        with torch.no_grad():
            logp = (model(input_ids=ids, use_cache=False).logits[0] / (t.temperature or 1.0)).log_softmax(-1)[:-1]
        span = slice(batch.offsets[row] + 1, batch.offsets[row + 1])
        out["logprobs"][span] = logp.gather(1, ids[0, 1:, None])[:, 0]
        out["entropy"][span] = -(logp.exp() * logp).sum(-1)
    return {name: values * batch.mask for name, values in out.items()}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_scores_are_those_of_a_plain_forward(model_folders, random_batch, family, temperature):  # pitfall 18
    batch = random_batch(5, longest=40, temperature=temperature)
    backend = backend_of(model_folders[family], microbatch_tokens=100)
    logprobs, entropy = backend.score("policy", batch, frozenset({"logprobs", "entropy"}))
    expected = plain_scores(model_folders[family], batch)
    assert (logprobs.name, entropy.name) == ("logprobs", "entropy")
    assert logprobs.values.dtype == np.float32
    np.testing.assert_allclose(logprobs.values, expected["logprobs"], atol=1e-5)
    np.testing.assert_allclose(entropy.values, expected["entropy"], atol=1e-5)


def test_values_belong_to_the_state_before_the_token(model_folders, random_batch):
    batch = random_batch(2)
    backend = backend_of(model_folders["llama"])
    assert not backend.score("critic", batch, frozenset({"values"}))[0].values.any()
    backend.accumulate("critic", batch, columns_of(batch), VALUE)
    backend.update("critic", 0.1)
    (values,) = backend.score("critic", batch, frozenset({"values"}))
    assert (values.values != 0).astype(int).tolist() == batch.mask.tolist()
    # the value cannot see its own token: another last token changes nothing
    changed = [
        replace(
            g,
            trajectories=tuple(
                replace(t, token_ids_T=np.append(t.token_ids_T[:-1], 3).astype(np.int32)) for t in g.trajectories
            ),
        )
        for g in batch.groups
    ]
    (again,) = backend.score("critic", Batch(groups=tuple(changed)), frozenset({"values"}))
    np.testing.assert_allclose(again.values, values.values, atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(("model", "loss"), [("policy", SFT), ("policy", POLICY), ("critic", VALUE)])
def test_the_gradient_does_not_depend_on_the_cut(model_folders, random_batch, model, loss, data):  # pitfall 29
    batch = random_batch(data.draw(st.integers(0, 1000)), groups=4, siblings=3)
    aggregate = data.draw(st.sampled_from(["token_mean", "seq_mean_token_mean", "seq_mean_token_sum"]))
    path = str(model_folders["qwen2"])
    whole, cut = shared_backend(path, 10**6), shared_backend(path, data.draw(st.sampled_from([1, 13, 40, 90])))
    metrics = [b.accumulate(model, batch, columns_of(batch, aggregate), loss) for b in (whole, cut)]
    one, other = gradient(whole, model), gradient(cut, model)
    assert (one - other).norm() <= 1e-6 * one.norm(), (one - other).norm() / one.norm()
    assert metrics[0].keys() == metrics[1].keys()
    for name in metrics[0]:
        assert metrics[0][name].value == pytest.approx(metrics[1][name].value, rel=1e-4, abs=1e-6), name


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), order=st.permutations(range(4)), alone=st.booleans())
@pytest.mark.parametrize(("model", "loss"), [("policy", SFT), ("policy", POLICY), ("critic", VALUE)])
def test_the_gradient_does_not_depend_on_order_or_sharing(model_folders, random_batch, model, loss, seed, order, alone):
    batch = random_batch(seed, groups=4, siblings=3)
    weights = dict(zip(batch.keys, _rows(aggregation_weights(batch)), strict=True))
    backend = shared_backend(str(model_folders["llama"]), 10**6)
    backend.accumulate(model, batch, columns_of(batch), loss)
    one = gradient(backend, model)
    # the same trajectories under other draws, so in another order, and one or all at a time
    moved = [_under(group, new) for group, new in zip(batch.groups, order, strict=True)]
    parts = [Batch(groups=(g,)) for g in moved] if alone else [Batch(groups=tuple(moved))]
    for part in parts:
        old_key = [replace_draw(k, list(order).index(k.draw)) for k in part.keys]
        columns = {c.name: dict(zip(batch.keys, _rows(c), strict=True)) for c in columns_of(batch)[1:]}
        given_columns = [
            Column.per_token(name, part, np.concatenate([rows[k] for k in old_key]))
            for name, rows in {**columns, "weights": weights}.items()
        ]
        backend.accumulate(model, part, tuple(given_columns), loss)
    other = gradient(backend, model)
    assert (one - other).norm() <= 1e-6 * one.norm(), (one - other).norm() / one.norm()


def replace_draw(key, draw):
    return replace(key, draw=draw)


def _under(group, draw):
    return replace(
        group,
        draw=draw,
        trajectories=tuple(replace(t, key=replace_draw(t.key, draw)) for t in group.trajectories),
    )


def _rows(column: Column):
    return [column.row(i) for i in range(len(column.keys))]


def test_the_gradient_is_that_of_a_plain_forward(model_folders, random_batch):
    batch = random_batch(8, longest=20)
    backend = backend_of(model_folders["llama"])
    backend.accumulate("policy", batch, columns_of(batch), SFT)
    ours = {t.name: t.data.clone() for t in backend.gradients("policy")}
    model = AutoModelForCausalLM.from_pretrained(model_folders["llama"], dtype=torch.float32).eval()
    loss = torch.zeros(())
    for t in batch.trajectories:
        ids = torch.from_numpy(t.token_ids_T).long()[None]
        logp = model(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        loss = loss - (logp * torch.from_numpy(t.mask_T[1:])).sum() / batch.num_written
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(ours[name], parameter.grad, atol=1e-6, rtol=1e-4)


def train(backend: TorchBackend, random_batch, steps) -> list[str]:
    hashes = []
    for step in steps:
        batch = random_batch(100 + step)
        backend.accumulate("policy", batch, columns_of(batch), POLICY)
        backend.accumulate("critic", batch, columns_of(batch), VALUE)
        assert backend.update("policy", 1e-3).skipped is None
        assert backend.update("critic", 1e-3).skipped is None
        hashes.append(backend.weights_hash("policy") + backend.weights_hash("critic"))
    return hashes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_same_seed_same_bits_and_no_global_randomness(random_batch, dtype):  # pitfall 22
    before = torch.get_rng_state()
    one = train(backend_of(dtype=dtype, microbatch_tokens=64), random_batch, range(3))
    torch.manual_seed(99)
    other = train(backend_of(dtype=dtype, microbatch_tokens=64), random_batch, range(3))
    torch.set_rng_state(before)
    assert one == other
    assert len(set(one)) == 3


def test_save_load_continue_equals_never_stopping(random_batch, tmp_path):  # pitfall 8
    never = backend_of(frozen=("reference",), weight_decay=0.1)
    first = train(never, random_batch, range(2))
    never.capture()(tmp_path)
    last = train(never, random_batch, range(2, 4))
    # a fresh backend with other weights, a gradient under way and an optimizer of its own
    fresh = backend_of(seed=5, frozen=("reference",), weight_decay=0.1)
    train(fresh, random_batch, range(9, 10))
    batch = random_batch(1)
    fresh.accumulate("policy", batch, columns_of(batch), SFT)
    fresh.load(tmp_path)
    assert fresh.weights_hash("policy") + fresh.weights_hash("critic") == first[-1]
    assert fresh.weights_hash("reference") == never.weights_hash("reference")
    assert train(fresh, random_batch, range(2, 4)) == last


def test_saved_files_of_an_equal_state_are_equal(random_batch, tmp_path):
    backend = backend_of(frozen=("reference",))
    train(backend, random_batch, range(1))
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        backend.capture()(folder)
    names = sorted(p.name for p in folders[0].iterdir())
    assert names == [
        "critic.optimizer.json",
        "critic.optimizer.safetensors",
        "critic.safetensors",
        "policy.optimizer.json",
        "policy.optimizer.safetensors",
        "policy.safetensors",
        "reference.safetensors",
    ]
    assert all((folders[0] / n).read_bytes() == (folders[1] / n).read_bytes() for n in names)


def test_broken_checkpoints_are_named(model_folders, random_batch, tmp_path):
    backend = backend_of()
    with pytest.raises(StoreError, match=r"no weights of Model 'policy'"):
        backend.load(tmp_path)
    backend.capture()(tmp_path)
    with pytest.raises(StoreError, match=r"weights of another Model"):
        backend_of(model_folders["llama"]).load(tmp_path)
    (tmp_path / "critic.optimizer.json").unlink()
    with pytest.raises(StoreError, match=r"critic.optimizer.json' cannot be read"):
        backend.load(tmp_path)
    (tmp_path / "policy.safetensors").write_bytes(b"cut off")
    with pytest.raises(StoreError, match=r"policy.safetensors' cannot be read"):
        backend.load(tmp_path)
    with pytest.raises(StoreError, match=r"cannot be written"):
        backend.capture()(tmp_path / "missing")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_exports_are_ordinary_folders(model_folders, random_batch, tmp_path, family):
    backend = backend_of(model_folders[family])
    train(backend, random_batch, range(1))
    backend.export("policy", tmp_path / "out")
    batch = random_batch(4)
    (ours,) = backend.score("policy", batch, frozenset({"logprobs"}))
    np.testing.assert_allclose(plain_scores(tmp_path / "out", batch)["logprobs"], ours.values, atol=1e-5)
    assert backend_of(tmp_path / "out").weights_hash("policy") == backend.weights_hash("policy")


def test_the_builtin_model_exports(random_batch, tmp_path):
    backend = backend_of()
    backend.export("policy", tmp_path)
    assert backend_of(tmp_path, seed=3).weights_hash("policy") == backend.weights_hash("policy")


def test_published_tensors_are_in_a_fixed_order_with_the_head(model_folders):  # pitfall 19
    backend = backend_of(model_folders["qwen2"])
    names = [t.name for t in backend.tensors("policy")]
    assert names == [t.name for t in backend.tensors("policy")]
    assert names[-1] == "lm_head.weight"
    by_name = {t.name: t.data for t in backend.tensors("policy")}
    assert torch.equal(by_name["lm_head.weight"], by_name["model.embed_tokens.weight"])
    assert not any(t.data.requires_grad for t in backend.tensors("policy"))


@pytest.mark.parametrize("bad", ["advantages", "weights"])
def test_what_is_not_finite_is_skipped_and_leaves_no_trace(random_batch, bad):  # pitfall 23
    backend, clean = backend_of(), backend_of()
    for b in (backend, clean):
        train(b, random_batch, range(1))
    batch = random_batch(7)
    nan = np.full(batch.num_tokens, np.nan, np.float32)
    columns = columns_of(batch, **({bad: nan} if bad == "advantages" else {}))
    if bad == "weights":
        columns = (Column.per_token("weights", batch, nan), *columns[1:])
    before = backend.weights_hash("policy")
    backend.accumulate("policy", batch, columns, POLICY)
    report = backend.update("policy", 1e-3)
    assert report.skipped is not None
    assert "nan" in report.skipped
    assert "grad_norm" not in report.metrics
    assert backend.weights_hash("policy") == before
    assert train(backend, random_batch, range(1, 3)) == train(clean, random_batch, range(1, 3))


def test_a_gradient_that_is_not_finite_is_skipped(random_batch, monkeypatch, tmp_path):  # pitfall 23
    (tmp_path / "exploding_loss.py").write_text(
        "from stretto.algorithms.losses import LossOutput\n"
        "def exploding(tokens):\n"
        "    return LossOutput(total=tokens.weighted_sum((tokens.policy_logprobs() * 0).sqrt()), metrics={})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    backend = backend_of()
    before = backend.weights_hash("policy")
    batch = random_batch(7)
    backend.accumulate("policy", batch, columns_of(batch), LossRef(use="exploding_loss:exploding"))
    report = backend.update("policy", 1e-3)
    assert report.skipped is not None
    assert "norm of the gradient is nan" in report.skipped
    assert backend.weights_hash("policy") == before


def test_nothing_written_is_nothing_learned(random_batch):
    backend = backend_of()
    batch = Batch(groups=())
    assert not backend.accumulate("policy", batch, columns_of(batch), SFT)
    report = backend.update("policy", 1e-3)
    assert report.skipped is not None
    assert "no token" in report.skipped


def test_gradients_are_clipped_and_the_rate_is_obeyed(random_batch):
    batch = random_batch(0)
    backend = backend_of(max_grad_norm=1e-3)
    before = {t.name: t.data.clone() for t in backend.tensors("policy")}
    backend.accumulate("policy", batch, columns_of(batch), SFT)
    norm = float(torch.cat([t.data.double().reshape(-1) for t in backend.gradients("policy")]).norm())
    report = backend.update("policy", 0.01)
    assert report.metrics["grad_norm"].value == pytest.approx(norm, rel=1e-4)
    assert report.metrics["lr"].value == 0.01
    moved = max(float((t.data - before[t.name]).abs().max()) for t in backend.tensors("policy"))
    # the first step of Adam moves every weight by at most the rate
    assert 0.005 < moved <= 0.01 * 1.001


def test_sft_learns_its_demonstrations(random_batch):
    backend = backend_of()
    batch = random_batch(0, gaps=False)
    losses = []
    for _ in range(30):
        losses.append(backend.accumulate("policy", batch, columns_of(batch), SFT)["loss"].value)
        backend.update("policy", 3e-3)
    assert losses[0] == pytest.approx(np.log(100), abs=0.2)
    assert losses[-1] < 0.5 * losses[0]


def test_the_first_update_has_ratio_one(model_folders, random_batch):  # pitfall 18
    backend = backend_of(model_folders["llama"], microbatch_tokens=30)
    batch = random_batch(6, temperature=0.7)
    (sampled,) = backend.score("policy", batch, frozenset({"logprobs"}))
    rows = iter(_rows(sampled))
    batch = Batch(
        groups=tuple(
            replace(g, trajectories=tuple(replace(t, logprobs_T=next(rows)) for t in g.trajectories))
            for g in batch.groups
        )
    )
    metrics = backend.accumulate("policy", batch, columns_of(batch), LossRef(use="clip"))
    assert metrics["sampler_gap_max"].value < 1e-5
    assert metrics["ess"].value == pytest.approx(1, abs=1e-6)
    assert metrics["clip_low"].value == metrics["clip_high"].value == 0
    assert metrics["sampler_gap"].count == batch.num_written


def test_bfloat16_is_near_float32(model_folders, random_batch):
    batch = random_batch(5, longest=30)
    low, full = (backend_of(model_folders["llama"], dtype=d) for d in ("bfloat16", "float32"))
    a, b = (x.score("policy", batch, frozenset({"logprobs"}))[0].values for x in (low, full))
    assert 0 < np.abs(a - b).mean() < 0.05
    low.accumulate("policy", batch, columns_of(batch), SFT)
    full.accumulate("policy", batch, columns_of(batch), SFT)
    one, other = gradient(low, "policy"), gradient(full, "policy")
    assert float(torch.nn.functional.cosine_similarity(one, other, dim=0)) > 0.99
    assert {t.data.dtype for t in low.tensors("policy")} == {torch.float32}


def test_copy_and_reset(random_batch):
    backend = backend_of(frozen=("reference",))
    train(backend, random_batch, range(2))
    head = {t.name: t.data.clone() for t in backend.tensors("critic")}["value_head.weight"]
    backend.copy("policy", "reference")
    backend.copy("policy", "critic")
    assert backend.weights_hash("reference") == backend.weights_hash("policy")
    critic = {t.name: t.data for t in backend.tensors("critic")}
    assert torch.equal(critic["value_head.weight"], head)
    assert all(torch.equal(critic[t.name], t.data) for t in backend.tensors("policy") if t.name in critic)
    backend.reset_optimizer("policy")
    fresh = backend_of(frozen=("reference",))
    fresh.copy("policy", "reference")
    for t, u in zip(backend.tensors("policy"), fresh.tensors("policy"), strict=True):
        u.data.copy_(t.data)
    batch = random_batch(3)
    for b in (backend, fresh):
        b.accumulate("policy", batch, columns_of(batch), SFT)
        b.update("policy", 1e-3)
    assert backend.weights_hash("policy") == fresh.weights_hash("policy")


def test_users_errors_are_sentences(model_folders, random_batch):
    batch = random_batch(0)
    backend = backend_of(frozen=("reference",))
    weights, advantages, *_ = columns_of(batch)
    cases = [
        (lambda: backend.score("polcy", batch, frozenset({"logprobs"})), r"no Model 'polcy'. Did you mean 'policy'"),
        (lambda: backend.score("policy", batch, frozenset({"values"})), r"values of Model 'policy'"),
        (lambda: backend.score("critic", batch, frozenset({"entropy"})), r"entropy of Model 'critic'"),
        (lambda: backend.accumulate("reference", batch, (weights,), SFT), r"'reference' is frozen"),
        (lambda: backend.accumulate("policy", batch, (advantages,), SFT), r"needs the column 'weights', and got adv"),
        (lambda: backend.accumulate("policy", batch, (weights,), POLICY), r"column 'advantages'"),
        (
            lambda: backend.accumulate("policy", random_batch(1, groups=1), (weights,), SFT),
            r"'weights' is not a per-token column of the batch",
        ),
        (lambda: backend_of(device="cuda:7"), r"backend.device='cuda:7' cannot be used"),
        (lambda: backend_of(device="cpux"), r"backend.device='cpux' cannot be used"),
    ]
    for call, message in cases:
        with pytest.raises(ConfigError, match=message):
            call()
    other = TorchBackend(
        {"policy": ModelSpec(path=BUILTIN), "small": ModelSpec(path=str(model_folders["llama"]))},
        TorchBackendConfig(),
        0,
    )
    with pytest.raises(ConfigError, match=r"'small' cannot take the weights of 'policy'"):
        other.copy("policy", "small")


def test_it_is_a_train_backend_and_closes_twice():
    backend: TrainBackend = backend_of()
    backend.close()
    backend.close()


def test_threads_are_set_for_the_calling_thread():
    before = torch.get_num_threads()
    set_threads(3)
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)
