"""verl's data and reward, as they are: a parquet file in its layout, and a ``compute_score``.

The answer is found in ``reward_model.ground_truth``; ``data_source`` and ``extra_info`` reach the reward. What a dict
holds beside ``score`` is recorded and not summed. Needs ``pip install 'stretto[data]'``.
"""

import pyarrow
import pyarrow.parquet

import stretto

# --- what verl's preprocessing writes ---------------------------------------------------------------------------------

rows = [
    {
        "data_source": "letters",
        "prompt": f"{letter * 2}",
        "ability": "spelling",
        "reward_model": {"style": "rule", "ground_truth": letter},
        "extra_info": {"index": index, "split": "train"},
    }
    for index, letter in enumerate("aeiou")
]
pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "train.parquet")


# --- what verl calls custom_reward_function ---------------------------------------------------------------------------


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "letters"
    return {"score": solution_str.count(ground_truth) / 8, "spaces": solution_str.count(" ")}


run = stretto.train(
    "grpo",
    prompts={"type": "parquet", "path": "train.parquet", "held_out": 0.0},  # data.train_files
    reward=compute_score,
    steps=40,  # trainer.total_training_steps
    sampling={"n": 8, "max_tokens": 8},  # rollout.n, data.max_response_length
    schedule={"groups_per_step": 5},  # data.train_batch_size
    backend={"lr": 1e-3, "threads": 1},  # actor.optim.lr
    name="verl-user",
)
print("mean reward, every fifth step:", " ".join(f"{v:.2f}" for _, v in run.history("reward/mean")[::5]))
print("spaces an answer, first and last:", [f"{run.history('logged/spaces')[i][1]:.1f}" for i in (0, -1)])
