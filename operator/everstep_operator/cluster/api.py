"""One request to the API server: kubernetes.aio carries it, our errors tell how it went, a token bucket paces the writes.

kubernetes.aio brings login, token refresh and TLS. Its typed models are not used: they would drop fields of newer servers and
cost more than the request. Its own retries stay off: a write whose answer got lost must be observed, not repeated blindly.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config

from everstep.errors import ConfigError
from everstep_operator.errors import (
    AlreadyExists,
    ClusterRefused,
    ClusterThrottled,
    ClusterUnavailable,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TestFailed,
)

Json: TypeAlias = dict[str, Any]  # Any: objects of the API server, read by path and checked where they are used

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

log = logging.getLogger(__name__)


async def load_client(timeout_s: float) -> client.ApiClient:
    """A client logged in as the pod's service account, or through the kubeconfig ($KUBECONFIG). Raises ConfigError."""
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        try:
            await config.load_kube_config(client_configuration=configuration)
        except (config.ConfigException, OSError) as e:
            raise ConfigError(f"cannot log in to Kubernetes, neither as a pod nor by kubeconfig: {e}") from e
    configuration.retries = None
    return client.ApiClient(configuration)


_GO_ESCAPES: Final = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def wire_json(body: object) -> bytes:
    """A request's body as the API server itself would write it: characters as they are, and `<`, `>`, `&` escaped.

    A JSON patch's `test` of a string compares its *bytes* with those the server stores (evanphx/json-patch). Python's
    `\\u2026` for "…" would be refused for ever: the status of a run with such a message could never be written again."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_GO_ESCAPES).encode()


class TokenBucket:
    """Paces writes: `burst` at once, then `per_second`. `pause` holds all of them, when the server asks for it."""

    def __init__(self, per_second: float, burst: int, monotonic_s: Callable[[], float]) -> None:
        self._rate, self._burst, self._now = per_second, float(burst), monotonic_s
        self._tokens, self._at = float(burst), monotonic_s()
        self._paused_until = 0.0

    def pause(self, seconds: float) -> None:
        """No write for that long (Retry-After)."""
        self._paused_until = max(self._paused_until, self._now() + seconds)

    def reserve(self) -> float:
        """Take one token, and say how many seconds to wait before using it."""
        now = self._now()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        return max(0.0, -self._tokens / self._rate, self._paused_until - now)


class KubeApi:
    """Requests with JSON in and out. Counts them by verb and outcome through `on_request(verb, resource, outcome)`."""

    def __init__(
        self,
        api_client: client.ApiClient,
        bucket: TokenBucket,
        *,
        timeout_s: float,
        on_request: Callable[[str, str, str], None] = lambda verb, resource, outcome: None,
    ) -> None:
        self._client, self._bucket, self._on_request = api_client, bucket, on_request
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def read(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = "application/json"
    ) -> Json:
        """GET. Without a resourceVersion in the query the server answers from a quorum, never from a stale cache."""
        return await self._request("GET", path, query or {}, accept=accept)

    async def write(
        self,
        method: str,
        path: str,
        body: object,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """POST, PATCH, PUT or DELETE, after waiting for its turn."""
        delay = self._bucket.reserve()
        if delay > 0:
            await asyncio.sleep(delay)
        return await self._request(method, path, query or {}, body=body, content_type=content_type)

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: object = None,
        content_type: str | None = None,
        accept: str = "application/json",
    ) -> Json:
        resource = _resource_of(path)
        headers: dict[str, str] = {"Accept": accept}
        if content_type:
            headers["Content-Type"] = content_type
        try:
            await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            url = self._client.configuration.host.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
            response = await self._send(method, url, headers, None if body is None else wire_json(body))
            raw = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            self._on_request(method, resource, "unreachable")
            raise ClusterUnavailable(f"{method} {path}: {type(e).__name__}: {e}") from e
        self._on_request(method, resource, str(response.status))
        return self._answer(method, path, int(response.status), raw, response.headers)

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes | None
    ) -> aiohttp.ClientResponse:
        """Through the client's own session, with our bytes: its `request` would encode the body in Python's way."""
        rest = self._client.rest_client
        if rest.pool_manager is None:
            rest.pool_manager = rest._create_pool_manager()
        return await rest.pool_manager.request(
            method,
            url,
            headers=headers,
            data=data,
            timeout=self._timeout,
            proxy=rest.proxy,
            proxy_headers=rest.proxy_headers,
            server_hostname=rest.configuration.tls_server_name or None,
        )

    def _answer(self, method: str, path: str, status: int, raw: bytes, headers: Mapping[str, str]) -> Json:
        try:
            data = json.loads(raw) if raw else {}
        except ValueError:
            data = None
        if 200 <= status < 300 and isinstance(data, dict):
            return data
        told = data if isinstance(data, dict) else {}
        error = refusal(f"{method} {path}", status, told, headers)
        if isinstance(error, ClusterThrottled) and "/eviction" not in path:
            self._bucket.pause(error.retry_after_s)
        raise error


def refusal(
    what: str, status: int, told: Json, headers: Mapping[str, str] | None = None
) -> ClusterRefused | ClusterUnavailable:
    """The error for an answer that is not 2xx. `told` is the server's Status object, {} if there was none."""
    reason = str(told.get("reason") or "")
    message = str(told.get("message") or f"HTTP {status}")
    text = f"{what}: {message}"
    if status == 429:
        return ClusterThrottled(text, _retry_after(told, headers or {}))
    kinds: Mapping[int, type[ClusterRefused]] = {
        400: Invalid,
        403: Forbidden,
        404: NotFound,
        409: AlreadyExists if reason == "AlreadyExists" else Conflict,
        422: Invalid if _names_fields(told) else TestFailed,
    }
    if status in kinds:
        error = kinds[status](text, status=status, reason=reason)
        error.message = message
        return error
    unavailable = ClusterUnavailable(text)
    unavailable.retry_after_s = _retry_after(told, headers or {}) if status == 503 else 0.0
    return unavailable


def _names_fields(told: Json) -> bool:
    """Validation names the fields it refuses; a failed `test` of a JSON patch does not (both are 422 Invalid)."""
    details = told.get("details")
    causes: Sequence[Json] = details.get("causes") or [] if isinstance(details, dict) else []
    return any(cause.get("field") for cause in causes)


def _retry_after(told: Json, headers: Mapping[str, str]) -> float:
    details = told.get("details")
    candidates = [headers.get("Retry-After"), details.get("retryAfterSeconds") if isinstance(details, dict) else None]
    for value in candidates:
        try:
            if value is not None:
                return min(300.0, max(0.0, float(value)))
        except ValueError:
            continue
    return 1.0


def _resource_of(path: str) -> str:
    """`/api/v1/namespaces/x/pods/y` → `pods`; `…/agentruns/y/status` → `agentruns/status`; for metrics."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    return f"{parts[0]}/{parts[2]}" if len(parts) > 2 else (parts[0] if parts else "")
