"""Hugging Face's ``generate`` as a child of ``bench.py``: ``run_hf.py MODEL_FOLDER SLOTS MAX_LEN DTYPE``.

Its dynamic cache, eager or fused attention as it chooses, no compilation. It draws tokens and tells no log-probs.
"""

import sys

import torch
import transformers
from children import private_stdout, serve
from transformers import AutoModelForCausalLM


def main() -> None:
    """Serve batches."""
    answers = private_stdout()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=getattr(torch, sys.argv[4])).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    @torch.inference_mode()
    def generate(prompts: list[list[int]], n: int, new: int) -> tuple[int, int]:
        ids = torch.tensor([prompt for prompt in prompts for _ in range(n)])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=new,
        )
        return (out.shape[1] - ids.shape[1]) * len(ids), ids.numel()

    serve(generate, answers)


if __name__ == "__main__":
    main()
