"""The HTTP face of the world.

POST /v1/chat/completions    OpenAI-compatible; the verdict follows from the ticket in the prompt (kind `model`)
POST /tickets                header Idempotency-Key: one ticket per key, however often it is sent (kind `ticket`)
POST /mails                  header Idempotency-Key is only noted: every request sends a mail (kind `mail`)
GET  /mails/{key}            was it sent? 200 with the mails, 404 if none (kind `probe`)

GET  /counts                 every request seen, per kind, ticket and key, deduplicated or not
GET  /healthz
POST /reset                  forget everything
PUT  /latency                {"model": 150, "mail": 20}: milliseconds from the effect to the reply, per kind
POST /holds                  {"kind": "mail", "ticket": "T-1007", "moment": "before" | "after", "times": 1}
GET  /holds                  what is held now
POST /release                let all held requests go on
"""

import asyncio
import json
import time
from collections.abc import Callable

from aiohttp import web

from tests.support.world.state import KINDS, Hold, Kind, Request, World
from tests.support.world.verdict import completion, read_prompt

WORLD = web.AppKey("world", World)
KEY_HEADER = "Idempotency-Key"


def make_app(world: World) -> web.Application:
    """The application around one World."""
    app = web.Application()
    app[WORLD] = world
    app.add_routes(
        [
            web.post("/v1/chat/completions", _chat),
            web.post("/tickets", _tickets),
            web.post("/mails", _mails),
            web.get("/mails/{key}", _mail_probe),
            web.get("/counts", _counts),
            web.get("/healthz", _healthz),
            web.post("/reset", _reset),
            web.put("/latency", _latency),
            web.post("/holds", _hold),
            web.get("/holds", _holds),
            web.post("/release", _release),
        ]
    )
    return app


async def _chat(http: web.Request) -> web.Response:
    body = await _json(http)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return _refuse("messages: expected a non-empty list")
    prompt = "\n".join(str(m.get("content", "")) for m in messages if isinstance(m, dict))
    model = str(body.get("model", ""))

    def effect(world: World, request: Request) -> object:
        request.done = True
        return completion(model, prompt, len(world.requests), _now_ms() // 1000)

    return await _serve(http, "model", read_prompt(prompt).ticket, effect)


async def _tickets(http: web.Request) -> web.Response:
    body = await _json(http)
    if not http.headers.get(KEY_HEADER):
        return _refuse(f"header {KEY_HEADER}: missing")
    return await _serve(http, "ticket", str(body.get("source", "")), lambda w, r: w.file_ticket(r, body))


async def _mails(http: web.Request) -> web.Response:
    body = await _json(http)
    if not body.get("to"):
        return _refuse("to: missing")
    return await _serve(http, "mail", str(body.get("source", "")), lambda w, r: w.send_mail(r, body))


async def _mail_probe(http: web.Request) -> web.Response:
    world, key = http.app[WORLD], http.match_info["key"]
    request = world.arrived("probe", "", key, _now_ms(), http.remote or "")
    await world.pause("before", request)
    request.done = True
    sent = world.mails.get(key, [])
    return web.json_response({"sent": len(sent), "mails": sent}, status=200 if sent else 404)


async def _serve(
    http: web.Request, kind: Kind, ticket: str, effect: Callable[[World, Request], object]
) -> web.Response:
    world = http.app[WORLD]
    request = world.arrived(kind, ticket, http.headers.get(KEY_HEADER, ""), _now_ms(), http.remote or "")
    held = await world.pause("before", request)
    # What arrived is done, even if its sender died meanwhile: a mail gateway does not ask. Only a held request can be lost.
    if held and (http.transport is None or http.transport.is_closing()):
        return web.Response(status=499)
    answer = effect(world, request)
    if world.latency_ms[kind]:
        await asyncio.sleep(world.latency_ms[kind] / 1000)
    await world.pause("after", request)
    return web.json_response(answer, status=200 if kind == "model" or request.deduplicated else 201)


async def _counts(http: web.Request) -> web.Response:
    return web.json_response(http.app[WORLD].counts())


async def _healthz(http: web.Request) -> web.Response:
    return web.json_response({"ok": True})


async def _reset(http: web.Request) -> web.Response:
    http.app[WORLD].reset()
    return web.json_response({"ok": True})


async def _latency(http: web.Request) -> web.Response:
    body = await _json(http)
    for kind, latency_ms in body.items():
        if kind not in KINDS or not isinstance(latency_ms, int) or latency_ms < 0:
            return _refuse(f"{kind}: expected one of {', '.join(KINDS)} with milliseconds >= 0")
        http.app[WORLD].latency_ms[kind] = latency_ms
    return web.json_response(http.app[WORLD].latency_ms)


async def _hold(http: web.Request) -> web.Response:
    body = await _json(http)
    kind, moment = body.get("kind"), body.get("moment", "before")
    if kind not in KINDS or moment not in ("before", "after"):
        return _refuse(f"kind: one of {', '.join(KINDS)}; moment: before or after")
    hold = Hold(kind, str(body.get("ticket", "")), moment, int(str(body.get("times", 1))))
    http.app[WORLD].holds.append(hold)
    return web.json_response(hold.describe(), status=201)


async def _holds(http: web.Request) -> web.Response:
    return web.json_response([hold.describe() for hold in http.app[WORLD].holds])


async def _release(http: web.Request) -> web.Response:
    return web.json_response({"released": http.app[WORLD].release()})


async def _json(http: web.Request) -> dict[str, object]:
    try:
        body = await http.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(
            text=json.dumps({"error": {"message": "body: expected a JSON object"}}), content_type="application/json"
        )
    return body


def _refuse(message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "invalid_request_error"}}, status=400)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
