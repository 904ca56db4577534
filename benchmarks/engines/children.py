"""What the three engines' processes share: one line of JSON in, one out, until the input ends.

    {"prompts": [[ids]], "n": 8, "new": 32}  ->  {"cpu_s": 1.2, "tokens": 512, "prefilled": 90}

Only what the standard library has: each engine's process runs in an environment of its own.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Generate = Callable[[list[list[int]], int, int], tuple[int, int]]
"""Prompts, completions of each, new tokens of each -> tokens written, prompt tokens computed."""


def private_stdout() -> Any:
    """The standard output for answers alone; whatever else the process prints goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def serve(generate: Generate, answers: Any) -> None:
    """Answer every line with the CPU seconds that its batch took, all threads of the process together."""
    answers.write("ready\n")
    for line in sys.stdin:
        job = json.loads(line)
        begin = time.process_time()
        tokens, prefilled = generate(job["prompts"], job["n"], job["new"])
        cpu_s = time.process_time() - begin
        answers.write(json.dumps({"cpu_s": cpu_s, "tokens": tokens, "prefilled": prefilled}) + "\n")
