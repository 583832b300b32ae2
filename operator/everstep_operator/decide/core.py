"""`decide`: the one entry of this package."""

from everstep.ids import EpochMs
from everstep_operator.decide.model import Decision, Observed, Rules


def decide(seen: Observed, *, rules: Rules, now_epoch_ms: EpochMs) -> Decision:
    """Say what to do next for one run: one turn (see `everstep_operator.decide.model`). Pure; raises nothing for any input
    an API server or a store can produce."""
    raise NotImplementedError("being written")
