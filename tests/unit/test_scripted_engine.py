"""The stand-in for vLLM does what its script says, and packages like a real engine."""

import http.client
import json
import os
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.scripted_engine import Script, argv, build_wheel, scripted_image, source_environment
from tests.support.ports import free_port

PATIENCE_S = 60.0


class Engine:
    """A running stand-in and a small client."""

    def __init__(self, directory: Path, **fields: Any) -> None:
        self.port = free_port()
        self.script = Script.create(directory, **fields)
        options = ("--served-model-name", "first", "second", "--host", "127.0.0.1", "--port", str(self.port))
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                argv("org/model", *options),
                env=source_environment(self.script),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def request(self, path: str, body: Any = None) -> tuple[int, str, Any]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        client.request("GET" if body is None else "POST", path, body and json.dumps(body))
        response = client.getresponse()
        return response.status, response.read().decode(), response.headers

    def chat(self, text: str, **more: Any) -> Any:
        status, reply, _ = self.request(
            "/v1/chat/completions", {"model": "first", "messages": [{"role": "user", "content": text}], **more}
        )
        assert status == 200, reply
        return json.loads(reply)["choices"][0]

    def wait_healthy(self) -> "Engine":
        def healthy() -> bool:
            with suppress(OSError):
                return self.request("/health")[0] == 200
            return False

        _until(healthy)
        return self


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.01)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def run(**fields: Any) -> Engine:
        engines.append(Engine(tmp_path, **fields))
        return engines[-1]

    yield run
    for engine in engines:
        with suppress(ProcessLookupError):
            os.killpg(engine.process.pid, signal.SIGKILL)
        engine.process.wait()


def test_it_lists_every_served_name_and_answers_the_capital_of_france(start: Callable[..., Engine]) -> None:
    engine = start().wait_healthy()
    assert [model["id"] for model in json.loads(engine.request("/v1/models")[1])["data"]] == ["first", "second"]
    assert "Paris" in engine.chat("What is the capital of France?")["message"]["content"]
    assert engine.request("/v1/completions", {"model": "third", "prompt": "x"})[0] == 404


def test_it_honours_stop_strings_and_the_token_limit(start: Callable[..., Engine]) -> None:
    engine = start(answer="one two three four").wait_healthy()
    stopped = engine.chat("count", stop=["three"])
    assert (stopped["message"]["content"].strip(), stopped["finish_reason"]) == ("one two", "stop")
    limited = engine.chat("count", max_tokens=2)
    assert (limited["message"]["content"], limited["finish_reason"]) == ("one two", "length")


def test_a_stream_carries_the_same_text_and_ends_with_done(start: Callable[..., Engine]) -> None:
    engine = start(answer="one two three").wait_healthy()
    _, text, headers = engine.request("/v1/completions", {"model": "first", "prompt": "x", "stream": True})
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert headers["content-type"].startswith("text/event-stream")
    assert events[-1] == "[DONE]"
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == "one two three"


def test_it_dies_on_its_first_starts_only_and_every_start_is_on_record(tmp_path: Path) -> None:
    codes = []
    for _ in range(2):
        first = Engine(tmp_path, die_on_starts=2, exit_code=7, log_lines=["a scripted fault"])
        codes.append(first.process.wait(PATIENCE_S))
    third = Engine(tmp_path, die_on_starts=2).wait_healthy()
    third.process.terminate()
    assert [*codes, third.process.wait(PATIENCE_S)] == [7, 7, 0]
    assert "a scripted fault" in first.log.read_text() or "Starting" in first.log.read_text()
    assert len({begun.pid for begun in third.script.starts()}) == 3


def test_a_rewritten_script_changes_a_serving_engine(start: Callable[..., Engine]) -> None:
    engine = start().wait_healthy()
    engine.script.update(refuse_status=429, refuse_retry_after="7")
    status, _, headers = engine.request("/v1/completions", {"model": "first", "prompt": "x"})
    assert (status, headers["retry-after"]) == (429, "7")
    engine.script.update(refuse_status=None, healthy_but_silent="error")
    assert engine.request("/health")[0] == 200
    assert engine.request("/v1/completions", {"model": "first", "prompt": "x"})[0] == 500


def test_it_exits_when_a_child_is_killed_unless_told_to_ignore_that(start: Callable[..., Engine]) -> None:
    engine = start(children=2).wait_healthy()
    os.kill(json.loads(engine.request("/scripted")[1])["children"][0], signal.SIGKILL)
    assert engine.process.wait(PATIENCE_S) == 1


def test_it_survives_sigterm_when_scripted(start: Callable[..., Engine]) -> None:
    engine = start(ignore_sigterm=True).wait_healthy()
    engine.process.terminate()
    _until(lambda: "SIGTERM ignored" in engine.log.read_text())
    assert engine.request("/health")[0] == 200


def test_a_client_that_leaves_cancels_its_request(start: Callable[..., Engine]) -> None:
    engine = start(tokens_per_second=1, answer_tokens=100).wait_healthy()
    client = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=PATIENCE_S)
    client.request("POST", "/v1/completions", json.dumps({"model": "first", "prompt": "x", "stream": True}))
    client.getresponse().close()
    client.close()
    _until(lambda: json.loads(engine.request("/scripted")[1])["cancelled"] == 1)


def test_a_taken_port_and_a_missing_model_end_it_with_the_engines_own_words(start: Callable[..., Engine]) -> None:
    engine = start(port_in_use=True)
    assert engine.process.wait(PATIENCE_S) == 1
    assert "address already in use" in engine.log.read_text()


def test_a_misspelt_script_field_is_refused_in_the_test(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="startup"):
        Script.create(tmp_path, startup=1)


def test_the_wheel_is_complete_and_reproducible(tmp_path: Path) -> None:
    wheel, again = build_wheel(tmp_path / "a", "0.2.0"), build_wheel(tmp_path / "b", "0.2.0")
    assert wheel.read_bytes() == again.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        listed = {line.split(",")[0] for line in archive.read("vllm-0.2.0.dist-info/RECORD").decode().splitlines()}
        assert set(archive.namelist()) == listed
        assert b'__version__ = "0.2.0"' in archive.read("vllm/__init__.py")
    assert scripted_image(wheel).requirements == (f"vllm @ file://{wheel}",)
