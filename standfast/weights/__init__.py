"""Weights: pinned so that they cannot change, fetched once into a shared cache with a manifest.

`pin` turns a source into a `standfast.plans.records.PinnedModel`, `fetch` brings its files to this machine, and
`WeightsStore` finds what was fetched.
"""

from standfast.weights.errors import WeightsError
from standfast.weights.fetching import fetch
from standfast.weights.pinning import pin
from standfast.weights.store import WeightsStore

__all__ = ["WeightsError", "WeightsStore", "fetch", "pin"]
