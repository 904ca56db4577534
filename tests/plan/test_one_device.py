"""The one-device plan: memory by hand, what fits, what is printed."""

import pytest

from stretto.config.backends import TorchBackendConfig
from stretto.errors import ConfigError
from stretto.plan import (
    Computing,
    DeviceFacts,
    ModelFacts,
    Usage,
    activation_bytes,
    check_plan,
    make_plan,
    render_plan,
    show_bytes,
)

TINY = ModelFacts(
    family="llama", vocab_size=10, hidden=4, intermediate=6, layers=2, heads=2, kv_heads=1, head_dim=2, tied=True
)
# embedding 40, final norm 4, each layer: q 16, k 8, v 8, o 16, mlp 72, norms 8
COUNT = 40 + 4 + 2 * (16 + 8 + 8 + 16 + 72 + 8)
ROLES = {"policy": {"generate", "train"}, "reference": {"score"}}
BACKEND = TorchBackendConfig(microbatch_tokens=7)
USAGE = Usage(slots=3, max_len=5, backend=BACKEND, engine_bytes=2)
CPU = DeviceFacts(name="cpu", memory_bytes=1 << 30)


def plan(device=CPU, usage=USAGE, roles=ROLES):
    return make_plan({"policy": TINY, "reference": TINY, "critic": TINY}, roles, ["batch", "learn"], device, usage)


def test_memory_by_hand():
    policy, reference = plan().models
    assert TINY.parameters == COUNT
    assert policy.roles == ("generate", "train")
    train, score = (Computing(longest=5, backward=backward) for backward in (True, False))
    assert dict(policy.memory) == {
        "weights": 4 * COUNT,
        "gradients": 4 * COUNT,
        "optimizer": 8 * COUNT,
        "engine copy": 2 * COUNT,
        "kv cache": (3 + 3) * 5 * (2 * 2 * 1 * 2) * 2,  # sequences, and prompts being computed
        "activations": activation_bytes(TINY, 7, train),
    }
    assert dict(reference.memory) == {
        "weights": 4 * COUNT,
        "gradients": 0,
        "optimizer": 0,
        "engine copy": 0,
        "kv cache": 0,
        "activations": activation_bytes(TINY, 7, score),
    }


def test_what_an_engine_holds_beside_its_weights():
    """Remembered prompts; a head of another type than the tied embedding, or packed; 32 prompts at once at most."""

    def memory(facts=TINY, **more):
        usage = Usage(**{"slots": 3, "max_len": 5, "backend": BACKEND, "engine_bytes": 2, **more})
        return make_plan({"policy": facts}, {"policy": {"generate"}}, [], CPU, usage).models[0].memory

    a_place = 2 * 2 * 1 * 2 * 2
    assert memory(prefix_tokens=7)["kv cache"] - memory()["kv cache"] == 7 * a_place
    assert memory(slots=100)["kv cache"] == (100 + 32) * 5 * a_place
    assert memory(head_bytes=4)["engine copy"] - memory()["engine copy"] == 4 * 10 * 4
    large = ModelFacts(**{**{n: getattr(TINY, n) for n in TINY.__slots__}, "vocab_size": 100_000})
    assert memory(large, engine_bytes=4)["engine copy"] == 4 * large.parameters + 4 * 400_000


def test_adapters_alone_are_trained_and_a_frozen_model_adds_nothing_else():
    usage = Usage(slots=3, max_len=5, backend=BACKEND, engine_bytes=2, adapter_parameters=50)
    roles = {**ROLES, "critic": {"train", "score"}}
    critic = ModelFacts(**{**{n: getattr(TINY, n) for n in TINY.__slots__}, "value_head": True})
    made = make_plan({"policy": TINY, "reference": TINY, "critic": critic}, roles, ["batch"], CPU, usage)
    found = {m.name: tuple(m.memory[part] for part in ("weights", "gradients", "optimizer")) for m in made.models}
    assert found == {
        "policy": (4 * (COUNT + 50), 4 * 50, 8 * 50),
        "reference": (4 * 50, 0, 0),
        "critic": (4 * (COUNT + 4 + 50), 4 * 54, 8 * 54),
    }
    assert made.models[0].memory["engine copy"] == plan().models[0].memory["engine copy"]


def test_models_take_turns_so_the_largest_activations_count_once():
    made = plan()
    policy, reference = made.models
    held = policy.resident_bytes + reference.resident_bytes
    assert made.total_bytes == made.process_bytes + held + policy.memory["activations"]
    assert made.process_bytes > 0 == plan(DeviceFacts(name="cuda:0", memory_bytes=1 << 30)).process_bytes


def test_moments_of_8_bits_take_a_quarter():
    usage = Usage(slots=3, max_len=5, backend=TorchBackendConfig(microbatch_tokens=7, optimizer="adamw8bit"))
    assert plan(usage=usage).models[0].memory["optimizer"] == round(2 * COUNT * (1 + 4 / 256))


def test_one_rank_runs_every_step_node_and_models_nobody_needs_stay_away():
    made = plan()
    assert dict(made.programs) == {(0,): ("batch", "learn")}
    assert made.process_groups == ()
    assert [model.name for model in made.models] == ["policy", "reference"]
    assert made == plan()


def test_what_does_not_fit_is_refused_with_the_numbers():
    made = plan(DeviceFacts(name="cpu", memory_bytes=1024))
    assert not made.fits
    total = show_bytes(made.total_bytes)
    with pytest.raises(ConfigError, match=rf"needs {total} on cpu, which has 1.0 KiB: .* too little. The largest part"):
        check_plan(made)
    exact = plan(DeviceFacts(name="cpu", memory_bytes=made.total_bytes))
    check_plan(exact)
    assert "does NOT fit" in render_plan(made)


def test_a_needed_model_must_exist():
    with pytest.raises(ConfigError, match=r"needs the Model 'critik', which no config provides. Did you mean 'critic'"):
        plan(roles={"critik": {"train"}})


def test_the_table_says_who_sits_where():
    text = render_plan(plan())
    lines = text.splitlines()
    assert lines[0].startswith("device cpu, each Model replicated")
    assert lines[2].split()[:3] == ["model", "roles", "parameters"]
    assert lines[4].startswith("policy     generate, train         300")
    assert "rank 0 runs  batch > learn" in lines
    assert "process groups: none (one rank)" in lines
    assert any(
        line.startswith("fits: ") and line.endswith("of it the process itself (activations estimated)")
        for line in lines
    )


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (300 << 20, "300 MiB"), (5 << 40, "5.0 TiB")]
)
def test_bytes_for_people(size, text):
    assert show_bytes(size) == text
