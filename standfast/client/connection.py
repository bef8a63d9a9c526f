"""Which Temporal to talk to, and how to say that it does not answer.

The order: ``TEMPORAL_ADDRESS`` or ``TEMPORAL_PROFILE`` (with all that `temporalio.envconfig` reads); the stack that
runs in this home; an address in the default profile of the Temporal configuration file.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from standfast.home import Home
from standfast.problems import UserError
from standfast.stack.record import running_stack

if TYPE_CHECKING:
    from temporalio.client import Client as TemporalClient

EXIT_UNREACHABLE = 3
CONNECT_TIMEOUT = timedelta(seconds=5)


class UnreachableError(UserError):
    """Temporal, the registry or the gateway does not answer. The command line exits with 3."""

    def __init__(self, message: str, *, help: str = "") -> None:
        super().__init__(message, help=help, exit_code=EXIT_UNREACHABLE)


@dataclass(frozen=True, kw_only=True)
class TemporalEndpoint:
    """Where Temporal is.

    ``settings`` are the arguments of ``temporalio.client.Client.connect``; they may hold credentials, ``address`` never
    does.
    """

    address: str
    namespace: str
    settings: Mapping[str, Any]
    source: str
    """Where the address came from, for people."""
    ui: str | None = None
    """The base URL of the Web UI, when it is known."""

    def workflow_url(self, workflow_id: str, run_id: str | None = None) -> str | None:
        """A link to one workflow in the Web UI."""
        if self.ui is None:
            return None
        run = f"/{run_id}" if run_id else ""
        return f"{self.ui}/namespaces/{quote(self.namespace, safe='')}/workflows/{quote(workflow_id, safe='')}{run}"


def external_temporal(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment names a Temporal that the embedded stack must use instead of its own."""
    given = os.environ if environ is None else environ
    return bool(given.get("TEMPORAL_ADDRESS") or given.get("TEMPORAL_PROFILE"))


def temporal_endpoint(home: Home) -> TemporalEndpoint:
    """The Temporal that this process should use.

    Raises `UnreachableError` when there is none, `UserError` for a bad profile.
    """
    if external_temporal():
        return _from_environment(home, "TEMPORAL_ADDRESS" if os.environ.get("TEMPORAL_ADDRESS") else "TEMPORAL_PROFILE")
    stack = running_stack(home)
    if stack is not None:
        temporal = stack.temporal
        if temporal.profile is not None:
            return _from_environment(home, f"the stack in {home.root}", profile=temporal.profile)
        return TemporalEndpoint(
            address=temporal.address,
            namespace=temporal.namespace,
            settings={"target_host": temporal.address, "namespace": temporal.namespace},
            source=f"the stack in {home.root}",
            ui=temporal.ui,
        )
    configured = _load_profile(None)
    if configured.get("target_host"):
        return _endpoint(home, configured, "the default profile of the Temporal configuration file")
    raise UnreachableError(
        f"the stack is not running in {home.root}, and TEMPORAL_ADDRESS is not set.",
        help="Start it with `standfast up` (or `standfast up -d` in the background).",
    )


def _from_environment(home: Home, source: str, profile: str | None = None) -> TemporalEndpoint:
    return _endpoint(home, _load_profile(profile), source)


def _endpoint(home: Home, settings: dict[str, Any], source: str) -> TemporalEndpoint:
    address = str(settings.get("target_host") or "localhost:7233")
    namespace = str(settings.get("namespace") or "default")
    return TemporalEndpoint(
        address=address,
        namespace=namespace,
        settings={**settings, "target_host": address, "namespace": namespace},
        source=source,
        ui=_web_ui(home, address),
    )


def _load_profile(profile: str | None) -> dict[str, Any]:
    from temporalio.envconfig import ClientConfig

    try:
        return dict(ClientConfig.load_client_connect_config(profile=profile))
    except Exception as error:  # the bridge raises its own types, certificate files raise OSError
        raise UserError(
            f"the Temporal connection settings cannot be read: {error}",
            help="Check TEMPORAL_PROFILE, TEMPORAL_CONFIG_FILE and the TEMPORAL_TLS_* variables.",
        ) from None


def _web_ui(home: Home, address: str) -> str | None:
    given = os.environ.get("STANDFAST_TEMPORAL_UI")
    if given:
        return given.rstrip("/")
    if ".tmprl.cloud" in address or ".temporal.io" in address:
        return "https://cloud.temporal.io"
    stack = running_stack(home)
    return stack.temporal.ui if stack is not None and stack.temporal.address == address else None


async def connect_temporal(endpoint: TemporalEndpoint, *, identity: str | None = None) -> "TemporalClient":
    """Connect; raises `UnreachableError` when nothing answers within a few seconds."""
    from temporalio.client import Client as TemporalClient
    from temporalio.contrib.pydantic import pydantic_data_converter
    from temporalio.service import RPCError

    try:
        return await asyncio.wait_for(
            TemporalClient.connect(**endpoint.settings, data_converter=pydantic_data_converter, identity=identity),
            CONNECT_TIMEOUT.total_seconds(),
        )
    except (RuntimeError, RPCError, TimeoutError, OSError) as error:
        raise UnreachableError(
            f"Temporal does not answer at {endpoint.address} (from {endpoint.source}): {_reason(error)}",
            help="`standfast doctor` checks each part; `standfast up` starts the embedded stack.",
        ) from None


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT.total_seconds():.0f} s"
    text = str(error)
    for known in ("Connection refused", "dns error", "certificate", "Unauthorized", "unauthenticated"):
        if known.lower() in text.lower():
            return known[0].lower() + known[1:]
    return text.splitlines()[0][:200] if text else type(error).__name__
