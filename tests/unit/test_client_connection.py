"""Which Temporal is used, and how its absence is told."""

import socket
from pathlib import Path

import pytest

from standfast.client.connection import (
    TemporalEndpoint,
    UnreachableError,
    connect_temporal,
    external_temporal,
    temporal_endpoint,
)
from standfast.home import Home
from standfast.problems import UserError
from standfast.stack.processes import ProcessRef
from standfast.stack.record import StackLock, StackRecord, TemporalRecord, write_record


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in ("ADDRESS", "PROFILE", "NAMESPACE", "API_KEY", "TLS"):
        monkeypatch.delenv(f"TEMPORAL_{name}", raising=False)
    monkeypatch.delenv("STANDFAST_TEMPORAL_UI", raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", "/dev/null")
    return Home(root=tmp_path / "home")


@pytest.fixture
def profiles(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "temporal.toml"
    file.write_text(
        '[profile.default]\naddress = "default.example:7233"\n'
        '[profile.cloud]\naddress = "a.b.tmprl.cloud:7233"\nnamespace = "a.b"\napi_key = "k"\n'
    )
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))


def run_stack(home: Home) -> StackLock:
    lock = StackLock(home)
    assert lock.acquire()
    temporal = TemporalRecord(address="127.0.0.1:7299", namespace="default", managed=True, ui="http://127.0.0.1:8299")
    write_record(
        home,
        StackRecord(
            state="ready",
            supervisor=ProcessRef(pid=1, start_ticks=1),
            started_at=1.0,
            temporal=temporal,
            gateway="http://127.0.0.1:8080",
            ports={},
            parts=(),
        ),
    )
    return lock


def test_without_a_stack_and_an_address_the_error_says_how_to_start(home: Home) -> None:
    with pytest.raises(UnreachableError) as refusal:
        temporal_endpoint(home)
    assert refusal.value.exit_code == 3
    assert "standfast up" in refusal.value.help


@pytest.mark.usefixtures("profiles")
def test_the_running_stack_comes_before_the_default_profile(home: Home) -> None:
    assert temporal_endpoint(home).address == "default.example:7233"
    lock = run_stack(home)
    endpoint = temporal_endpoint(home)
    lock.release()
    assert (endpoint.address, endpoint.ui) == ("127.0.0.1:7299", "http://127.0.0.1:8299")


@pytest.mark.usefixtures("profiles")
def test_a_profile_comes_before_the_running_stack_and_keeps_its_credentials_to_itself(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = run_stack(home)
    monkeypatch.setenv("TEMPORAL_PROFILE", "cloud")
    assert external_temporal()
    endpoint = temporal_endpoint(home)
    lock.release()
    assert (endpoint.address, endpoint.namespace) == ("a.b.tmprl.cloud:7233", "a.b")
    assert endpoint.settings["api_key"] == "k"
    assert endpoint.ui == "https://cloud.temporal.io"


def test_the_address_variable_wins(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    monkeypatch.setenv("STANDFAST_TEMPORAL_UI", "https://ui.example/")
    endpoint = temporal_endpoint(home)
    assert (endpoint.address, endpoint.namespace) == ("temporal.example:7233", "default")
    assert endpoint.source == "TEMPORAL_ADDRESS"
    assert endpoint.ui == "https://ui.example"


def test_a_profile_that_does_not_exist_is_wrong_use(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_PROFILE", "nope")
    with pytest.raises(UserError, match="nope") as refusal:
        temporal_endpoint(home)
    assert refusal.value.exit_code == 2


def test_links_quote_what_ids_contain() -> None:
    endpoint = TemporalEndpoint(address="a", namespace="default", settings={}, source="", ui="http://ui")
    assert (
        endpoint.workflow_url("retry/m@1/inference/0", "run")
        == "http://ui/namespaces/default/workflows/retry%2Fm%401%2Finference%2F0/run"
    )


async def test_a_server_that_is_not_there_is_told_with_its_address(home: Home) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        endpoint = TemporalEndpoint(
            address=address,
            namespace="default",
            settings={"target_host": address, "namespace": "default"},
            source="TEMPORAL_ADDRESS",
        )
        with pytest.raises(UnreachableError) as refusal:
            await connect_temporal(endpoint)
    assert refusal.value.message == f"Temporal does not answer at {address} (from TEMPORAL_ADDRESS): connection refused"
