"""Training with torch in one process: ``backend.TorchBackend`` over the Llama family of transformers.

Import from the modules: ``hf_config`` loads neither torch nor transformers.
"""
