"""Plans: which Models sit on which devices, and what follows from that. Pure functions; no device is asked."""

from stretto.plan.models import ModelFacts
from stretto.plan.one_device import PARTS, DeviceFacts, ModelPlan, Plan, Usage, check_plan, make_plan, show_bytes
from stretto.plan.render import render_plan

__all__ = [
    "PARTS",
    "DeviceFacts",
    "ModelFacts",
    "ModelPlan",
    "Plan",
    "Usage",
    "check_plan",
    "make_plan",
    "render_plan",
    "show_bytes",
]
