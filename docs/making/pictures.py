"""The pictures of the pages about concepts. Each is a function that draws one sheet."""

from drawing import BLUE, GREEN, GREY, ORANGE, RED, Sheet

ENGINE, LEARNER, WINDOW = BLUE, GREEN, ORANGE


def concept_pictures() -> dict[str, str]:
    """Every picture by its file's name."""
    sheets = {
        "start": start(),
        "run": run(),
        "threads": threads(),
        "trajectory": trajectory(),
        "turns": turns(),
        "staleness-0": staleness_0(),
        "staleness-1": staleness_1(),
        "in-flight": in_flight(),
        "resume": resume(),
        "rewards": rewards(),
    }
    return {f"{name}.svg": sheet.svg() for name, sheet in sheets.items()}


def start() -> Sheet:
    """From a recipe to a run."""
    sheet = Sheet(860, 392, "From a recipe to a run: checked, resolved, opened, driven, recorded")
    rows = [
        ("recipe|YAML, Python", "what you say", "config/", GREY),
        ("graphs, prompts, reward|resolved", "nothing has started", "graph/ workflows/ data/", GREY),
        ("parts|opened", "reward processes, learner, engine", "environments/ backends/ engines/", ENGINE),
        ("driver|the loop", "admit, roll out, train, publish", "runtime/", LEARNER),
        ("runs/NAME|the record", "all that is shown or resumed", "store/", WINDOW),
    ]
    checks = [
        "every key is checked",
        "every edge is checked; stretto check stops here",
        "closed in reverse on every way out",
    ]
    for place, (name, what, where, fill) in enumerate(rows):
        y = 20 + 74 * place
        sheet.box(20, y, (220, 52), name, fill)
        sheet.text(270, y + 31, what)
        sheet.text(560, y + 31, where, "mono")
        if place:
            sheet.arrow((130, y - 22), (130, y))
        if 0 < place <= len(checks):
            sheet.text(144, y - 6, checks[place - 1], "soft")
    return sheet


def run() -> Sheet:
    """The driver's loop."""
    sheet = Sheet(860, 250, "The loop of a run: admit, roll out and judge, pool, take, train, window, and again")
    sheet.box(20, 90, (110, 56), "admit|a wave of draws")
    sheet.box(165, 90, (150, 56), "roll out, judge|a task for each draw", ENGINE)
    sheet.box(350, 90, (120, 56), "pool|groups, in order", GREY)
    sheet.box(505, 90, (120, 56), "train|one step", LEARNER)
    sheet.box(660, 66, (180, 104), "window|nothing is sampled:|publish the weights,|evaluate, save if due", WINDOW)
    for left, right in ((130, 165), (315, 350), (470, 505), (625, 660)):
        sheet.arrow((left, 118), (right, 118))
    sheet.text(487, 84, "take", "soft", "middle")
    sheet.arrow((750, 170), (750, 212), (75, 212), (75, 146))
    sheet.text(412, 205, "the next step, with new weights", "soft", "middle")
    sheet.text(20, 34, "One loop for every workflow and schedule", "title")
    return sheet


def threads() -> Sheet:
    """Who runs where."""
    sheet = Sheet(860, 330, "The threads of a run's process, and the processes of user code beside it")
    sheet.text(36, 36, "the process of the run", "soft")
    sheet.box(20, 48, (540, 232), "", "#ffffff")
    sheet.box(40, 66, (150, 52), "main thread|takes signals", GREY)
    sheet.box(40, 140, (150, 120), "driver thread|the loop, the pool,|per-group nodes", WINDOW)
    sheet.box(350, 66, (190, 82), "engine thread|decodes tokens,|holds its own weights", ENGINE)
    sheet.box(350, 178, (190, 82), "learner thread|per-step nodes,|gradients, optimizer", LEARNER)
    sheet.arrow((190, 165), (350, 110), both=True)
    sheet.text(212, 116, "requests, tokens", "soft")
    sheet.arrow((190, 232), (350, 222), both=True)
    sheet.text(232, 248, "batches", "soft")
    sheet.arrow((445, 178), (445, 148))
    sheet.text(455, 168, "weights", "soft")
    sheet.box(635, 66, (205, 82), "reward processes|your code, with a|deadline", RED)
    sheet.box(635, 178, (205, 82), "environment processes|your code, with a|deadline", RED)
    sheet.arrow((115, 260), (115, 304), (600, 304), (600, 219), (635, 219), both=True)
    sheet.arrow((600, 219), (600, 107), (635, 107))
    sheet.text(350, 298, "attempts there, rewards and replies back", "soft", "middle")
    return sheet


