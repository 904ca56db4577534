"""Several ranks against one process: real ones, that talk by gloo; shards, copies of shards, ranks without a row."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import rank_jobs
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_jobs import Case, on_ranks, outside, refused, released, resumptions, stories, story
from safetensors.torch import load_file

from stretto.backends.torch.backend import ModelSpec
from stretto.backends.torch.models import build_network
from stretto.backends.torch.planning import RowSizes, share_rows
from stretto.backends.torch.ranks import Cut
from stretto.backends.torch.stored import Stored, index_of
from stretto.config.models import LoraConfig
from stretto.errors import StoreError
from stretto.plan.cluster import Layout
from stretto.types import LossRef

BUILTIN = "builtin:tiny-llama-char"
POLICY = LossRef(use="clip", settings={"kl_coef": 0.1, "entropy_coef": 0.01})
VALUE = LossRef(use="value_clip")
DPO = LossRef(use="dpo", settings={"beta": 0.5}, unit="group")
DISTILL = LossRef(use="distill", settings={"divergence": "jsd", "beta": 0.3}, teachers=("teacher",))
LAYOUTS = {"2": Layout(shards=2), "4": Layout(shards=4), "2x2": Layout(replicas=2, shards=2)}
SOME = ["2", pytest.param("4", marks=pytest.mark.slow), pytest.param("2x2", marks=pytest.mark.slow)]
LORA = LoraConfig(rank=4, alpha=8.0)


@pytest.fixture(scope="session")
def cases(model_folders, random_batch) -> dict[str, Case]:
    """Seven groups, which no number of ranks divides; three, shared out by rows; one row, for one rank of all."""
    sevens = tuple(random_batch(seed, groups=7, siblings=3) for seed in range(3))
    few = random_batch(3, groups=3, siblings=4), random_batch(4, groups=1, siblings=1)
    small = {"microbatch_tokens": 60}
    three = {
        "policy": ModelSpec(path=BUILTIN),
        "critic": ModelSpec(path=BUILTIN, value_head=True),
        "reference": ModelSpec(path=BUILTIN, trainable=False),
    }
    tied = str(model_folders["qwen2"])
    adapted = {
        "policy": ModelSpec(path=tied, lora=LORA),
        "critic": ModelSpec(path=tied, lora=LORA, value_head=True),
        "reference": ModelSpec(path=tied, lora=LORA, trainable=False),
    }
    both = {"policy": POLICY, "critic": VALUE}
    llama, qwen3 = (str(model_folders[family]) for family in ("llama", "qwen3"))
    alone = {"policy": ModelSpec(path=llama)}
    taught = alone | {
        "critic": ModelSpec(path=tied, value_head=True),
        "teacher": ModelSpec(path=qwen3, trainable=False, fixed=True),
    }
    return {
        "dense": Case(models=three, losses=both, batches=sevens + few, config=small),
        "adapters": Case(models=adapted, losses=both, batches=(*sevens[:2], *few), config=small),
        "bfloat16": Case(models=alone, losses={"policy": POLICY}, batches=sevens, config=small | {"dtype": "bfloat16"}),
        "recomputed": Case(
            models=alone,
            losses={"policy": POLICY},
            batches=sevens,
            config=small | {"activation_checkpointing": True},
            times=2,
        ),
        "pairs": Case(
            models={"policy": ModelSpec(path=tied)},
            losses={"policy": DPO},
            batches=tuple(random_batch(seed, groups=groups, siblings=2) for seed, groups in ((5, 7), (6, 3))),
            config=small,
            columns=rank_jobs.pair_columns,
        ),
        "taught": Case(
            models=taught, losses={"policy": DISTILL, "critic": VALUE}, batches=sevens[:2] + few, config=small
        ),
        "poisoned": Case(models=alone, losses={"policy": POLICY}, batches=sevens, config=small, poisoned=1),
    }


@pytest.fixture(scope="session")
def told(cases, tmp_path_factory):
    """What every case says in a layout, by rank, and where it was saved; each layout is run once."""
    done = {}

    def tell(layout: str):
        if layout not in done:
            folder = tmp_path_factory.mktemp(f"ranks{layout}")
            if layout == "1":
                done[layout] = [stories(None, cases, folder / "saved")], folder / "saved"
            else:
                done[layout] = on_ranks(LAYOUTS[layout], folder, stories, cases, folder / "saved"), folder / "saved"
        return done[layout]

    return tell


def gap(found, expected) -> float:
    """The norm of the difference, in parts of that of what is expected."""
    assert found.keys() == expected.keys()
    a, b = (np.concatenate([t[name].astype(np.float64).ravel() for name in expected]) for t in (found, expected))
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))


TOLERANCE = {"bfloat16": 2e-2}
"""Of gradients; products in bfloat16 round differently in packs of other sizes."""


@pytest.mark.parametrize("layout", SOME)
@pytest.mark.parametrize("case", ["dense", "adapters", "bfloat16", "recomputed", "pairs", "taught", "poisoned"])
def test_ranks_compute_what_one_process_does(told, cases, layout, case):  # pitfall 29
    (one,), _ = told("1")
    expected = one[case]
    most = TOLERANCE.get(case, 1e-5)
    for rank in told(layout)[0]:
        said = rank[case]
        assert len(said["gradients"]) == len(cases[case].batches) * len(cases[case].losses)
        assert said["skipped"] == expected["skipped"]
        for step, (found, wanted) in enumerate(zip(said["gradients"], expected["gradients"], strict=True)):
            if expected["skipped"][step] is None:
                assert gap(found, wanted) <= most, step
                assert said["norms"][step] == pytest.approx(expected["norms"][step], rel=most)
                for name, value in expected["metrics"][step].items():
                    assert said["metrics"][step][name] == pytest.approx(value, rel=50 * most, abs=most), name
        for model in cases[case].models:
            start = expected["start"][model]
            assert gap(said["start"][model], start) == 0
            assert gap(said["weights"][model], expected["weights"][model]) <= most
            if model in cases[case].losses:
                moved, wanted = (
                    {n: w[model][n] - start[n] for n in start} for w in (said["weights"], expected["weights"])
                )
                assert gap(moved, wanted) <= max(2 * most, 1e-3)
        assert all(gap(a, b) <= most for a, b in zip(said["again"], expected["again"], strict=True))
        assert said.get("copied") == (said["hashes"]["policy"] if "copied" in expected else None)
        for moment in ("before", "after"):
            for name, values in expected[moment].items():
                np.testing.assert_allclose(said[moment][name], values, atol=max(most, 2e-5), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma3_text", "gpt2"])
def test_modules_of_transformers_are_cut_too(model_folders, random_batch, tmp_path, family):
    path = str(model_folders[family])
    case = Case(
        models={"policy": ModelSpec(path=path), "critic": ModelSpec(path=path, value_head=True)},
        losses={"policy": POLICY, "critic": VALUE},
        batches=tuple(random_batch(seed, groups=groups, siblings=3) for seed, groups in ((0, 7), (1, 1))),
        config={"microbatch_tokens": 60, "activation_checkpointing": family == "gemma3_text"},
    )
    expected = story(None, case, tmp_path / "one")
    for said in on_ranks(LAYOUTS["2"], tmp_path / "ranks", story, case, tmp_path / "two"):
        for found, wanted in zip(said["gradients"], expected["gradients"], strict=True):
            assert gap(found, wanted) <= 1e-5
        for name, values in expected["after"].items():
            np.testing.assert_allclose(said["after"][name], values, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("layout", SOME)
def test_every_rank_says_the_same_to_the_bit(told, layout):
    first, *others = told(layout)[0]
    for rank in others:
        for name, said in first.items():
            for what in ("hashes", "norms", "skipped", "metrics"):
                np.testing.assert_equal(rank[name][what], said[what])
            assert all(gap(a, b) == 0 for a, b in zip(rank[name]["gradients"], said["gradients"], strict=True))
            assert gap(rank[name]["after"], said["after"]) == 0


def test_gradients_are_clipped_by_the_norm_over_all_shards(told):
    (one,), _ = told("1")
    assert max(one["dense"]["norms"]) > 1.0  # the default of max_grad_norm


@pytest.mark.parametrize("layout", SOME)
def test_what_is_not_finite_on_one_rank_is_skipped_on_all(told, layout):
    for rank in told(layout)[0]:
        before, bad, after = rank["poisoned"]["skipped"]
        assert before is None and after is None
        assert bad is not None and "nan" in bad


@pytest.mark.parametrize("layout", SOME)
def test_exports_are_those_of_one_process(told, cases, layout):
    (_, wanted), (_, found) = told("1"), told(layout)
    for case in ("dense", "adapters"):
        for model in cases[case].models:
            theirs, ours = (load_file(at / case / "export" / model / "model.safetensors") for at in (wanted, found))
            assert theirs.keys() == ours.keys()
            for name, tensor in theirs.items():
                torch.testing.assert_close(ours[name], tensor, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_any_number_of_ranks_goes_on_from_what_any_other_saved(told, cases, tmp_path):
    """4 -> 2 -> 1 -> 4, and 1 -> 2 x 2; weights are the saved ones to the bit."""
    case = replace(cases["dense"], batches=cases["dense"].batches[:1])
    adapted = replace(cases["adapters"], batches=cases["adapters"].batches[:1])
    (first, *_), of_four = told("4")
    (alone,), of_one = told("1")

    def go_on(layout: str, number: int, saved: Path, adapters: Path):
        jobs = [(case, saved, tmp_path / f"{number}"), (adapted, adapters, tmp_path / f"{number}a")]
        if layout == "1":
            return resumptions(None, jobs)
        return on_ranks(LAYOUTS[layout], tmp_path / f"ranks{number}", resumptions, jobs)[0]

    two = go_on("2", 1, of_four / "dense", of_four / "adapters")
    one = go_on("1", 2, tmp_path / "1", tmp_path / "1a")
    four = go_on("4", 3, tmp_path / "2", tmp_path / "2a")
    copies = go_on("2x2", 4, of_one / "dense", of_one / "adapters")
    again = resumptions(
        None, [(case, of_one / "dense", tmp_path / "5"), (adapted, of_one / "adapters", tmp_path / "5a")]
    )
    for place, name in enumerate(("dense", "adapters")):
        chain = [first[name], two[place], one[place], four[place]]
        for earlier, later in pairwise(chain):
            for model in cases[name].models:
                assert gap(later["loaded"][model], earlier["weights"][model]) == 0
        for model in cases[name].models:
            assert gap(copies[place]["loaded"][model], alone[name]["weights"][model]) == 0
            # Moments came along: the next step is the same.
            start = again[place]["loaded"][model]
            moved = {n: copies[place]["weights"][model][n] - start[n] for n in start}
            wanted = {n: again[place]["weights"][model][n] - start[n] for n in start}
            assert gap(moved, wanted) <= 1e-3, model


def test_a_model_that_is_cut_later_takes_no_memory_before(model_folders):
    spec = ModelSpec(path=str(model_folders["qwen2"]))
    network = build_network(spec, seed=0, device=torch.device("cpu"), later=True)
    assert all(parameter.is_meta for parameter in network.parameters())


def test_shards_are_released_and_taken_back(cases, tmp_path):
    """Training and checkpoints go on as if they had stayed."""
    case = replace(cases["dense"], batches=cases["dense"].batches[:2])
    for stayed, moved in on_ranks(LAYOUTS["2"], tmp_path / "ranks", released, case, tmp_path / "saved"):
        assert stayed == moved


@pytest.mark.slow
def test_going_on_with_the_same_ranks_gives_the_same_bits(told, cases, tmp_path):
    case = cases["dense"]
    parts = [replace(case, batches=case.batches[:2]), replace(case, batches=case.batches[2:])]
    first = on_ranks(LAYOUTS["2"], tmp_path / "a", story, parts[0], tmp_path / "saved")
    second = on_ranks(LAYOUTS["2"], tmp_path / "b", resumptions, [(parts[1], tmp_path / "saved", tmp_path / "end")])
    whole = told("2")[0]
    for rank in (0, 1):
        assert first[rank]["norms"] + second[rank][0]["norms"] == whole[rank]["dense"]["norms"]
        for model in case.models:
            assert gap(second[rank][0]["weights"][model], whole[rank]["dense"]["weights"][model]) == 0


def test_a_checkpoint_of_ranks_holds_no_pickle_and_says_where_rows_lie(told):
    folder = told("2")[1] / "dense"
    files = {file.name for file in folder.iterdir() if file.is_file()}
    assert {Path(name).suffix for name in files} == {".safetensors", ".json"}
    index = json.loads((folder / "policy.shards.json").read_text())
    for name, tensor in index["tensors"].items():
        parts = [load_file(folder / f"policy.{file}")[name] for file in index["files"]]
        assert [len(part) for part in parts] == np.diff(tensor["starts"]).tolist()
        assert sum(len(part) for part in parts) == tensor["shape"][0]


def test_a_part_that_is_missing_is_named(told, tmp_path):
    folder = told("2")[1] / "dense"
    (tmp_path / "policy.shards.json").write_bytes((folder / "policy.shards.json").read_bytes())
    (tmp_path / "policy.0of2.safetensors").write_bytes((folder / "policy.0of2.safetensors").read_bytes())
    with pytest.raises(StoreError, match=r"policy.shards.json.*cannot be read.*Take an older checkpoint"):
        Stored(tmp_path, "policy")


@given(rows=st.integers(0, 40), parts=st.integers(1, 9))
def test_parts_are_those_of_torch_chunk(rows, parts):
    cuts = [Cut(place=i, parts=parts).rows(rows) for i in range(parts)]
    chunks = [len(chunk) for chunk in torch.zeros(rows).chunk(parts)] if rows else []
    assert [stop - start for start, stop in cuts] == chunks + [0] * (parts - len(chunks))
    assert index_of({"x": (rows,)}, parts)["tensors"] == {
        "x": {"shape": [rows], "starts": [*(start for start, _ in cuts), rows]}
    }


@given(data=st.data())
def test_rows_are_shared_out_once_and_groups_whole(data):
    groups = data.draw(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=5), max_size=9))
    group_of = np.asarray([g for g, rows in enumerate(groups) for _ in rows], np.int64)
    sizes = RowSizes(
        groups_B=group_of,
        prompts_B=group_of,
        prompt_tokens_B=np.full(len(group_of), 5),
        own_tokens_B=np.asarray([n for rows in groups for n in rows], np.int64),
    )
    parts, whole = data.draw(st.integers(1, 6)), data.draw(st.booleans())
    shares = share_rows(sizes, parts, whole=whole)
    assert len(shares) == parts
    assert sorted(row for share in shares for row in share) == list(range(len(group_of)))
    if whole or len(groups) >= parts:
        assert all(
            len({i for i, share in enumerate(shares) if set(np.flatnonzero(group_of == g)) & set(share)}) == 1
            for g in range(len(groups))
        )
    else:
        assert sum(bool(share) for share in shares) == min(parts, len(group_of))


def test_what_ranks_cannot_do_is_refused(tmp_path):
    first, second = on_ranks(LAYOUTS["2"], tmp_path, refused)
    assert first == second
    assert first == [
        "backend.optimizer=adamw8bit cannot be used on 2 ranks: its blocks of 256 numbers do not end where shards do. "
        "Set it to adamw, whose moments are shared out among the ranks.",
        "offload.to=disk cannot be kept on 2 ranks, which put their shards in the memory of their hosts. Set it to "
        "memory.",
        "a layout of 2 replicas of 3 shards is for 6 ranks, and there are 2. Make replicas times shards equal to the "
        "number of ranks.",
        "backend torch trains in replicas and shards, and the layout has tensor=2 and context=1. Set both to 1.",
    ]


def test_some_of_the_world_may_train_alone(tmp_path):
    (none, one_hash), (alone, other_hash) = on_ranks(LAYOUTS["2"], tmp_path, outside)
    assert none is None and alone == (0, 1)
    assert one_hash == other_hash
