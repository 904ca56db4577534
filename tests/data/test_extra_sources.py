"""Sources that need an extra: parquet, folders of ``datasets``, reasoning-gym."""

import random
import sys
from pathlib import Path

import pytest

from stretto.config.prompts import DatasetsPrompts, GymPrompts, ParquetPrompts, PythonPrompts
from stretto.data.sources import load_prompts, read_prompts
from stretto.data.sources.columns import Columns
from stretto.data.sources.gym import allot
from stretto.data.sources.parquet import read_parquet
from stretto.data.sources.rows import Taken
from stretto.data.tokens import builtin_tokenizer
from stretto.errors import ConfigError, DataError
from stretto.types import Prompt

TOKENIZER = builtin_tokenizer()


def write_parquet(path: Path, rows: list[dict[str, object]], **settings: int) -> str:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, **settings)
    return str(path)


def questions(num: int) -> list[dict[str, object]]:
    return [{"q": f"{i}+1=", "n": {"a": str(i + 1)}, "blob": b"\x00"} for i in range(num)]


def parquet(path: str | list[str], **keys: object) -> list[Prompt]:
    return load_prompts(ParquetPrompts(path=path, **keys), TOKENIZER)  # type: ignore[arg-type]


def test_parquet_rows_slices_and_row_groups(tmp_path: Path):
    path = write_parquet(tmp_path / "a.parquet", questions(25), row_group_size=4)
    keys = {"prompt": "q", "answer": "n.a", "data": {}}
    prompts = parquet(path, **keys)
    assert [p.uid for p in prompts] == [str(i) for i in range(25)]
    assert (prompts[7].text, prompts[7].data) == ("7+1=", {"answer": "8"})
    assert [p.uid for p in parquet(path, slice="3:24:5", **keys)] == ["3", "8", "13", "18", "23"]
    other = write_parquet(tmp_path / "b.parquet", questions(3))
    assert [p.uid for p in parquet([path, other], slice="-4:", **keys)] == [
        "a.parquet:24",
        *(f"b.parquet:{i}" for i in range(3)),
    ]


def test_parquet_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # pitfall 35
    path = write_parquet(tmp_path / "a.parquet", questions(2))
    with pytest.raises(DataError, match=r"a.parquet, row 0: the value of 'blob' is a bytes.*prompts.data names"):
        parquet(path, prompt="q", answer=None)
    with pytest.raises(DataError, match=r"row 0: the key 'p' \(prompts.prompt\) is missing"):
        parquet(path, prompt="p", answer=None, data={})
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="is no parquet file"):
        parquet(str(tmp_path / "broken.parquet"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"prompts.type=parquet needs the package pyarrow.*stretto\[data\]"):
        parquet(path)


def test_verl_parquet(tmp_path: Path):
    rows: list[dict[str, object]] = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"{i}+1?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(i + 1)},
            "extra_info": {"split": "train", "index": i, "answer": "long"},
        }
        for i in range(3)
    ]
    config = ParquetPrompts(path=write_parquet(tmp_path / "train.parquet", rows))
    drafts = [Columns(config=config).draft(row) for row in read_parquet(config, Taken(None))]
    assert [d.data["answer"] for d in drafts] == ["1", "2", "3"]
    assert drafts[2].data["extra_info"] == {"split": "train", "index": 2, "answer": "long"}
    assert drafts[2].data["data_source"] == "openai/gsm8k"
    assert [m.content for d in drafts for m in d.content if not isinstance(m, str)] == ["0+1?", "1+1?", "2+1?"]


