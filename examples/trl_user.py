"""A script for TRL's GRPOTrainer, brought over: the reward functions are the ones it had, unchanged.

TRL calls a reward with lists: ``completions``, ``prompts`` and every other column of the data set by its name. Such a
function is recognised by its parameters. Several of them, with weights, become the parts of the reward.
"""

import stretto

# --- from the old script ---------------------------------------------------------------------------------------------

dataset = [{"prompt": f"{letter * 2}", "letter": letter} for letter in "aeiou"]


def repeats_the_letter(completions, letter, **kwargs):
    return [text.count(wanted) / 8 for text, wanted in zip(completions, letter, strict=True)]


def no_spaces(prompts, completions, **kwargs):
    return [0.0 if " " in text else 1.0 for text in completions]


# --- what was GRPOConfig and GRPOTrainer ------------------------------------------------------------------------------

run = stretto.train(
    "grpo",
    prompts=dataset,
    reward={  # reward_funcs and reward_weights
        "parts": {
            "letter": {"use": repeats_the_letter, "weight": 1.0},
            "no_spaces": {"use": no_spaces, "weight": 0.1},
        }
    },
    steps=40,  # max_steps
    sampling={"n": 8, "max_tokens": 8},  # num_generations, max_completion_length
    schedule={"groups_per_step": 5},  # prompts of a step
    backend={"lr": 1e-3, "threads": 1},  # learning_rate
    algorithm={"type": "grpo", "kl_coef": 0.0},  # beta
    name="trl-user",
)
print("mean reward, every fifth step:", " ".join(f"{v:.2f}" for _, v in run.history("reward/mean")[::5]))
print("the policy, an ordinary Hugging Face folder:", run.path / "model")
