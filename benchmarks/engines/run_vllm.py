"""vLLM for CPUs as a child of ``bench.py``, in its own environment: ``run_vllm.py MODEL_FOLDER SLOTS MAX_LEN DTYPE``.

Its engine core in this process, eager (as fast as compiled on a CPU, and up in seconds), its prefix cache on for the
completions of one prompt and emptied between batches. It tells log-probs, as Stretto's does.
"""

import os
import sys

from children import private_stdout, serve

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1")


def main() -> None:
    """Serve batches."""
    answers = private_stdout()
    from vllm import LLM, SamplingParams, TokensPrompt

    slots, max_len = int(sys.argv[2]), int(sys.argv[3])
    llm = LLM(
        sys.argv[1],
        skip_tokenizer_init=True,
        dtype=sys.argv[4],
        enforce_eager=True,
        max_model_len=max_len,
        max_num_seqs=slots,
        max_num_batched_tokens=max(2048, max_len),
        logprobs_mode="processed_logprobs",
        enable_prefix_caching=True,
        disable_log_stats=True,
        seed=0,
    )

    def generate(prompts: list[list[int]], n: int, new: int) -> tuple[int, int]:
        llm.reset_prefix_cache()
        params = SamplingParams(
            n=n, temperature=1.0, max_tokens=new, ignore_eos=True, detokenize=False, logprobs=0, flat_logprobs=True
        )
        outs = llm.generate([TokensPrompt(prompt_token_ids=p) for p in prompts], params, use_tqdm=False)
        return sum(len(one.token_ids) for out in outs for one in out.outputs), sum(map(len, prompts))

    serve(generate, answers)


if __name__ == "__main__":
    main()
