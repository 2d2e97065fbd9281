"""Isolation backends by name.

A backend is one module here with one object that implements `Backend`, and its name in `model.Isolation`. The rest of
the runtime speaks to the agent over its control socket and knows no backend.
"""

from cove.model import Isolation
from cove.runtime.isolation.backend import Backend, Inside, Launch
from cove.runtime.isolation.bubblewrap import Bubblewrap
from cove.runtime.isolation.none import NoIsolation

__all__ = ["Backend", "Inside", "Launch", "backend_of"]

_BACKENDS: dict[Isolation, Backend] = {Isolation.BUBBLEWRAP: Bubblewrap(), Isolation.NONE: NoIsolation()}


def backend_of(isolation: Isolation) -> Backend:
    """Look up the backend that a spec names."""
    return _BACKENDS[isolation]