def trajectory() -> Sheet:
    """One row: prompt and completion."""
    sheet = Sheet(860, 330, "A trajectory as one row of tokens: what was read has mask 0, what the policy wrote mask 1")
    sheet.text(20, 34, "One attempt is one row", "title")
    tokens = ["1", "7", "+", "5", "=", "2", "2", "eos"]
    mask = [0, 0, 0, 0, 0, 1, 1, 1]
    logprobs = ["0", "0", "0", "0", "0", "-0.31", "-0.12", "-0.02"]
    rows = [("token_ids_T", tokens), ("mask_T", [str(m) for m in mask]), ("logprobs_T", logprobs)]
    for line, (name, values) in enumerate(rows):
        y = 86 + 46 * line
        sheet.text(20, y + 21, name, "mono")
        for place, value in enumerate(values):
            sheet.bar(150 + 72 * place, y, (68, 32), value, ENGINE if mask[place] else GREY)
    sheet.text(328, 72, "read: the prompt", "soft", "middle")
    sheet.text(616, 72, "written by the policy", "soft", "middle")
    sheet.text(20, 245, "versions", "mono")
    sheet.bar(510, 224, (212, 32), "Span(version=3, length=3)", WINDOW)
    sheet.text(20, 291, "reward", "mono")
    sheet.bar(510, 270, (212, 32), "1.0, for the whole row", LEARNER)
    sheet.text(150, 245, "which weights wrote the written tokens", "soft")
    sheet.text(150, 291, "an advantage counts where the mask is 1", "soft")
    return sheet


def turns() -> Sheet:
    """One row over several turns."""
    sheet = Sheet(860, 190, "A row of several turns: the policy's turns have mask 1, the replies mask 0")
    sheet.text(20, 34, "Several turns are one row too", "title")
    parts = [
        ("prompt", 120, GREY, "0"),
        ("written", 150, ENGINE, "1"),
        ("reply", 110, RED, "0"),
        ("written", 130, ENGINE, "1"),
        ("reply", 90, RED, "0"),
        ("written", 130, ENGINE, "1"),
    ]
    x = 80.0
    sheet.text(20, 92, "tokens", "soft")
    sheet.text(20, 138, "mask", "soft")
    for name, width, fill, mask in parts:
        sheet.bar(x, 70, (width, 34), name, fill)
        sheet.text(x + width / 2, 138, mask, "mono", "middle")
        x += width
    sheet.text(80, 168, "What the environment says is read like a prompt: it is no part of any loss.", "soft")
    return sheet


def staleness_0() -> Sheet:
    """Engine and learner take turns."""
    sheet = Sheet(860, 230, "max_staleness 0: engine and learner take turns")
    sheet.text(20, 34, "max_staleness: 0", "title")
    _lanes(sheet)
    for step in range(3):
        x = 110 + 240 * step
        sheet.bar(x, 66, (118, 36), f"wave {step}, by v{step}", ENGINE)
        sheet.bar(x + 121, 120, (98, 36), f"step {step}", LEARNER)
        _window(sheet, x + 222, f"v{step + 1}")
    return sheet


def staleness_1() -> Sheet:
    """The next wave is sampled while a step trains."""
    sheet = Sheet(860, 230, "max_staleness 1: the next wave is sampled while a step trains")
    sheet.text(20, 34, "max_staleness: 1", "title")
    _lanes(sheet)
    sheet.bar(110, 66, (118, 36), "wave 0, by v0", ENGINE)
    starts = [231.0, 396.0, 541.0, 686.0]
    ends = [374.0, 519.0, 664.0]
    for step, (start, end) in enumerate(zip(starts, ends, strict=False)):
        sheet.bar(start, 66, (118, 36), f"wave {step + 1}, by v{step}", ENGINE)
        sheet.bar(start, 120, (98 if step else 140, 36), f"step {step}", LEARNER)
        _window(sheet, end, f"v{step + 1}")
    sheet.bar(688, 66, (118, 36), "wave 4, by v3", ENGINE)
    sheet.bar(688, 120, (98, 36), "step 3", LEARNER)
    return sheet


