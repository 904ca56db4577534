"""Random lives of a run against a model that only keeps lists."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.store import (
    AttemptBody,
    EndBody,
    ErrorBody,
    EvalBody,
    Event,
    GroupBody,
    RecordedGroup,
    ResumedFrom,
    StepBody,
)
from stretto.store.history import History, effective_events, effective_groups

PHASES = ("warmup", "main")


@dataclass
class Saved:
    phase: int
    steps: int
    seq: int
    steps_kept: list
    evals_kept: dict
    groups_kept: dict


@dataclass
class Life:
    """A run that trains, evaluates, saves, dies and comes back; ``steps``, ``evals``, ``groups`` are its true past."""

    log: list[Event] = field(default_factory=list)
    rollouts: list[tuple] = field(default_factory=list)
    saves: list[Saved] = field(default_factory=list)
    attempt: int = 0
    phase: int = 0
    done: int = 0
    steps: list = field(default_factory=list)
    evals: dict = field(default_factory=dict)
    groups: dict = field(default_factory=dict)

    def record(self, body, step=None):
        phase = PHASES[self.phase] if step is not None else None
        event = Event(seq=len(self.log), time_s=0.0, attempt=self.attempt, body=body, phase=phase, step=step)
        self.log.append(event)
        return event

    def begin(self, saved):
        self.attempt += 1
        source = saved and ResumedFrom(phase=PHASES[saved.phase], steps_done=saved.steps, seq=saved.seq)
        self.phase, self.done = (saved.phase, saved.steps) if saved else (0, 0)
        self.steps = list(saved.steps_kept) if saved else []
        self.evals = dict(saved.evals_kept) if saved else {}
        self.groups = dict(saved.groups_kept) if saved else {}
        self.record(AttemptBody(attempt=self.attempt, pid=1, host="h", resumed_from=source))

    def step(self):
        draw = (self.phase, self.done)
        event = self.record(GroupBody(draw=self.done, uid="u", n=1), self.done)
        self.rollouts.append((draw, event.seq, self.attempt))
        self.groups[draw] = event.seq
        self.steps.append(self.record(StepBody(metrics={}), self.done).seq)
        self.done += 1

    def evaluate(self):
        made_here = {(e.phase, e.step) for e in self.log if e.kind == "eval" and e.attempt == self.attempt}
        if (PHASES[self.phase], self.done) in made_here:
            return
        event = self.record(EvalBody(name="held_out", accuracy=0.5, n=1), self.done)
        key = (self.phase, self.done)
        self.evals[key] = event.seq
        for saved in self.saves:  # an evaluation beside a checkpoint is not made again after a resume from it
            if (saved.phase, saved.steps) == key:
                saved.evals_kept[key] = event.seq

    def save(self):
        self.saves = [s for s in self.saves if (s.phase, s.steps) < (self.phase, self.done)]
        kept = (list(self.steps), dict(self.evals), dict(self.groups))
        self.saves.append(Saved(self.phase, self.done, len(self.log) - 1, *kept))

    def next_phase(self):
        if self.phase == 0:
            self.phase, self.done = 1, 0


actions = st.lists(
    st.sampled_from(["step", "step", "step", "evaluate", "save", "next_phase", "die", "die_old", "die_all"]),
    max_size=40,
)


def live(script) -> Life:
    life = Life()
    life.begin(None)
    for action in script:
        if action == "die":  # the newest checkpoint is taken
            life.begin(life.saves[-1] if life.saves else None)
        elif action == "die_old":  # the newest is damaged
            life.saves = life.saves[:-1]
            life.begin(life.saves[-1] if life.saves else None)
        elif action == "die_all":
            life.saves = []
            life.begin(None)
        else:
            getattr(life, action)()
    return life


@settings(max_examples=500, deadline=None)
@given(actions)
def test_what_counts_is_the_true_past(script):
    life = live(script)
    kept = effective_events(life.log)
    assert [e.seq for e in kept if e.kind == "step"] == sorted(life.steps)
    assert [e.seq for e in kept if e.kind == "group"] == sorted(life.groups.values())
    assert [e.seq for e in kept if e.kind == "eval"] == sorted(life.evals.values())
    assert [e for e in kept if e.kind == "attempt"] == [e for e in life.log if e.kind == "attempt"]
    places = [(e.phase, e.step) for e in kept if e.kind == "step"]
    assert places == sorted(set(places), key=lambda p: (PHASES.index(p[0]), p[1]))


@settings(max_examples=200, deadline=None)
@given(actions)
def test_finished_groups_that_count(make_group, script):
    life = live(script)
    for phase, name in enumerate(PHASES):
        recorded = [
            RecordedGroup(phase=name, attempt=attempt, seq=seq, step=draw, group=make_group(draw, 1))
            for (at, draw), seq, attempt in life.rollouts
            if at == phase
        ]
        kept = effective_groups(History.of(life.log), recorded)
        expected = {draw: seq for (at, draw), seq in life.groups.items() if at == phase}
        assert {r.group.draw: r.seq for r in kept} == expected
        assert [r.group.draw for r in kept] == sorted(expected)


def test_records_about_the_process_always_count():
    life = Life()
    life.begin(None)
    life.record(ErrorBody(type="E", message="m"))
    life.record(EndBody(status="failed", wall_s=1.0, cpu_s=1.0))
    life.begin(None)
    assert [e.kind for e in effective_events(life.log)] == ["attempt", "error", "end", "attempt"]
