"""Which step that waits for a person is meant, and what they decide; the same on a laptop and on a cluster."""

import json
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from everstep.cli import text
from everstep.errors import ConfigError
from everstep.journal.records import canonical

T = TypeVar("T")
Word = Literal["done", "again", "fail"]


def decision(done: str | None, again: bool, fail: bool) -> tuple[Word, object]:
    """The one decision of --done, --again and --fail, and its value. Raises ConfigError unless exactly one is given."""
    if (done is not None) + again + fail != 1:
        raise ConfigError(
            "say one of --done VALUE (it happened; VALUE is its result), --again (run it), --fail (give it up)"
        )
    if done is None:
        return ("again" if again else "fail"), None
    try:
        value = json.loads(done)
        canonical(value)
    except ValueError:
        value = done
    return "done", value


def pick(run: str, step: str, there: Sequence[T], key_of: Callable[[T], str], name_of: Callable[[T], str]) -> T:
    """The open question a person means by `12`, `#12` or a step's name. Raises ConfigError listing what is open: an answer is
    never given to a question by guessing."""
    key = step.removeprefix("#")
    found = [q for q in there if key_of(q) == key] or [q for q in there if name_of(q) == step]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{text.clean(name_of(q))} #{key_of(q)}" for q in there)
    if found:
        raise ConfigError(
            f"step {step!r} of run {run} waits for a person more than once; name one by its key: {listed}"
        )
    if there:
        raise ConfigError(f"step {step!r} of run {run} does not wait for a person; these do: {listed}")
    raise ConfigError(f"no step of run {run} waits for a person, so there is nothing to settle")
