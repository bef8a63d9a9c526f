"""Plans: what a deployment resolves to, decided by pure functions.

``check`` says what cannot be carried out, ``resolve`` makes a `Generation` of a deployment, ``bind`` completes one
replica with the facts of the machines it runs on, ``difference`` compares two generations, ``plan_lines`` and
``plan_document`` show one. Nothing here touches the world.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from standfast.plans.binding import bind
    from standfast.plans.checks import check
    from standfast.plans.diff import difference
    from standfast.plans.identity import generation_digest, is_intact
    from standfast.plans.render import plan_document, plan_lines
    from standfast.plans.resolver import resolution_inputs, resolve

_HOMES = {
    "bind": "binding",
    "check": "checks",
    "difference": "diff",
    "generation_digest": "identity",
    "is_intact": "identity",
    "plan_document": "render",
    "plan_lines": "render",
    "resolution_inputs": "resolver",
    "resolve": "resolver",
}

__all__ = [
    "bind",
    "check",
    "difference",
    "generation_digest",
    "is_intact",
    "plan_document",
    "plan_lines",
    "resolution_inputs",
    "resolve",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: many modules need only the records, which are quick to import.
    if name in _HOMES:
        return getattr(import_module(f"standfast.plans.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
