"""Plans: which Models sit on which devices, and what follows from that. Pure functions; no device is asked."""

from stretto.plan.activations import Computing, activation_bytes, microbatch_tokens
from stretto.plan.models import ModelFacts
from stretto.plan.one_device import PARTS, DeviceFacts, ModelPlan, Plan, Usage, check_plan, make_plan
from stretto.plan.render import render_plan
from stretto.plan.sizes import BYTES, show_bytes

__all__ = [
    "BYTES",
    "PARTS",
    "Computing",
    "DeviceFacts",
    "ModelFacts",
    "ModelPlan",
    "Plan",
    "Usage",
    "activation_bytes",
    "check_plan",
    "make_plan",
    "microbatch_tokens",
    "render_plan",
    "show_bytes",
]
