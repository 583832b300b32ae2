"""What people are shown of arguments and inputs: fields that hold secrets read `***`.

Masked is what is shown to people, in the journal's park records, HumanRequests and listings. What replays is never masked:
the step gets its arguments whole, and their digest is of the whole.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from everstep.errors import BadStep

if TYPE_CHECKING:
    from everstep.journal.records import Json  # at run time it would bring every record's model into `import everstep`

HIDDEN: Final = "***"
NAMES: Final = frozenset(
    {
        "authorization", "cookie", "credential", "credentials", "passwd", "passphrase", "privatekey", "proxyauthorization",
        "pwd", "setcookie",
    }
)  # fmt: skip
"""Fields that are masked without being named, in any spelling: Set-Cookie, set_cookie, setCookie."""
ENDINGS: Final = ("password", "token", "secret", "apikey", "accesskey", "secretkey")
"""And every field whose name ends like this: api_key, clientSecret, X-Auth-Token. `max_tokens` does not."""


def check_mask(mask: Sequence[str] | None) -> tuple[str, ...]:
    """The `mask=` of a step. Raises BadStep."""
    if mask is None:
        return ()
    if isinstance(mask, str) or not all(isinstance(name, str) and name.strip(".") for name in mask):
        raise BadStep(f'mask must list names of fields or paths to them, like ("pin", "card.number"), not {mask!r}')
    return tuple(mask)


def masked(value: "Json", mask: Iterable[str] = ()) -> "Json":
    """A copy for people. `mask`: a name masks every field of that name, a path `card.number` that one field; through lists,
    a path goes on in each element. Names that commonly hold secrets are masked anyhow."""
    paths = [tuple(entry.split(".")) for entry in mask]
    return _masked(
        value, frozenset(_plain(path[0]) for path in paths if len(path) == 1), [p for p in paths if len(p) > 1]
    )


def _masked(value: "Json", names: frozenset[str], paths: list[tuple[str, ...]]) -> "Json":
    if isinstance(value, list):
        return [_masked(part, names, paths) for part in value]
    if not isinstance(value, dict):
        return value
    shown = {}
    for key, part in value.items():
        further = [path[1:] for path in paths if path[0] == key]
        hides = part is not None and (_is_secret(key, names) or () in further)
        shown[key] = HIDDEN if hides else _masked(part, names, further)
    return shown


def _is_secret(name: str, names: frozenset[str]) -> bool:
    plain = _plain(name)
    return plain in names or plain in NAMES or plain.endswith(ENDINGS)


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
