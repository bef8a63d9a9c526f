"""``vllm serve``: start as scripted, then answer health, model list and generation requests."""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from vllm import __version__
from vllm.scripted.answers import Answer, answer
from vllm.scripted.http import Connection, Request
from vllm.scripted.processes import set_name, start_children, start_stray
from vllm.scripted.rendezvous import meet
from vllm.scripted.script import Behaviour, read, record_start

_LOOK_S = 0.02


def serve(arguments: argparse.Namespace) -> int:
    """Run the engine until it is stopped; the exit status."""
    path = os.environ.get("SCRIPTED_ENGINE")
    behaviour = read(path)
    signal.alarm(behaviour.lifetime_s)
    set_name("vllm")
    start = record_start(path)
    _log(f"vLLM API server version {__version__}")
    for line in behaviour.log_lines:
        print(line, file=sys.stderr, flush=True)
    if behaviour.print_environment:
        for name in sorted(os.environ):
            print(f"{name}={os.environ[name]}", flush=True)
    model = arguments.model_tag or arguments.model
    if model.startswith("/") and not os.path.isdir(model):  # noqa: PTH112
        print(
            f"Value error, Invalid repository ID or local directory specified: {model!r}.", file=sys.stderr, flush=True
        )
        return 1
    children = start_children(
        behaviour.child_names, ignore_sigterm=behaviour.ignore_sigterm, lifetime_s=behaviour.lifetime_s
    )
    if behaviour.double_fork:
        start_stray(behaviour.lifetime_s)
    return asyncio.run(_Engine(arguments, behaviour, path, children, dies=start <= behaviour.die_on_starts).run())


