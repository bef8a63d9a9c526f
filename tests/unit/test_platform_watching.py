"""What makes an attempt stop standing."""

from typing import Any

import pytest

from standfast.platforms.base import ExitRecord, Observation, ProcessRef, RankObservation
from standfast.platforms.watching import StandingProcess, find_fault, standing_set

API = ProcessRef(pid=10, start_ticks=1, name="vllm")
CORE = ProcessRef(pid=11, start_ticks=2, name="VLLM::EngineCor")
HELPER = ProcessRef(pid=12, start_ticks=3, name="ninja")


def rank(number: int = 0, *processes: ProcessRef, **changes: Any) -> RankObservation:
    fields = {"phase": "running", "launcher_alive": True, "beat_age_s": 0.2, "processes": processes} | changes
    return RankObservation.model_validate({"rank": number} | fields)


def look(*ranks: RankObservation) -> Observation:
    return Observation(attempt="a/inference/0/1", ranks=ranks)


def exited(at: float, code: int | None = 1, number: int | None = None) -> dict[str, Any]:
    return {"phase": "ended", "exit": ExitRecord(code=code, signal=number, reason="exited", at=at)}


def test_what_stands_has_no_fault() -> None:
    seen = look(rank(0, API, CORE), rank(1, HELPER))

    assert find_fault(seen) is None
    assert find_fault(seen, standing_set([seen])) is None


def test_a_standing_process_that_is_missing_is_named_with_its_rank() -> None:
    standing = standing_set([look(rank(0, API), rank(1, API, CORE))])

    fault = find_fault(look(rank(0, API), rank(1, API)), standing)

    assert fault is not None
    assert (fault.kind, fault.rank) == ("process-lost", 1)
    assert fault.message == "the process VLLM::EngineCor (pid 11) of rank 1 disappeared"


def test_a_process_number_given_to_another_process_does_not_stand_in() -> None:
    standing = standing_set([look(rank(0, API))])

    fault = find_fault(look(rank(0, API.model_copy(update={"start_ticks": 99}))), standing)

    assert fault is not None
    assert fault.kind == "process-lost"


def test_helpers_that_come_later_or_end_between_two_looks_do_not_matter() -> None:
    first, last = look(rank(0, API, CORE, HELPER)), look(rank(0, API, CORE))
    standing = standing_set([first, last])

    assert {one.process.name for one in standing} == {"vllm", "VLLM::EngineCor"}
    assert find_fault(first, standing) is None
    assert find_fault(last, standing) is None


def test_a_standing_set_needs_a_look() -> None:
    with pytest.raises(ValueError, match="at least one"):
        standing_set([])


def test_a_dead_launcher_is_a_fault_before_anything_it_last_said() -> None:
    fault = find_fault(
        look(rank(0, API, launcher_alive=False, beat_age_s=60.0)), standing_set([look(rank(0, API, CORE))])
    )

    assert fault is not None
    assert fault.kind == "launcher-lost"


def test_an_exit_is_the_fault_though_processes_and_launcher_are_gone_too() -> None:
    standing = standing_set([look(rank(0, API), rank(1, API))])

    fault = find_fault(look(rank(0, **exited(20.0), launcher_alive=False), rank(1, **exited(10.0, None, 9))), standing)

    assert fault is not None
    assert (fault.kind, fault.rank) == ("engine-exited", 1)
    assert fault.message == "the engine of rank 1 was ended by signal 9"


def test_an_exit_with_code_zero_is_a_fault() -> None:
    fault = find_fault(look(rank(0, **exited(1.0, 0))))

    assert fault is not None
    assert fault.message == "the engine of rank 0 exited with code 0"


def test_silence_is_a_fault_only_beyond_the_limit() -> None:
    assert find_fault(look(rank(0, beat_age_s=14.0))) is None
    fault = find_fault(look(rank(0, beat_age_s=16.0)))

    assert fault is not None
    assert fault.kind == "beat-lost"


def test_a_rank_whose_launcher_has_not_reported_yet_is_no_fault() -> None:
    assert find_fault(look(rank(0, phase="absent", launcher_alive=False, beat_age_s=None))) is None


def test_an_attempt_without_trace_is_a_fault() -> None:
    fault = find_fault(look())

    assert fault is not None
    assert fault.kind == "attempt-unknown"


@pytest.mark.parametrize("name", ["vllm", "VLLM::Worker_TP0", "a b:c", ""])
def test_a_standing_process_survives_its_text(name: str) -> None:
    standing = StandingProcess(rank=1, process=ProcessRef(pid=5, start_ticks=7, name=name))

    assert standing.to_text() == f"1:5:7:{name}"
    assert StandingProcess.from_text(standing.to_text()) == standing


def test_an_attempts_summary_is_that_of_its_worst_rank() -> None:
    seen = look(
        rank(0, API, tail=("head",), beat_age_s=0.1),
        rank(1, CORE, tail=("first",), **exited(5.0)),
        rank(2, **exited(6.0)),
    )

    assert seen.phase == "ended"
    assert seen.exit is not None
    assert seen.exit.at == 5.0
    assert seen.tail == ("first",)
    assert seen.processes == (API, CORE)
    assert look(rank(0, tail=("head",)), rank(1, phase="waiting")).phase == "waiting"
    assert look(rank(0, tail=("head",)), rank(1)).tail == ("head",)
    assert look(rank(0), rank(1, beat_age_s=None)).beat_age_s is None
    assert look(rank(0), rank(1, beat_age_s=3.0)).beat_age_s == 3.0
    assert (look().phase, look().launcher_alive, look().tail) == ("absent", False, ())


def test_observations_survive_json() -> None:
    seen = look(rank(0, API, **exited(5.0)))

    assert Observation.model_validate_json(seen.model_dump_json()) == seen
