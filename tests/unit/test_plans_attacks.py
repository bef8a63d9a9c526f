"""Ways around what Standfast manages, settings that could not work, and sizes that nobody has."""

from typing import Any

import pytest

from standfast.plans import resolve
from standfast.plans.stored import read_generation
from standfast.problems import ProblemsError
from standfast.spec import Compute, Deployment, Inference, Parallelism
from tests.unit.plans_cases import (
    GPU_IMAGE,
    MODEL,
    arguments_refused,
    deployment,
    inputs,
    options_refused,
    plan,
    refusals,
    sglang,
    sglang_inputs,
)

_GPU = Compute(gpu="H100", gpus=4, cpus=16, memory="128GiB")


def _sglang_argv(**inference: Any) -> tuple[str, ...]:
    return plan(resolve(sglang(compute=_GPU, **inference), sglang_inputs())).head.argv


@pytest.mark.parametrize("value", ['{"model": "x"}', ' [{"model": "x"}]', [{"model": "x"}]])
def test_json_that_is_written_as_text_or_in_a_list_holds_no_managed_key(value: Any) -> None:
    assert "managed-option" in {problem.code for problem in options_refused({"speculative-config": value})}


def test_every_managed_key_of_a_setting_is_named() -> None:
    problems = options_refused({"speculative-config": {"model": "x", "draft_tensor_parallel_size": 2}})
    assert len(problems) == 2


@pytest.mark.parametrize("flag", ["api-key", "hf-token"])
def test_the_value_of_a_managed_credential_is_not_echoed(flag: str) -> None:
    for problem in (*options_refused({flag: "hunter2"}), *arguments_refused(f"--{flag}", "hunter2")):
        assert problem.code == "managed-option"
        assert "hunter2" not in problem.model_dump_json()


def test_a_served_name_cannot_be_read_as_a_flag() -> None:
    named = Deployment(name="q", model=MODEL, served_name="--headless", inference=Inference(engine="vllm"))
    (problem,) = refusals(named)
    assert (problem.code, problem.where) == ("served-name", "Deployment.served_name")


def test_an_option_that_takes_json_is_given_json() -> None:
    argv = plan(resolve(deployment(options={"allowed-origins": ["http://a", "b"]}), inputs())).head.argv
    assert argv[-1] == '["http://a","b"]'
    (problem,) = options_refused({"allowed-origins": "*"})
    assert (problem.code, problem.limit) == ("wrong-value", "JSON")


def test_a_list_of_one_is_the_value_of_an_option_that_takes_one() -> None:
    argv = _sglang_argv(options={"attention-backend": ["fa3"], "page-size": [4]})
    assert {"attention_backend=fa3", "page_size:=4"} <= set(argv)


@pytest.mark.parametrize(
    "inference",
    [
        {"options": {"model-checksum": True}},
        {"options": {"model-checksum": False}},
        {"extra_args": ["--model-checksum"]},
        {"extra_args": ["--uvicorn-access-log-exclude-prefixes"]},
    ],
)
def test_a_setting_by_name_needs_its_value(inference: dict[str, Any]) -> None:
    (problem,) = refusals(sglang(compute=_GPU, **inference), sglang_inputs())
    assert problem.code == "wrong-arity"


@pytest.mark.parametrize(
    "name",
    [
        *("VLLM_MODEL_REDIRECT_PATH", "VLLM_USE_MODELSCOPE", "SGLANG_EXTERNAL_MODEL_PACKAGE", "NCCL_COMM_ID"),
        *("WEB_CONCURRENCY", "VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
    ],
)
def test_variables_that_decide_what_the_plan_decides_are_managed(name: str) -> None:
    (problem,) = refusals(deployment(environment={name: "1"}))
    assert problem.code == "managed-variable"


def test_text_that_no_command_can_carry_is_refused() -> None:
    (problem,) = options_refused({"chat-template": "a\0b"})
    assert problem.code == "unwritable"
    with pytest.raises(ProblemsError):
        deployment(extra_args=["--chat-template", "a\0b"])
    with pytest.raises(ProblemsError):
        deployment(options={"chat-template": "\ud800"})


def test_a_number_that_json_cannot_carry_is_refused() -> None:
    with pytest.raises(ProblemsError):
        deployment(options={"max-num-seqs": 10**5000})


def test_an_absurd_size_is_refused_without_a_search() -> None:
    problems = refusals(deployment(compute=_GPU, parallelism=Parallelism(expert=10**15)), inputs(GPU_IMAGE))
    assert "expert-misfit" in {problem.code for problem in problems}


def test_what_is_no_generation_of_an_earlier_version_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="version 1"):
        read_generation('{"schema_version": 1, "inference": {}}')
