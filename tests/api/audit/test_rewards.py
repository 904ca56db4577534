"""What scores say: laws over random data sets, without processes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.api.audit.answers import LABELS, Writer, make_answers
from stretto.api.audit.findings import FULL_MARK
from stretto.api.audit.rewards import reward_figures, reward_findings
from stretto.api.audit.scoring import Scored, Scores
from stretto.config.recipe import Recipe
from stretto.data.tokens import builtin_tokenizer
from stretto.environments.rewards.builtin import BUILTIN
from stretto.types import Prompt

TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12).filter(str.strip)
RECIPE = Recipe(steps=1)


def prompts_of(pairs: list[tuple[str, str]]) -> list[Prompt]:
    tokenizer = builtin_tokenizer()
    return [
        Prompt(uid=f"{i}", text=text, token_ids=tokenizer.encode_prompt(text), data={"answer": answer})
        for i, (text, answer) in enumerate(pairs)
    ]


def scores_of(prompts: list[Prompt], reward, max_tokens: int = 16) -> Scores:
    """As the judge would give them, in this process."""
    from stretto.api.audit.answers import group_of

    writer = Writer(tokenizer=builtin_tokenizer(), max_tokens=max_tokens)
    answers = make_answers(prompts, writer, 0)
    first = {}
    for i, answer in enumerate(answers):
        (trajectory,) = group_of([answer], i, writer).trajectories
        first[i] = Scored(rewards=(reward(answer.prompt, trajectory),), fault=None, seconds=0.0)
    return Scores(answers=answers, first=first, again=first, elsewhere=first, mixed=[], late=False, alone=None)


@given(pairs=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=12), max_tokens=st.integers(1, 20))
@settings(deadline=None, max_examples=150)
def test_exact_match_is_never_a_problem(pairs, max_tokens):
    scores = scores_of(prompts_of(pairs), BUILTIN["exact_match"](), max_tokens)
    assert [f for f in reward_findings(scores, RECIPE) if f.severity != "note"] == []
    rows = {row.kind: row for row in reward_figures("exact_match", scores, RECIPE, len(pairs)).rows}
    assert rows["gold"].full == rows["gold"].scored == len(pairs)
    assert all(row.full == 0 for kind, row in rows.items() if kind not in ("gold", "newline", "spaces", "sentence"))


@given(pairs=st.lists(st.tuples(TEXT, TEXT), min_size=2, max_size=12), value=st.floats(-2, 2))
@settings(deadline=None, max_examples=50)
def test_a_constant_reward_always_is_a_problem(pairs, value):
    scores = scores_of(prompts_of(pairs), lambda prompt, trajectory: value)
    found = {f.code: f.severity for f in reward_findings(scores, RECIPE)}
    assert found["reward.constant"] == "problem"
    if value < FULL_MARK:
        assert found["reward.gold"] == "problem"


@given(
    pairs=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8), seed=st.integers(0, 2**31), budget=st.integers(1, 9)
)
@settings(deadline=None, max_examples=100)
def test_made_answers(pairs, seed, budget):
    writer = Writer(tokenizer=builtin_tokenizer(), max_tokens=budget)
    prompts = prompts_of(pairs)
    answers, again = make_answers(prompts, writer, seed), make_answers(prompts, writer, seed)
    assert [(a.kind, a.text, a.place) for a in answers] == [(a.kind, a.text, a.place) for a in again]
    for answer in answers:
        gold = str(answer.prompt.data["answer"])
        assert answer.kind in LABELS
        if answer.kind == "gold":
            assert answer.text == gold
        elif answer.kind not in ("newline", "spaces", "sentence"):
            assert answer.text.strip().casefold() != gold.strip().casefold(), "a wrong answer is wrong"
        if answer.kind in ("words", "repeated", "echo"):
            assert len(writer.ids(answer.text)) + 1 <= max(budget, 2), "it fits the budget"