def test_datasets_folders_and_objects(tmp_path: Path):
    import datasets

    rows = [{"question": f"{i}+1=", "answer": str(i + 1)} for i in range(6)]
    whole = datasets.Dataset.from_list(rows)
    whole.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": whole, "test": whole.select([0])}).save_to_disk(str(tmp_path / "many"))

    def load(folder: str, **keys: object) -> list[Prompt]:
        config = DatasetsPrompts(path=str(tmp_path / folder), template="{question}", **keys)  # type: ignore[arg-type]
        return load_prompts(config, TOKENIZER)

    assert [p.uid for p in load("one", slice="4:")] == ["4", "5"]
    assert [p.data["answer"] for p in load("many", split="test")] == ["1"]
    for keys, message in (
        ({}, "has the splits train, test. Set prompts.split"),
        ({"split": "tset"}, "prompts.split=tset: .*no such split. Did you mean 'test'"),
    ):
        with pytest.raises(DataError, match=message):
            load("many", **keys)
    with pytest.raises(DataError, match=r"has no splits. Leave prompts.split out"):
        load("one", split="train")
    with pytest.raises(DataError, match=r"does not exist .*save_to_disk"):
        load("none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="cannot be read as a data set"):
        load("empty")
    given = load_prompts(PythonPrompts(prompt="question", answer="answer", slice="::3"), TOKENIZER, whole.shuffle(1))
    assert [p.uid for p in given] == ["0", "3"]
    with pytest.raises(DataError, match=r'is a DatasetDict.*prompts\["train"\]'):
        load_prompts(PythonPrompts(), TOKENIZER, datasets.DatasetDict({"train": whole}))


def gym(**keys: object) -> list[Prompt]:
    return load_prompts(GymPrompts(**keys), TOKENIZER)  # type: ignore[arg-type]


def test_reasoning_gym_is_the_same_every_time():
    mixture = {"chain_sum": {"weight": 2, "with": {"min_terms": 2, "max_terms": 2}}, "list_functions": {}}
    before = random.getstate()
    first = gym(tasks=mixture, size=6)
    assert random.getstate() == before
    random.seed(5)
    assert [(p.uid, p.text) for p in first] == [(p.uid, p.text) for p in gym(tasks=mixture, size=6)]
    assert sorted(p.uid for p in first) == [
        *(f"chain_sum-{i}" for i in range(4)),
        "list_functions-0",
        "list_functions-1",
    ]
    one = first[0]
    assert (one.data["task"], one.data["source"]) == ("chain_sum", "reasoning_gym")
    entry = one.data["entry"]
    assert isinstance(entry, dict)
    assert entry["answer"] == one.data["answer"]
    assert entry["metadata"]["num_terms"] == 2  # type: ignore[index, call-overload]
    assert [p.uid for p in gym(task="chain_sum", size=6, slice="2:4")] == ["chain_sum-2", "chain_sum-3"]
    assert gym(task="chain_sum", size=1)[0].text != gym(task="chain_sum", size=1, seed=1)[0].text


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"task": "chain_sun"}, "has no task 'chain_sun'. Did you mean 'chain_sum'"),
        (
            {"tasks": {"chain_sum": {"with": {"min_term": 2}}}},
            "with.min_term=2 is no setting.*Did you mean 'min_terms'",
        ),
        ({"tasks": {"chain_sum": {"with": {"min_terms": 0}}}}, "cannot be used .*min_terms must be positive"),
        ({"task": "graph_color"}, "the key 0 is a int.*the task graph_color. Take another task"),
        ({"task": "rearc"}, "task rearc do not survive JSON"),
    ],
)
def test_tasks_that_cannot_be_used(keys: dict[str, object], message: str):  # pitfall 35
    with pytest.raises(DataError, match=message):
        gym(size=1, **keys)


def test_tasks_without_answers_say_so():
    intake = read_prompts(GymPrompts(task="propositional_logic", size=2, max_prompt_tokens=4000), _any_text())
    assert [p.data["answer"] for p in intake.prompts] == [None, None]
    assert "task propositional_logic gives problems without an answer" in intake.notes[0]


def test_a_mixture_keeps_its_shares():
    rows = allot([3.0, 1.0], 8)
    assert [task for task, _ in rows].count(0) == 6
    assert rows[:4] == allot([3.0, 1.0], 4)
    assert [index for task, index in rows if task == 1] == [0, 1]


def _any_text():
    from dataclasses import dataclass

    from stretto.data.tokens import Tokenizer
    from stretto.types import Ints, Message

    @dataclass(frozen=True, slots=True, kw_only=True, eq=False)
    class AsciiOnly(Tokenizer):
        """The built-in tokenizer with other characters as question marks: problems hold signs of logic."""

        def encode_prompt(self, prompt: "str | tuple[Message, ...]") -> Ints:  # type: ignore[override]
            assert isinstance(prompt, str)
            return TOKENIZER.encode_prompt(prompt.encode("ascii", "replace").decode())

    return AsciiOnly(**{name: getattr(TOKENIZER, name) for name in TOKENIZER.__dataclass_fields__})