class _Engine:
    def __init__(
        self,
        arguments: argparse.Namespace,
        behaviour: Behaviour,
        path: str | None,
        children: dict[int, str],
        *,
        dies: bool,
    ) -> None:
        self._arguments = arguments
        self._behaviour = behaviour
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._children = children
        self._dies = dies
        self._broken = False
        self._stopping = False
        self._ended: asyncio.Future[int] | None = None
        self._model = arguments.model_tag or arguments.model
        self._served = tuple(arguments.served_model_name or [self._model])
        self._keys = arguments.api_key or [key for key in [os.environ.get("VLLM_API_KEY")] if key]
        self._limit = arguments.max_model_len or 4096
        self._counts = {"requests": 0, "running": 0, "completed": 0, "cancelled": 0}

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        loop.add_signal_handler(signal.SIGINT, self._terminate)
        serving = loop.create_task(self._serve())
        code = await self._ended
        serving.cancel()
        self._stop_children()
        return code

    async def _serve(self) -> None:
        behaviour = self._behaviour
        await asyncio.sleep(behaviour.startup_s)
        while behaviour.startup_gate and not os.path.exists(behaviour.startup_gate):  # noqa: ASYNC110, PTH110
            await asyncio.sleep(_LOOK_S)
        if self._dies:
            self._end(behaviour.exit_code)
            return
        if not await meet(self._arguments):
            print("torch.distributed.DistStoreError: Timed out waiting for clients", file=sys.stderr, flush=True)
            self._end(1)
            return
        host, port = self._arguments.host or "0.0.0.0", self._arguments.port
        if self._arguments.headless:
            _log("Headless: no API server on this node")
        elif behaviour.port_in_use or not await self._listen(host, port):
            message = f"[Errno 98] error while attempting to bind on address ({host!r}, {port}): address already in use"
            print(f"OSError: {message}", file=sys.stderr, flush=True)
            self._end(1)
            return
        else:
            _log(f"Starting vLLM server on http://{host}:{port}")
            print("INFO:     Application startup complete.", file=sys.stderr, flush=True)
        if behaviour.die_after_s is not None:
            await asyncio.sleep(behaviour.die_after_s)
            self._end(behaviour.exit_code)

    async def _listen(self, host: str, port: int) -> bool:
        try:
            self._server = await asyncio.get_running_loop().create_server(lambda: Connection(self._handle), host, port)
        except OSError:
            return False
        return True

    # -- processes -----------------------------------------------------------------------------------------------------

    def _end(self, code: int) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(code)

    def _terminate(self) -> None:
        if self._behaviour.ignore_sigterm:
            _log("SIGTERM ignored, as scripted")
        else:
            self._stopping = True
            asyncio.get_running_loop().call_later(self._behaviour.stop_s, self._end, 0)

    def _reap(self) -> None:
        while True:
            try:
                pid, _status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self._children.pop(pid, "a process")
            _log(f"{name} (pid {pid}) died")
            if self._behaviour.on_child_death == "exit":
                self._broken = True
                # A TERM for the whole group reaches the children first now and then; that is a stop, not a failure.
                asyncio.get_running_loop().call_later(0.05 + self._behaviour.child_death_delay_s, self._fail)

    def _fail(self) -> None:
        if not self._stopping:
            self._end(1)

    def _stop_children(self) -> None:
        for pid in self._children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _now(self) -> Behaviour:
        """The script as it is now: tests rewrite it while the engine serves."""
        if self._path and os.path.exists(self._path):  # noqa: PTH110
            status = os.stat(self._path)  # noqa: PTH116
            if (status.st_ino, status.st_mtime_ns) != self._stamp:
                self._behaviour = read(self._path)
                self._stamp = (status.st_ino, status.st_mtime_ns)
        return self._behaviour

    @property
    def _names(self) -> tuple[str, ...]:
        other = self._behaviour.wrong_identity
        return self._served if other is None else (other,)

    async def _handle(self, connection: Connection, request: Request) -> None:
        behaviour = self._now()
        if request.path in ("/health", "/ping"):
            if behaviour.health_hangs:
                await asyncio.Event().wait()
            connection.send(503 if self._broken else behaviour.health_status)
        elif request.path == "/version":
            connection.send(200, {"version": __version__})
        elif request.path == "/load":
            connection.send(200, {"server_load": self._counts["running"]})
        elif request.path == "/scripted":
            connection.send(200, {**self._counts, "pid": os.getpid(), "children": list(self._children)})
        elif request.path.startswith("/v1") and self._keys and not self._authorized(request):
            connection.send(401, {"error": "Unauthorized"})
        elif request.path == "/v1/models":
            connection.send(200, {"object": "list", "data": [self._card(name) for name in self._names]})
        elif request.path in ("/v1/completions", "/v1/chat/completions"):
            await self._counted(connection, request, behaviour)
        else:
            connection.send(404, {"detail": "Not Found"})

    def _authorized(self, request: Request) -> bool:
        return request.headers.get("authorization", "").removeprefix("Bearer ") in self._keys

    def _card(self, name: str) -> dict[str, Any]:
        fixed = {
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": self._model,
            "parent": None,
        }
        return {"id": name, **fixed, "max_model_len": self._limit}

    async def _counted(self, connection: Connection, request: Request, behaviour: Behaviour) -> None:
        self._counts["requests"] += 1
        self._counts["running"] += 1
        try:
            await self._generate(connection, request, behaviour)
            self._counts["completed"] += 1
        except asyncio.CancelledError:
            self._counts["cancelled"] += 1
            raise
        finally:
            self._counts["running"] -= 1

    async def _generate(self, connection: Connection, request: Request, behaviour: Behaviour) -> None:
        if request.method != "POST":
            connection.send(405, {"detail": "Method Not Allowed"})
            return
        if behaviour.refuse_status is not None:
            after = {} if behaviour.refuse_retry_after is None else {"retry-after": behaviour.refuse_retry_after}
            connection.send(
                behaviour.refuse_status, _error("the engine is busy", "Overloaded", behaviour.refuse_status), after
            )
            return
        if behaviour.healthy_but_silent == "hang":
            await asyncio.Event().wait()
        if behaviour.healthy_but_silent is not None:
            connection.send(500, _error("EngineCore encountered an issue.", "InternalServerError", 500))
            return
        try:
            body = json.loads(request.body)
            chat = request.path == "/v1/chat/completions"
            prompt = _chat_prompt(body) if chat else _prompt(body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            connection.send(400, _error(f"{type(error).__name__}: {error}", "BadRequestError", 400))
            return
        model = body.get("model") or self._names[0]
        if model not in self._names:
            connection.send(404, _error(f"The model `{model}` does not exist.", "NotFoundError", 404, param="model"))
            return
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or (self._limit if chat else 16)
        reply = answer(behaviour, prompt, body, chat=chat, limit=min(wanted, self._limit))
        number = self._counts["requests"]
        stream = _Reply(body, model, reply, f"{'chatcmpl' if chat else 'cmpl'}-{number}", chat=chat)
        while (held := self._now().held_prompts) and held in prompt:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(behaviour.first_token_s)
        if body.get("stream"):
            await self._stream(connection, stream, behaviour)
        else:
            await asyncio.sleep(_seconds(len(reply.tokens), behaviour))
            connection.send(200, stream.whole())

    async def _stream(self, connection: Connection, reply: "_Reply", behaviour: Behaviour) -> None:
        connection.begin_stream()
        for event in reply.opening():
            await connection.chunk(event)
        for count, token in enumerate(reply.answer.tokens):
            if count == behaviour.die_mid_stream:
                # Let the bytes so far leave first: the client must see a stream that broke, not one that never began.
                await asyncio.sleep(0.02)
                self._stop_children()
                os._exit(behaviour.exit_code)
            if count == behaviour.drop_mid_stream:
                connection.close()
                return
            await asyncio.sleep(_seconds(1, behaviour) if count else 0)
            await connection.chunk(reply.token(token))
        for event in reply.closing():
            await connection.chunk(event)
        connection.end_stream()


class _Reply:
    """One answer in the shapes of OpenAI's two APIs."""

    def __init__(self, request: Mapping[str, Any], model: str, reply: Answer, identifier: str, *, chat: bool) -> None:
        self.answer = reply
        self._request = request
        self._chat = chat
        kind = "chat.completion" if chat else "text_completion"
        self._base = {"id": identifier, "object": kind, "created": int(time.time()), "model": model}
        self._chunk = {**self._base, "object": "chat.completion.chunk" if chat else kind}

    def whole(self) -> dict[str, Any]:
        content = (
            {"message": {"role": "assistant", "content": self.answer.text}}
            if self._chat
            else {"text": self.answer.text}
        )
        choice = {"index": 0, **content, "logprobs": None, **self._end()}
        return {**self._base, "choices": [choice], "usage": self._usage()}

    def opening(self) -> list[str]:
        return [self._event({"delta": {"role": "assistant", "content": ""}}, None)] if self._chat else []

    def token(self, token: str) -> str:
        return self._event({"delta": {"content": token}} if self._chat else {"text": token}, None)

    def closing(self) -> list[str]:
        events = [self._event({"delta": {}} if self._chat else {"text": ""}, self._end())]
        if (self._request.get("stream_options") or {}).get("include_usage"):
            events.append(json.dumps({**self._chunk, "choices": [], "usage": self._usage()}))
        return [*events, "[DONE]"]

    def _end(self) -> dict[str, Any]:
        return {"finish_reason": self.answer.finish_reason, "stop_reason": self.answer.stop_reason}

    def _event(self, content: dict[str, Any], end: dict[str, Any] | None) -> str:
        choice = {"index": 0, **content, "logprobs": None, **(end or {"finish_reason": None})}
        return json.dumps({**self._chunk, "choices": [choice]})

    def _usage(self) -> dict[str, int]:
        prompt, completion = self.answer.prompt_tokens, len(self.answer.tokens)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _chat_prompt(body: dict[str, Any]) -> str:
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _prompt(body: dict[str, Any]) -> str:
    prompt = body["prompt"]
    return prompt if isinstance(prompt, str) else " ".join(str(part) for part in prompt)


def _seconds(tokens: int, behaviour: Behaviour) -> float:
    return tokens / behaviour.tokens_per_second if behaviour.tokens_per_second > 0 else 0.0


def _error(message: str, kind: str, code: int, *, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _log(message: str) -> None:
    print(f"INFO {time.strftime('%m-%d %H:%M:%S')} [scripted] {message}", file=sys.stderr, flush=True)
