"""Evaluations: what is counted, by which score; that sets do not see each other; what a set brings along."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from stretto.api import evaluate as evaluate_target
from stretto.api import resume, start
from stretto.api.progress import Progress
from stretto.cli.summary import describe_run, end_of_run
from stretto.config.load import recipe_from_mapping
from stretto.data.seeds import evaluation_seed
from stretto.data.sources import load_prompts
from stretto.data.tokens import builtin_tokenizer
from stretto.environments.judge import GroupDropped
from stretto.errors import ConfigError, DataError, ResumeError, RewardError
from stretto.plane.local import LocalPlane
from stretto.roles import Completion, Sampling
from stretto.runtime.build import Given, prepare
from stretto.runtime.eval_sets import EvalSet
from stretto.runtime.evaluation import evaluate
from stretto.runtime.fleet import Fleet
from stretto.runtime.graphs import main_graph
from stretto.runtime.roller import Roller
from stretto.runtime.unread import refuse_unread

TOKENIZER = builtin_tokenizer()
FAKE = {"steps": 1, "engine": {"type": "fake"}, "backend": {"type": "fake"}, "reward": {"workers": 0}}
FAKE |= {"prompts": {"max": 4}, "schedule": {"groups_per_step": 4}, "save": {"every": 1}}
SUMS = {"type": "builtin", "max": 3}


class Scripted:
    """An engine that writes given texts, by (prompt text, sample); it remembers seeds and how much ran at once."""

    def __init__(self, texts):
        self.texts, self.seeds, self.running, self.most = texts, {}, 0, 0

    async def generate(self, request):
        self.running += len(request.seeds)
        self.most = max(self.most, self.running)
        prompt = TOKENIZER.decode(request.token_ids)
        self.seeds[prompt] = request.seeds
        await asyncio.sleep(0)
        for index in range(len(request.seeds)):
            ids = TOKENIZER.encode(self.texts(prompt, index))
            zeros = ids.astype("float32") * 0
            yield Completion(index=index, token_ids_T=ids, logprobs_T=zeros, versions=(), finish="stop")
        self.running -= len(request.seeds)


class Judged:
    """Scores by a function of (prompt, text)."""

    def __init__(self, scores):
        self.scores = scores

    async def judge(self, group, occasion):
        rows = [self.scores(group.prompt, t.text) for t in group.trajectories]
        trajectories = tuple(
            t.judged(row, sum(v for v in row.values() if v is not None))
            for t, row in zip(group.trajectories, rows, strict=True)
        )
        return replace(group, trajectories=trajectories)


def exact(prompt, text):
    return {"exact": float(text.strip() == prompt.data["answer"])}


def parts_of(engine, judge, tried):
    roller = Roller(
        engine=engine,
        judges={"": judge},
        tokenizer=TOKENIZER,
        seed=7,
        deadline_s=9.0,
        plane=LocalPlane(),
        phases=[SimpleNamespace(name="main", sets=(tried,))],
    )
    return SimpleNamespace(rollers=Fleet([roller]))


def eval_set(name="sums", maximum=1, **settings):
    prompts = load_prompts(recipe_from_mapping({"steps": 1, "prompts": {"max": maximum}}).prompts, TOKENIZER)
    plain = {"sampling": Sampling(max_tokens=8), "prompts": prompts, "everything": prompts}
    return EvalSet(name=name, **{**plain, **settings})


def run(texts, scores=exact, **settings):
    engine = Scripted(texts)
    tried = eval_set(**settings)
    return asyncio.run(evaluate(parts_of(engine, Judged(scores), tried), tried)), engine


def test_what_several_attempts_give_by_hand():
    """0+0 right in attempts 1, 2, 3; 0+1 in attempt 0 only; 1+0 never; 1+1 always. Answers 0, 1, 1, 2."""
    script = {"0+0=": "9000", "0+1=": "1889", "1+0=": "7777", "1+1=": "2222"}
    result, _ = run(lambda prompt, sample: script[prompt][sample], n=4)
    m = {name.removeprefix("sums/"): value for name, value in result.metrics.items()}
    assert (result.n, result.attempts, result.dropped) == (4, 4, 0)
    assert m["accuracy"] == m["avg@4"] == m["pass@1"] == result.accuracy == 8 / 16
    assert m["pass@2"] == pytest.approx((1 + 0.5 + 0 + 1) / 4)  # 1 - C(1,2)/C(4,2), 1 - C(3,2)/C(4,2), 0, 1
    assert m["pass@4"] == 3 / 4
    assert m["maj@4"] == 2 / 4  # 0+0 and 1+1; in 0+1 the wrong 8 outvotes
    assert result.interval[0] < 0.5 < result.interval[1]
    assert "pass@3" not in m and m["reward"] == 0.5 and m["truncated"] == 0


def test_one_attempt_has_accuracy_and_wilsons_interval_only():
    result, _ = run(lambda prompt, sample: "1")
    assert set(result.metrics) == {
        f"sums/{m}" for m in ("accuracy", "accuracy/low", "accuracy/high", "reward", "truncated", "dropped")
    }
    assert result.accuracy == 0.5
    assert result.interval == pytest.approx((0.15004, 0.84996), abs=1e-5)


def test_votes_are_of_extracted_answers():
    import re

    texts = ["so 1+1=3, no: A: 2", "A: 2", "A: 5", "A: 5!"]

    def scores(prompt, text):
        return {"x": float("A: 2" in text)}

    plain, _ = run(lambda p, sample: texts[sample], scores, n=4)
    assert plain.metrics["sums/maj@4"] == 1.0  # four different texts: the first, which is right
    vote = re.compile(r"A: (\d)")
    first, _ = run(lambda p, sample: texts[sample], scores, n=4, vote=vote)
    assert first.metrics["sums/maj@4"] == 1.0  # a tie of 2 and 5: the first
    late, _ = run(lambda p, sample: [*texts[2:], "A: 5", "none"][sample], scores, n=4, vote=vote)
    assert late.metrics["sums/maj@4"] == 0.0
    none, _ = run(lambda p, sample: "A: 2", scores, n=4, vote=re.compile("B"))
    assert none.metrics["sums/maj@4"] == 0.0 and none.accuracy == 1.0


def test_a_named_score_decides():
    def scores(prompt, text):
        return {"exact": float(text == prompt.data["answer"]), "format": 1.0, "maybe": None}

    assert run(lambda p, s: "1", scores)[0].accuracy == 1.0  # with the total, format alone is a full mark
    shaped, _ = run(lambda p, s: "1", scores, score="exact")
    assert (shaped.accuracy, shaped.metrics["sums/reward"]) == (0.5, 1.5)
    assert run(lambda p, s: "1", scores, full_mark=2.0)[0].accuracy == 0.5
    with pytest.raises(RewardError, match=r"counts by the score 'exct' .* Did you mean 'exact'\?"):
        run(lambda p, s: "1", scores, score="exct")
    with pytest.raises(RewardError, match="has an attempt without a score 'maybe'"):
        run(lambda p, s: "1", scores, score="maybe")


def test_dropped_prompts_are_counted_and_all_dropped_is_an_error():
    class Dropping(Judged):
        async def judge(self, group, occasion):
            if group.prompt.uid in self.gone:
                raise GroupDropped("late")
            return await super().judge(group, occasion)

    judge = Dropping(exact)
    judge.gone = {"0+0"}
    tried = eval_set()
    parts = parts_of(Scripted(lambda p, s: "1"), judge, tried)
    result = asyncio.run(evaluate(parts, tried))
    assert (result.n, result.dropped, result.metrics["sums/dropped"]) == (3, 1, 1.0)
    judge.gone = {"0+0", "0+1", "1+0", "1+1"}
    with pytest.raises(RewardError, match="has no attempt with a reward"):
        asyncio.run(evaluate(parts, tried))


def test_seeds_are_of_set_prompt_and_sample_and_work_in_flight_is_bounded():
    _, one = run(lambda p, s: "1", n=3)
    _, fewer = run(lambda p, s: "1", n=2)
    _, other = run(lambda p, s: "1", n=3, name="others")
    for prompt, seeds in one.seeds.items():
        assert fewer.seeds[prompt] == seeds[:2]
    every = [seed for engine in (one, other) for seeds in engine.seeds.values() for seed in seeds]
    assert len(set(every)) == len(every) == 24  # pitfall 21
    assert evaluation_seed(0, "held_out") == 0xB5F53112467586D9  # forever
    _, many = run(lambda p, s: "1", maximum=39, n=4)
    assert len(many.seeds) == 1600 and many.most == 1024


# --- whole runs ----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def failing(prompt, trajectory):
    raise RuntimeError("broken")


def fake_run(name, **evaluate):
    return start(recipe_from_mapping({**FAKE, "name": name, "evaluate": evaluate}))


def test_adding_a_set_changes_no_other_number():
    settings = {"n": 4, "temperature": 1.0}
    one = fake_run("one", sets={"a": {"prompts": SUMS}}, **settings)
    two = fake_run("two", sets={"z": {"prompts": SUMS, "n": 2}, "a": {"prompts": SUMS}}, **settings)
    assert one.evaluated() == ("held_out", "a") and two.evaluated() == ("held_out", "z", "a")
    for name in ("held_out", "a"):
        assert [e.body for e in one.evaluations(name=name)] == [e.body for e in two.evaluations(name=name)]
    texts = [[example.completion for example in two.evaluations(name=name)[0].body.examples] for name in "za"]
    assert sorted(texts[0]) != sorted(texts[1])  # the same prompts under another name are other attempts


def test_a_set_has_its_own_reward_and_settings_and_is_what_stands_for_a_run_without_held_out(capsys):
    reward = {"use": f"{__name__}:failing", "workers": 0}
    wrong = fake_run("wrong", sets={"own": {"prompts": SUMS, "reward": reward}})
    assert {error.where.split()[1] for error in wrong.errors()} == {"own"} and wrong.evaluated() == ("held_out",)
    told = end_of_run(wrong)
    assert f"{len(wrong.errors())} evaluations failed, and training went on. The last: evaluation own after" in told
    assert "evaluation own after step 0: RewardError" in describe_run(wrong)
    shown = [line for event in wrong.all_events for line in Progress().see(event) if "training goes on" in line]
    assert len(shown) == len(wrong.errors())
    recipe = {**FAKE, "name": "mine", "prompts": {"max": 4, "held_out": 0}}
    recipe["evaluate"] = {"sets": {"own": {"prompts": SUMS, "limit": 5, "max_tokens": 2}}}
    view = start(recipe_from_mapping(recipe))
    assert [(e.body.name, e.body.n) for e in view.leading()] == [("own", 5), ("own", 5)]
    assert max(len(e.completion) for e in view.leading()[0].body.examples) <= 2
    results = evaluate_target("mine", ["evaluate.sets.own.limit=3", "evaluate.n=2", "evaluate.temperature=1"])
    assert results["own"].n == 3 and "own/pass@2" in results["own"].metrics
    from stretto.cli.main import main

    assert main(["eval", "mine", "--dir", "runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["own"]["n"] == 5
    assert main(["eval", "mine", "evaluate.sets.own.n=4", "evaluate.sets.own.temperature=0.5"]) == 0
    assert "on 5 prompts, 4 sampled attempts each, pass@2" in capsys.readouterr().out
    assert main(["eval", "mine", "evaluate.every=2"]) == 2


def test_a_resume_goes_on_with_the_same_sets_only(tmp_path):
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(6)]
    path = tmp_path / "more.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = {"more": {"prompts": {"type": "jsonl", "path": str(path)}}}
    view = fake_run("mine", sets=sets)
    assert resume(view.path, ["steps=2", "evaluate.sets.more.limit=2"]).evaluations(name="more")[-1].body.n == 2
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
    with pytest.raises(ResumeError, match="the prompts of evaluation set more are not those it was taken with"):
        resume(view.path, ["steps=3"])
    assert resume(view.path, ["steps=3", "evaluate.sets={}"]).evaluated() == ("held_out", "more")


def test_sets_are_checked_before_anything_starts(tmp_path):
    def prepared(tree):
        return prepare(recipe_from_mapping({**FAKE, "evaluate": {"sets": {"own": tree}}}), Given())

    with pytest.raises(DataError, match=r"evaluate\.sets\.own: .*nowhere\.jsonl"):
        prepared({"prompts": {"type": "jsonl", "path": str(tmp_path / "nowhere.jsonl")}})
    with pytest.raises(ConfigError, match=r"evaluate\.sets\.own\.reward: .*exct_match"):
        prepared({"prompts": SUMS, "reward": {"use": "exct_match"}})
    job = prepared({"prompts": {"max": 19, "type": "builtin"}, "max_tokens": 100, "limit": 3})
    assert job.longest in (5 + 100, 6 + 100, 7 + 100)
    given = recipe_from_mapping(
        {**FAKE, "evaluate": {"sets": {"own": {"prompts": {"type": "builtin", "held_out": 0.1}}}}}
    )
    with pytest.raises(
        ConfigError, match=r"evaluate\.sets\.own\.prompts\.held_out is set, and a set is evaluated whole"
    ):
        refuse_unread(given, [main_graph(given)])
    engine = {"type": "native", "max_len": 40}
    tree = {**FAKE, "engine": engine, "backend": {"type": "torch"}}
    tree["evaluate"] = {"sets": {"own": {"prompts": SUMS, "max_tokens": 99}}}
    with pytest.raises(DataError, match="than the longest prompt of evaluation set own with its max_tokens=99"):
        prepare(recipe_from_mapping(tree), Given())