def in_flight() -> Sheet:
    """Sequences that go on while weights change."""
    sheet = Sheet(860, 300, "In flight: sequences go on by new weights while the learner trains what is done")
    sheet.text(20, 34, "max_staleness: 2, in_flight: keep", "title")
    rows = [
        [(110, 260, "w0"), (263, 420, "w1"), (443, 600, "w3"), (603, 730, "w4")],
        [(110, 320, "w0"), (323, 480, "w2"), (483, 640, "w3"), (683, 800, "w5")],
        [(110, 240, "w1"), (243, 560, "w2"), (563, 700, "w4"), (703, 810, "w5")],
    ]
    for lane, row in enumerate(rows):
        for start, end, name in row:
            sheet.bar(start, 60 + 34 * lane, (end - start, 30), name, ENGINE)
    sheet.text(20, 110, "engine", "strong")
    sheet.text(20, 201, "learner", "strong")
    for step, (start, end) in enumerate([(323, 440), (443, 560), (563, 680), (683, 800)]):
        sheet.bar(start, 178, (end - start - 3, 36), f"step {step}", LEARNER)
        sheet.line((end, 54), (end, 222))
        sheet.text(end, 238, f"v{step + 1}", "soft", "middle")
    sheet.text(20, 276, "time", "soft")
    sheet.arrow((60, 272), (840, 272))
    sheet.text(110, 256, "A line: all are paused, the weights change, all go on. w1 is of wave 1.", "soft")
    return sheet


def resume() -> Sheet:
    """A kill, and what the resume makes again."""
    sheet = Sheet(860, 250, "A run that is killed goes on from its newest whole checkpoint and makes the rest again")
    sheet.text(20, 34, "Killed at any instant, resumed to the same bits", "title")
    sheet.text(20, 92, "attempt 1", "soft")
    sheet.text(20, 182, "attempt 2", "soft")
    for step in range(8):
        sheet.bar(100 + 86 * step, 70, (82, 34), f"step {step}", LEARNER if step < 4 else GREY)
    for step in range(4, 8):
        sheet.bar(100 + 86 * step, 160, (82, 34), f"step {step}", LEARNER)
    sheet.line((442, 52), (442, 208))
    sheet.text(436, 62, "checkpoint step-4", "soft", "end")
    sheet.text(792, 92, "killed", "strong")
    sheet.arrow((785, 104), (785, 132), (452, 132), (452, 158))
    sheet.text(612, 127, "stretto resume", "soft", "middle")
    sheet.text(100, 232, "Grey: superseded in the record by its second making, which gives the same numbers.", "soft")
    return sheet


def rewards() -> Sheet:
    """How a group is judged in a process of its own."""
    sheet = Sheet(
        860, 270, "A group travels to a reward process and its rewards travel back, or a deadline ends the wait"
    )
    sheet.box(20, 96, (170, 74), "score|a node of the run's|workflow", WINDOW)
    sheet.box(345, 30, (170, 60), "reward process 1|judging a group", RED)
    sheet.box(345, 176, (170, 60), "reward process 2|idle", GREY)
    sheet.arrow((190, 118), (345, 66))
    sheet.text(180, 76, "prompt, attempts", "soft")
    sheet.arrow((345, 82), (190, 142), dashed=True)
    sheet.text(262, 142, "rewards by name", "soft")
    sheet.arrow((190, 160), (345, 204), both=True)
    sheet.text(200, 206, "the next group", "soft")
    sheet.box(610, 30, (230, 60), "in time|finite numbers: the group goes on", LEARNER)
    sheet.box(610, 103, (230, 60), "raised, NaN|on_error: fail, retry or drop", RED)
    sheet.box(610, 176, (230, 60), "late, or its process died|killed, begun anew; then on_error", RED)
    for y in (60, 133, 206):
        sheet.arrow((515, 60), (560, 60), (560, y), (610, y))
    return sheet


def _lanes(sheet: Sheet) -> None:
    sheet.text(20, 89, "engine", "strong")
    sheet.text(20, 143, "learner", "strong")
    sheet.text(20, 198, "time", "soft")
    sheet.arrow((60, 194), (840, 194))


def _window(sheet: Sheet, x: float, version: str) -> None:
    sheet.bar(x, 58, (18, 106), "", WINDOW)
    sheet.text(x + 9, 182, f"publish {version}", "soft", "middle")
