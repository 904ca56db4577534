"""Workflows as graphs: declare nodes, trace or load a workflow, check it, draw it, run its two parts.

Pure: no device, no torch. What the nodes do, and what their roles are bound to, is known above.
"""

from stretto.graph.building import check_models
from stretto.graph.forms import dump_graph, dump_yaml, load_graph
from stretto.graph.layout import draw_json
from stretto.graph.nodes import Node, Param, node
from stretto.graph.running import InvokeGroup, InvokeStep, run_group, run_step
from stretto.graph.specs import (
    PROMPT,
    Graph,
    NodeSpec,
    Role,
    World,
    boundary_inputs,
    models_of,
    parents,
    python_only,
)
from stretto.graph.svg import draw_svg
from stretto.graph.text import draw_text
from stretto.graph.tracing import Edge, Workflow, load_workflow, trace, workflow

__all__ = [
    "PROMPT",
    "Edge",
    "Graph",
    "InvokeGroup",
    "InvokeStep",
    "Node",
    "NodeSpec",
    "Param",
    "Role",
    "Workflow",
    "World",
    "boundary_inputs",
    "check_models",
    "draw_json",
    "draw_svg",
    "draw_text",
    "dump_graph",
    "dump_yaml",
    "load_graph",
    "load_workflow",
    "models_of",
    "node",
    "parents",
    "python_only",
    "run_group",
    "run_step",
    "trace",
    "workflow",
]
