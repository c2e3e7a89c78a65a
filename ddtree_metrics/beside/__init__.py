"""What else the journal says at a time: signals of the kernel and of other services, and services that say more than usual.

It stands beside what happened to the server; that it is because of it, no line says.
"""

from __future__ import annotations

from ddtree_metrics.beside.surroundings import Around, Burst, SignalSeen, around_server, as_frame, said_of

__all__ = ["Around", "Burst", "SignalSeen", "around_server", "as_frame", "said_of"]
