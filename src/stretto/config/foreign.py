"""What the settings of TRL, transformers and verl are called here: for the answer to a key that no recipe has.

Owns the table alone. The pages on coming from TRL and verl explain the differences.
"""

from collections.abc import Mapping

__all__ = ["FOREIGN", "called_here"]

FOREIGN: Mapping[str, tuple[str, ...]] = {
    "adam_beta1": ("backend.betas",),
    "adam_beta2": ("backend.betas",),
    "adam_epsilon": ("backend.eps",),
    "adv_estimator": ("algorithm.type",),
    "batch_size": ("schedule.groups_per_step",),
    "beta": ("algorithm.kl_coef",),
    "bf16": ("backend.dtype", "engine.dtype"),
    "center_rewards_coefficient": ("algorithm.center_coef",),
    "clip_ratio": ("algorithm.clip_low", "algorithm.clip_high"),
    "clip_ratio_high": ("algorithm.clip_high",),
    "clip_ratio_low": ("algorithm.clip_low",),
    "cliprange_value": ("algorithm.value_clip",),
    "custom_reward_function": ("reward.use",),
    "entropy_coeff": ("algorithm.entropy_coef",),
    "epsilon": ("algorithm.clip_low",),
    "epsilon_high": ("algorithm.clip_high",),
    "eval_dataset": ("evaluate.sets", "prompts.held_out"),
    "eval_on_start": ("evaluate.at_start",),
    "eval_steps": ("evaluate.every",),
    "experiment_name": ("name",),
    "filter_groups": ("filter.zero_variance",),
    "generation_batch_size": ("schedule.groups_per_step",),
    "grad_clip": ("backend.max_grad_norm",),
    "gradient_accumulation_steps": ("backend.microbatch_tokens",),
    "gradient_checkpointing": ("backend.activation_checkpointing",),
    "kl_loss_coef": ("algorithm.kl_coef",),
    "kl_loss_type": ("algorithm.kl_kind",),
    "learning_rate": ("backend.lr",),
    "load_best_model_at_end": ("save.keep_best",),
    "lora_alpha": ("model.lora.alpha",),
    "lora_rank": ("model.lora.rank",),
    "loss_agg_mode": ("algorithm.aggregate",),
    "loss_type": ("algorithm.aggregate",),
    "lr_scheduler_type": ("backend.lr_decay",),
    "lr_warmup_steps": ("backend.lr_warmup",),
    "max_actor_ckpt_to_keep": ("save.keep_last",),
    "max_completion_length": ("sampling.max_tokens",),
    "max_new_tokens": ("sampling.max_tokens",),
    "max_num_gen_batches": ("schedule.max_refills",),
    "max_prompt_length": ("prompts.max_prompt_tokens",),
    "max_response_length": ("sampling.max_tokens",),
    "max_steps": ("steps",),
    "metric_for_best_model": ("save.keep_best",),
    "model_name_or_path": ("model.path",),
    "norm_adv_by_std_in_grpo": ("algorithm.scale",),
    "num_epochs": ("epochs",),
    "num_generations": ("sampling.n",),
    "num_generations_eval": ("evaluate.n",),
    "num_train_epochs": ("epochs",),
    "optim": ("backend.optimizer",),
    "output_dir": ("runs_dir", "name"),
    "peft_config": ("model.lora",),
    "per_device_train_batch_size": ("schedule.groups_per_step",),
    "ppo_micro_batch_size_per_gpu": ("backend.microbatch_tokens",),
    "ppo_mini_batch_size": ("schedule.groups_per_step",),
    "reward_fn": ("reward.use",),
    "reward_func": ("reward.use",),
    "reward_funcs": ("reward.use", "reward.parts"),
    "reward_weights": ("reward.parts.NAME.weight",),
    "rollout_batch_size": ("schedule.groups_per_step",),
    "save_freq": ("save.every",),
    "save_steps": ("save.every",),
    "save_total_limit": ("save.keep_last",),
    "scale_rewards": ("algorithm.scale",),
    "steps_per_generation": ("schedule.groups_per_step",),
    "stop_strings": ("sampling.stop",),
    "target_modules": ("model.lora.targets",),
    "teacher_model_name_or_path": ("teacher.path",),
    "test_freq": ("evaluate.every",),
    "total_epochs": ("epochs",),
    "total_training_steps": ("steps",),
    "train_batch_size": ("schedule.groups_per_step",),
    "train_dataset": ("prompts",),
    "train_files": ("prompts.path",),
    "val_before_train": ("evaluate.at_start",),
    "val_files": ("evaluate.sets",),
    "warmup_ratio": ("backend.lr_warmup",),
    "warmup_steps": ("backend.lr_warmup",),
}
"""The last part of a key elsewhere: our keys that do its work. Batch sizes there count completions or prompts; ours is
the prompts of a step."""


WHOLE: Mapping[str, tuple[str, ...]] = {"prompt": ("prompts",)}
"""Keys that mean it only by themselves, not inside a section."""


def called_here(key: str) -> str:
    """Our keys for a key of another library, in words, or nothing: ``steps``, ``reward.use or reward.parts``."""
    return " or ".join(WHOLE.get(key) or FOREIGN.get(key.rpartition(".")[2], ()))
