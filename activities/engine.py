"""The engine's HTTP face, as probes use it. Every call is bounded in time; what went wrong is a sentence."""

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

_T = TypeVar("_T")

_MODELS = "/v1/models"
_NO_CHAT = (400, 404, 501)
"""How engines say that a model takes no chats: it has no chat template."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One completed request: the text, why it ended, and its times in seconds."""

    text: str
    finish_reason: str | None
    first_token_s: float
    took_s: float
    request: str


class EngineError(Exception):
    """The engine did not answer as a server should. ``status`` is None when there was no HTTP response."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


async def names_at(
    http: httpx.AsyncClient, url: str, identity_path: str, timeout_s: float = 5.0
) -> tuple[tuple[str, ...], frozenset[str]]:
    """The names under which the engine serves, and every text of the page that says which attempt it is. Raises
    `EngineError`.
    """
    listing = await _get(http, url, _MODELS, timeout_s)
    try:
        names = tuple(str(model["id"]) for model in listing["data"])
    except (KeyError, TypeError) as error:
        raise EngineError(f"{_MODELS}: {_words(error)}") from None
    identity = listing if identity_path == _MODELS else await _get(http, url, identity_path, timeout_s)
    return names, frozenset(_texts(identity))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


async def complete(
    http: httpx.AsyncClient, url: str, model: str, prompt: str, *, max_tokens: int, timeout_s: float
) -> str:
    """Continue a text; the cheapest proof that tokens come out. Raises `EngineError`."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    answer = await _post(http, f"{url}/v1/completions", body, timeout_s)
    try:
        return str(answer["choices"][0]["text"])
    except (KeyError, IndexError, TypeError):
        raise EngineError(f"/v1/completions: not a completion: {json.dumps(answer)[:200]}") from None


async def ask(
    http: httpx.AsyncClient,
    url: str,
    model: str,
    prompt: str,
    *,
    max_tokens: int,
    stop: str | None = None,
    timeout_s: float,
) -> Answer:
    """Ask as a chat, or as plain text where the model has no chat template. Greedy. Raises `EngineError`."""

    async def send(path: str, body: dict[str, Any]) -> Answer:
        started = time.monotonic()
        text, reason = _choice(await _post(http, url + path, body, timeout_s))
        took = time.monotonic() - started
        return Answer(text=text, finish_reason=reason, first_token_s=took, took_s=took, request=_shown(path, body))

    return await _as_chat_or_text(send, model, prompt, max_tokens, stop)


async def stream(
    http: httpx.AsyncClient, url: str, model: str, prompt: str, *, max_tokens: int, timeout_s: float
) -> tuple[Answer, int, bool]:
    """Ask for a stream: the answer put together, the number of chunks with text, and whether it ended with
    ``[DONE]``.

    Raises `EngineError`.
    """

    async def send(path: str, body: dict[str, Any]) -> tuple[Answer, int, bool]:
        return await _stream(http, url, path, {**body, "stream": True}, timeout_s)

    return await _as_chat_or_text(send, model, prompt, max_tokens, None)


async def _stream(
    http: httpx.AsyncClient, url: str, path: str, body: dict[str, Any], timeout_s: float
) -> tuple[Answer, int, bool]:
    started = time.monotonic()
    text, reason, first, chunks, done = "", None, None, 0, False
    try:
        async with http.stream("POST", url + path, json=body, timeout=timeout_s) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                raise EngineError(f"{path}: HTTP {response.status_code}: {response.text[:200]}", response.status_code)
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    done = True
                    break
                piece, ended = _choice(json.loads(data), key="delta")
                reason = ended or reason
                if piece:
                    first = first if first is not None else time.monotonic() - started
                    text, chunks = text + piece, chunks + 1
    except (httpx.HTTPError, ValueError) as error:
        raise EngineError(f"{path}: {_words(error)}", _status(error)) from None
    took = time.monotonic() - started
    answer = Answer(
        text=text,
        finish_reason=reason,
        first_token_s=first if first is not None else took,
        took_s=took,
        request=_shown(path, body),
    )
    return answer, chunks, done


async def _as_chat_or_text(
    send: Callable[[str, dict[str, Any]], Awaitable[_T]], model: str, prompt: str, max_tokens: int, stop: str | None
) -> _T:
    """Send a chat request, and a plain one where the engine does not take chats."""
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "temperature": 0}
    if stop is not None:
        body["stop"] = [stop]
    try:
        return await send("/v1/chat/completions", {**body, "messages": [{"role": "user", "content": prompt}]})
    except EngineError as error:
        if error.status not in _NO_CHAT:
            raise
    return await send("/v1/completions", {**body, "prompt": prompt})


async def _get(http: httpx.AsyncClient, url: str, path: str, timeout_s: float) -> Any:
    try:
        response = await http.get(url + path, timeout=timeout_s)
        response.raise_for_status()
        return response.json()
    except (httpx.HTTPError, ValueError) as error:
        raise EngineError(f"{path}: {_words(error)}", _status(error)) from None


async def _post(http: httpx.AsyncClient, url: str, body: Mapping[str, Any], timeout_s: float) -> Any:
    path = httpx.URL(url).path
    try:
        response = await http.post(url, json=body, timeout=timeout_s)
        if response.status_code != httpx.codes.OK:
            raise EngineError(f"{path}: HTTP {response.status_code}: {response.text[:200]}", response.status_code)
        return response.json()
    except (httpx.HTTPError, ValueError) as error:
        raise EngineError(f"{path}: {_words(error)}", _status(error)) from None


def _choice(answer: Any, key: str = "message") -> tuple[str, str | None]:
    """The text and the finish reason of an answer or of one chunk; a chunk without choices has neither."""
    if isinstance(answer, Mapping) and "error" in answer:
        raise EngineError(f"the engine reports an error: {json.dumps(answer['error'])[:200]}")
    try:
        choices = answer["choices"]
        if not choices:
            return "", None
        choice = choices[0]
        text = choice["text"] if "text" in choice else choice[key].get("content")
        return text or "", choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise EngineError(f"not a completion: {json.dumps(answer)[:200]}") from None


def _shown(path: str, body: Mapping[str, Any]) -> str:
    return f"POST {path} {json.dumps(body, ensure_ascii=False)}"


def _words(error: Exception) -> str:
    if isinstance(error, httpx.ConnectError):
        return "connection refused"
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _status(error: Exception) -> int | None:
    return error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
