"""Plans: which Models sit on which devices, and what follows from that. Pure functions; no device is asked."""

from stretto.plan.activations import Computing, activation_bytes, microbatch_tokens
from stretto.plan.cluster import Cluster, Device, Host, Layout
from stretto.plan.models import ModelFacts
from stretto.plan.one_device import PARTS, DeviceFacts, ModelPlan, Plan, Usage, check_plan, make_plan
from stretto.plan.place import Placement, RoleGroup, Seat, place
from stretto.plan.process_groups import ProcessGroup, process_groups
from stretto.plan.render import render_plan
from stretto.plan.sizes import BYTES, show_bytes
from stretto.plan.split import Program, Transfer, make_programs, split

__all__ = [
    "BYTES",
    "PARTS",
    "Cluster",
    "Computing",
    "Device",
    "DeviceFacts",
    "Host",
    "Layout",
    "ModelFacts",
    "ModelPlan",
    "Placement",
    "Plan",
    "ProcessGroup",
    "Program",
    "RoleGroup",
    "Seat",
    "Transfer",
    "Usage",
    "activation_bytes",
    "check_plan",
    "make_plan",
    "make_programs",
    "microbatch_tokens",
    "place",
    "process_groups",
    "render_plan",
    "show_bytes",
    "split",
]
