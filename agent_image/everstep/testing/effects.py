"""`Effects`: what the outside of an agent saw, counted by the fakes of a test."""

from collections import Counter
from collections.abc import Mapping

from everstep.run.durable import idempotency_key


class Effects(Counter[str]):
    """Counts effects by whatever names them in your world. Fakes call it where the real service would act:

    @everstep.step(effect="at_most_once")
    async def pay(who: str) -> None:
        effects.happened(f"paid {who}")         # each call counts

    @everstep.step(effect="idempotent")
    async def send(to: str) -> None:
        effects.once(f"mail to {to}")           # a repeat with the same idempotency key is recognised, as the service does
    """

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        super().__init__(counts or {})
        self._keys: set[str] = set()

    def happened(self, name: str) -> None:
        """The effect happened, whoever asked before."""
        self[name] += 1

    def once(self, name: str) -> bool:
        """Inside a step's body: the effect happens unless it has happened under this step's idempotency key; True if it did."""
        key = idempotency_key()
        if key in self._keys:
            return False
        self._keys.add(key)
        self[name] += 1
        return True

    def clear(self) -> None:
        """Nothing has happened yet."""
        super().clear()
        self._keys.clear()


__all__ = ["Effects"]
