"""One rank from its launcher's start to the last of its processes: wait for the command, run it, end all of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from workers.launcher import VERSION, engine, linux
from workers.launcher.logs import ROTATE_BYTES, Redactor, RotatingLog, Tail
from workers.launcher.processes import Census, Process, find_marked, read_process, send
from workers.launcher.protocol import AttemptDirectory, StateFile, encode, read_json, replace_file

BEAT_S = 0.5
#: A beat rewrites the state only if something else than the beat changed, and else after this long.
REFRESH_S = 5.0
#: How often a waiting launcher looks for its command.
WAIT_S = 0.1
#: What remains of a session gets this long after its first process ended by itself.
AFTERMATH_S = 2.0
#: Between two looks at processes that are being ended.
_END_POLL_S = 0.1
_KILL_POLL_S = 0.02
_LISTED = 512
_F_SETPIPE_SZ = 1031
_PIPE_BYTES = 256 << 10


@dataclass(frozen=True)
class StopRequest:
    """Why the rank must end, and how long it may take; None leaves the time to the plan."""

    reason: str
    grace_s: float | None


class Supervisor:
    """The life of one rank. `run` returns when everything has ended and the exit record is written."""

    def __init__(self, directory: AttemptDirectory, *, host: str, address: str, log_bytes: int = ROTATE_BYTES) -> None:
        self._directory = directory
        self._host = host
        self._address = address
        self._pid = os.getpid()
        own = read_process(self._pid)
        self._start_ticks = own.start_ticks if own is not None else 0
        self._boot = linux.boot_id()
        self._state_file = StateFile(directory.state)
        self._log = RotatingLog(directory.log, log_bytes)
        self._tail = Tail()
        self._redactor = Redactor(())
        self._selector = selectors.DefaultSelector()
        self._signalled = False
        self._phase = "waiting"
        self._attempt: str | None = None
        self._engine_pid: int | None = None
        self._engine_ticks: int | None = None
        self._grace_s = 30.0
        self._ended: int | None = None
        self._census: Census | None = None
        self._listed: list[Process] = []
        self._exit: dict[str, Any] | None = None
        self._output: int | None = None
        self._next_beat = 0.0
        self._looked_ns = time.time_ns()
        self._relayed_bytes = 0
        self._saved: tuple[object, ...] = ()
        self._saved_at = 0.0

    # -- the story -----------------------------------------------------------------------------------------------

    def run(self, started: Callable[[], None] = lambda: None) -> None:
        """Live the rank's life; ``started`` is called once facts and state can be read."""
        self._listen_for_signals()
        self._state_file.reserve()
        self._directory.beat.touch()
        try:
            previous = read_json(self._directory.state)
        except ValueError:
            # Cut short by a crash of the host, so the rank had begun.
            previous = {}
        if previous is not None and previous.get("phase") != "waiting":
            started()
            self._bury(previous)
            return
        self._write_facts()
        self._beat()
        started()
        command = self._await_command()
        if command is None:
            self._finish(code=None, number=None, reason="stopped")
            return
        try:
            self._start(engine.parse_command(command, self._directory.rank))
        except engine.CommandError as error:
            self._say(str(error))
            self._finish(code=error.code, number=None, reason="exited")
            return
        request = self._watch()
        survivors = self._end(request)
        status = self._ended if self._ended is not None else 0
        self._finish(
            code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            number=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            reason="stopped" if request is not None else "exited",
            survivors=survivors,
        )

    def _write_facts(self) -> None:
        facts = {
            "rank": self._directory.rank,
            "host": self._host,
            "address": self._address,
            "pid": self._pid,
            "start_ticks": self._start_ticks,
            "boot_id": self._boot,
            "gpus": [],
            "launcher_version": VERSION,
        }
        replace_file(self._directory.facts, encode(facts))

    def _await_command(self) -> dict[str, Any] | None:
        """The bound commands, or None if a stop came first. Waits as long as it takes."""
        while True:
            if self._stop_request() is not None:
                return None
            try:
                command = read_json(self._directory.bound)
            except ValueError as error:
                return {"schema_version": f"unreadable: {error}"}
            if command is not None:
                return command
            self._pump(WAIT_S)

    def _start(self, command: engine.Command) -> None:
        environment = engine.build_environment(command, os.environ)
        self._redactor = Redactor(engine.secret_values(command, os.environ).values())
        self._attempt = command.attempt
        self._grace_s = command.stop_grace_s
        # Written before the engine exists: a launcher that finds this phase later knows that one may have been started.
        self._phase = "running"
        self._save()
        reading, writing = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(reading, _F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(reading, False)
        self._output = reading
        try:
            process = engine.spawn(command, environment, writing, str(self._directory.work))
        finally:
            os.close(writing)
        self._selector.register(reading, selectors.EVENT_READ, self._relay)
        self._engine_pid = process.pid
        born = read_process(process.pid)
        self._engine_ticks = born.start_ticks if born is not None else None
        self._census = Census(process.pid, self._engine_ticks)
        # The supervisor reaps all children itself; told so, Popen does not try.
        process.returncode = 0
        self._beat()

    def _watch(self) -> StopRequest | None:
        """Until the engine's first process ends (None) or a stop is requested."""
        while self._ended is None:
            self._pump(BEAT_S)
            request = self._stop_request()
            if request is not None and self._ended is None:
                return request
        return None

    def _end(self, request: StopRequest | None) -> list[Process]:
        """TERM, grace, KILL until nothing of the engine is left. Returns whom it killed but its first process."""
        self._phase = "stopping"
        begun = time.monotonic()
        if request is not None and self._engine_pid is not None:
            self._say(f"stopping: {request.reason}")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._engine_pid, signal.SIGTERM)
        self._beat()
        told_rest = False
        killed: dict[int, Process] = {}
        empty_looks = 0
        deadline = begun + (self._grace(request) if request is not None else AFTERMATH_S)
        while True:
            rest = self._members(thorough=empty_looks > 0 or time.monotonic() >= deadline)
            # A quick look, then two thorough ones: a process that forks during one look can escape it, but not all.
            empty_looks = 0 if rest else empty_looks + 1
            if empty_looks >= 3:
                break
            if self._ended is not None and not told_rest:
                told_rest = True
                send(rest, signal.SIGTERM)
                deadline = min(deadline, time.monotonic() + AFTERMATH_S)
            if request is not None:
                deadline = min(deadline, begun + self._grace(self._stop_request() or request))
            if time.monotonic() >= deadline:
                killed.update((process.pid, process) for process in rest)
                send(rest, signal.SIGKILL)
                # A process that waits in the kernel ends when it returns from there: no use in asking it all the time.
                soon = time.monotonic() < deadline + AFTERMATH_S
                self._pump(_KILL_POLL_S if soon else BEAT_S)
            else:
                self._pump(min(_END_POLL_S if rest else _KILL_POLL_S, max(0.0, deadline - time.monotonic())))
        self._relay(final=True)
        return [process for pid, process in sorted(killed.items()) if pid != self._engine_pid]

    def _bury(self, previous: dict[str, Any]) -> None:
        """Complete the record of an earlier launcher of this rank that died: end what it left, start nothing."""
        if previous.get("phase") == "ended":
            self._state_file.release()
            return
        self._phase = "stopping"
        self._attempt = previous.get("attempt")
        if previous.get("boot_id") == self._boot and isinstance(previous.get("pid"), int):
            self._engine_pid = previous["pid"]
            self._engine_ticks = previous.get("start_ticks")
            self._census = Census(previous["pid"], self._engine_ticks)
        for line in previous.get("tail", ()):
            self._tail.feed(f"{line}\n".encode())
        self._say("the launcher of this rank was lost; what it left is ended")
        self._ended = 0
        survivors = self._end(None)
        self._finish(code=None, number=None, reason="lost", survivors=survivors)

    def _finish(self, *, code: int | None, number: int | None, reason: str, survivors: Iterable[Process] = ()) -> None:
        self._phase = "ended"
        self._listed = []
        self._exit = {
            "code": code,
            "signal": number,
            "reason": reason,
            "at": time.time(),
            "survivors": _refs(survivors),
        }
        self._log.close()
        self._save()
        self._state_file.release()

    # -- its parts -----------------------------------------------------------------------------------------------

    def _listen_for_signals(self) -> None:
        reading, writing = socket.socketpair()
        reading.setblocking(False)
        writing.setblocking(False)
        self._wakeup = (reading, writing)
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        # Handlers, not SIG_IGN, which the engine would inherit.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop_signal)
        for number in (signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._selector.register(reading, selectors.EVENT_READ, self._drain_wakeups)

    def _on_stop_signal(self, *_: object) -> None:
        self._signalled = True

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup[0].recv(4096):
                pass

    def _stop_request(self) -> StopRequest | None:
        """The request in ``stop.json``; a termination signal is one too."""
        try:
            request = read_json(self._directory.stop)
        except (ValueError, OSError):
            # Its being there is the request.
            request = {}
        if request is None:
            return StopRequest("the launcher was told to terminate", None) if self._signalled else None
        grace = request.get("grace_s")
        if isinstance(grace, bool) or not isinstance(grace, (int, float)):
            grace = None
        return StopRequest(str(request.get("reason", "requested")), None if grace is None else float(grace))

    def _grace(self, request: StopRequest) -> float:
        return self._grace_s if request.grace_s is None else max(0.0, request.grace_s)

    def _pump(self, timeout: float) -> None:
        """Relay output, reap children and beat, for ``timeout`` seconds or until something happens."""
        until_beat = self._next_beat - time.monotonic()
        for key, _ in self._selector.select(max(0.0, min(timeout, until_beat))):
            key.data()
        self._reap()
        if time.monotonic() >= self._next_beat:
            self._beat()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._engine_pid:
                    self._ended = status

    def _relay(self, final: bool = False) -> None:
        """Pass on what the engine printed: one piece, or with ``final`` all that is left."""
        while self._output is not None:
            try:
                data = os.read(self._output, _PIPE_BYTES)
            except BlockingIOError:
                break
            if not data:
                self._close_output()
                break
            self._show(self._redactor.feed(data))
            if not final:
                return
        if final:
            self._close_output()
            self._show(self._redactor.flush())

    def _close_output(self) -> None:
        if self._output is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._output)
            os.close(self._output)
            self._output = None

    def _show(self, data: bytes) -> None:
        self._relayed_bytes += len(data)
        self._log.write(data)
        self._tail.feed(data)

    def _say(self, text: str) -> None:
        """Add a line of the launcher's own to the engine's log."""
        self._show(f"[standfast] {text}\n".encode("utf-8", "replace"))

    def _members(self, *, thorough: bool) -> list[Process]:
        """The engine's live processes; a thorough look also reads environments, and so finds those that left it."""
        seen = self._census.look(full=thorough) if self._census is not None else []
        members = {process.pid: process for process in seen}
        if thorough and self._attempt is not None:
            members.update((process.pid, process) for process in find_marked(self._attempt, self._directory.rank))
        self._listed = [process for _, process in sorted(members.items())]
        return self._listed

    def _beat(self) -> None:
        self._next_beat = time.monotonic() + BEAT_S
        self._looked_ns = time.time_ns()
        if self._census is not None and self._phase == "running":
            self._listed = self._census.look()
        due = time.monotonic() >= self._saved_at + REFRESH_S
        if due or self._saved != self._content():
            self._save()
        # Last, so that whoever sees this beat finds a state at least as new; with the time before the look.
        with contextlib.suppress(OSError):
            os.utime(self._directory.beat, ns=(self._looked_ns, self._looked_ns))

    def _content(self) -> tuple[object, ...]:
        """What the state says, in short: equal for as long as it need not be written again."""
        living = tuple((process.pid, process.start_ticks, process.name) for process in self._listed)
        return (self._phase, self._engine_pid, living, self._relayed_bytes, self._log.dropped_bytes, self._log.error)

    def _save(self) -> None:
        state = {
            "schema_version": 1,
            "attempt": self._attempt,
            "rank": self._directory.rank,
            "phase": self._phase,
            "launcher_pid": self._pid,
            "launcher_start_ticks": self._start_ticks,
            "boot_id": self._boot,
            "pid": self._engine_pid,
            "start_ticks": self._engine_ticks,
            "beat": self._looked_ns / 1e9,
            "processes": _refs(self._listed[:_LISTED]),
            "exit": self._exit,
            "tail": self._tail.lines(),
            "log": {"dropped_bytes": self._log.dropped_bytes, "error": self._log.error},
        }
        if self._state_file.write(state):
            self._saved, self._saved_at = self._content(), time.monotonic()


def _refs(processes: Iterable[Process]) -> list[dict[str, Any]]:
    return [{"pid": process.pid, "start_ticks": process.start_ticks, "name": process.name} for process in processes]
