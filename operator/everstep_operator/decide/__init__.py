"""Deciding: what one run needs next, from what was observed and the time. Pure: the same input gives the same answer.

Belongs here: the attempt protocol, loss classes, budgets, parking, the whole status.
Must not be here: I/O, clocks, randomness, kopf, kubernetes, redis. May import the standard library, `everstep_operator.api`,
`everstep.contract`, `everstep.ids` and the data of `everstep.journal` (records, store, progress, inbox).
"""

from everstep_operator.decide.core import decide

__all__ = ["decide"]
