"""The operator's errors: one tree that answers "retry or not", below everstep.errors.

EverstepError
├── RetryableError
│   └── ClusterUnavailable      the API server did not answer, or not now; the outcome of a write is unknown: observe anew
│       └── ClusterThrottled    429: not before `retry_after_s`
├── TerminalError
│   └── ClusterRefused          the API server said no; the same request will be refused again until something changes
│       ├── NotFound            404
│       ├── AlreadyExists       409 on create
│       ├── Conflict            409 on a precondition: our view was old
│       ├── TestFailed          422 on a JSON patch whose `test` did not hold: our view was old
│       ├── Invalid             422 from validation, 400: our request is wrong, or the user's template
│       └── Forbidden           403: RBAC, quota, pod security, an admission policy
"""

from everstep.errors import RetryableError, TerminalError


class ClusterUnavailable(RetryableError):
    """No answer, 5xx, 401 (a login about to be renewed), or an answer that is not one. A write may have happened: observe
    before anything else."""

    retry_after_s: float = 0.0


class ClusterThrottled(ClusterUnavailable):
    """429: the server asks for a pause (priority and fairness, or an eviction that a budget refuses)."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ClusterRefused(TerminalError):
    """The API server's `Status` object said no. `reason` is its CamelCase word, `message` its sentence."""

    def __init__(self, message: str, *, status: int, reason: str) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason


class NotFound(ClusterRefused):
    """404: no such object (or its namespace, or its kind)."""


class AlreadyExists(ClusterRefused):
    """409 on create: the name is taken; whose it is must be read."""


class Conflict(ClusterRefused):
    """409: the uid or resourceVersion in our precondition is not the object's any more. Observe anew, then retry."""

    retryable = True


class TestFailed(ClusterRefused):
    """422: a `test` of our JSON patch did not hold, so nothing was changed. Observe anew, then retry."""

    __test__ = False  # pytest must not collect a class for its name
    retryable = True


class Invalid(ClusterRefused):
    """400 or 422 from validation: the message names the field."""


class Forbidden(ClusterRefused):
    """403. RBAC, a quota, pod security or an admission policy; the message says which."""


class JournalWordless(RetryableError):
    """The journal answered nothing that can be acted on now (unreachable, refusing, loading). Observe again with back-off."""
