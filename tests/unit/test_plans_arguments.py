"""What a config may pass to the engine, and how a refusal reads."""

from typing import Any

import pytest

from standfast.plans import resolve
from standfast.spec import Secret
from tests.unit.plans_cases import arguments_refused, deployment, inputs, options_refused, plan, refusals


def _argv(**inference: Any) -> tuple[str, ...]:
    generation = resolve(deployment(**inference), inputs())
    argv = plan(generation).head.argv
    return argv[argv.index("--tensor-parallel-size") + 2 :]


def _only_code(*tokens: str) -> str:
    (problem,) = arguments_refused(*tokens)
    return problem.code


# -- what passes -------------------------------------------------------------------------------------------------------


def test_values_become_tokens_by_their_type() -> None:
    assert _argv(
        options={
            "enforce_eager": True,
            "enable-prefix-caching": False,
            "cudagraph-capture-sizes": [1, 2],
            "max_num_seqs": 8,
            "gpu-memory-utilization": 0.5,
            "limit-mm-per-prompt": {"video": 0, "image": 1},
            "dtype": "bfloat16",
        }
    ) == (
        *("--cudagraph-capture-sizes", "1", "2"),
        *("--dtype", "bfloat16"),
        "--no-enable-prefix-caching",
        "--enforce-eager",
        *("--gpu-memory-utilization", "0.5"),
        *("--limit-mm-per-prompt", '{"image":1,"video":0}'),
        *("--max-num-seqs", "8"),
    )


def test_a_value_that_starts_with_a_dash_is_attached_to_its_flag() -> None:
    assert _argv(options={"seed": -1}) == ("--seed=-1",)


def test_extra_arguments_follow_the_options_as_written() -> None:
    tokens = ["--max_num_seqs=8", "-O2", "--compilation-config.mode", "3", "--compilation-config.debug", "true"]
    assert _argv(options={"seed": 1}, extra_args=tokens) == ("--seed", "1", *tokens)


@pytest.mark.parametrize(
    "tokens",
    [
        ("--max-num-batched-tokens", "131072"),
        ("--max-num-batched-tokens=131072",),
        ("--return-tokens-as-token-ids",),
        ("--long-prefill-token-threshold", "2048"),
        ("--enable-tokenizer-info-endpoint",),
    ],
)
def test_a_harmless_flag_that_contains_token_passes(tokens: tuple[str, ...]) -> None:
    assert arguments_refused(*tokens) == ()


# -- what does not exist -----------------------------------------------------------------------------------------------


def test_a_misspelt_option_names_the_nearest_real_one() -> None:
    (problem,) = options_refused({"max-num-seq": 8})
    assert problem.where == "Deployment.inference.options['max-num-seq']"
    assert problem.message == "vLLM 0.32.0 (image 9c1f04aa…) has no option --max-num-seq."
    assert problem.help == "Nearest: --max-num-seqs."


def test_a_misspelt_option_near_a_managed_one_names_the_field_to_use() -> None:
    (problem,) = options_refused({"tensor-paralel-size": 2})
    assert problem.message == "vLLM 0.32.0 (image 9c1f04aa…) has no option --tensor-paralel-size."
    assert problem.help == (
        "Nearest: --tensor-parallel-size, which Standfast manages: set Compute(gpus=2), or Parallelism(tensor=2)."
    )


def test_an_unknown_argument_is_refused_at_its_place() -> None:
    (problem,) = arguments_refused("--seed", "1", "--no-such-thing-anywhere", "x")
    assert problem.code == "unknown-option"
    assert problem.where == "Deployment.inference.extra_args[2]"


def test_an_option_written_with_dashes_says_how_to_write_it() -> None:
    (problem,) = options_refused({"--max_num_seqs": 8})
    assert problem.code == "spelled-option"
    assert problem.help == "Write 'max-num-seqs'."


# -- what does not fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"max-num-seqs": [1, 2]}, "wrong-arity"),
        ({"max-num-seqs": True}, "wrong-arity"),
        ({"max-num-seqs": "many"}, "wrong-value"),
        ({"max-num-seqs": None}, "no-value"),
        ({"enforce-eager": "yes"}, "wrong-arity"),
        ({"no-enforce-eager": False}, "wrong-arity"),
        ({"disable-log-stats": False}, "no-negation"),
        ({"dtype": "bf16"}, "wrong-value"),
        ({"cudagraph-capture-sizes": []}, "wrong-arity"),
        ({"seed": 1, "SEED": 1}, "unknown-option"),
        ({"max-num-seqs": 1, "max_num_seqs": 1}, "duplicate-option"),
        ({"enforce-eager": True, "no-enforce-eager": True}, "duplicate-option"),
        ({"generation-config": "@{address}"}, "placeholder"),
    ],
)
def test_an_option_that_the_engine_would_not_take_is_refused(options: dict[str, object], code: str) -> None:
    (problem,) = options_refused(options)
    assert problem.code == code


@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        (("--max-num-seqs",), "wrong-arity"),
        (("--max-num-seqs", "1", "2"), "loose-argument"),
        (("--max-num-seqs", "x"), "wrong-value"),
        (("--enforce-eager=1",), "wrong-arity"),
        (("--enforce-eager", "1"), "loose-argument"),
        (("--no-enforce-eager=1",), "wrong-arity"),
        (("--compilation-config.mode",), "wrong-arity"),
        (("--enforce-eager.mode", "1"), "wrong-arity"),
        (("--dtype.mode", "1"), "wrong-arity"),
        (("other/model",), "loose-argument"),
        (("--", "other/model"), "loose-argument"),
        (("-",), "loose-argument"),
        (("--max-num-seq", "1"), "abbreviated-option"),
        (("--mode", "x"), "ambiguous-option"),
        (("--watermark", "-0.5"), "ambiguous-value"),
        (("--seed", "1", "--seed=2"), "duplicate-option"),
        (("--enforce-eager", "--no-enforce-eager"), "duplicate-option"),
        (("--compilation-config.mode", "3", "-cc.debug", "1"), "duplicate-option"),
        (("--compilation-config.mode", "3", "--compilation-config", "{}"), "duplicate-option"),
        (("--generation-config=sk-abcdefghij0123456789",), "literal-secret"),
    ],
)
def test_an_argument_that_the_engine_would_not_take_is_refused(tokens: tuple[str, ...], code: str) -> None:
    problems = arguments_refused(*tokens)
    assert [problem.code for problem in problems][:1] == [code]


def test_a_setting_given_twice_names_both_places() -> None:
    (problem,) = refusals(deployment(options={"seed": 1}, extra_args=["--seed=2"]))
    assert problem.where == "Deployment.inference.extra_args[0]"
    assert "Deployment.inference.options['seed']" in problem.message


def test_a_repeatable_setting_may_be_given_twice() -> None:
    # --middleware is the one repeatable option of the list and is managed, so the rule is shown on a list of our own.
    from standfast.plans.arguments import ArgumentReader
    from standfast.plans.inspection import OptionSpec
    from standfast.plans.options import OptionList

    spec = OptionSpec(dest="tag", flags=("--tag",), minimum=1, maximum=1, repeatable=True)
    reader = ArgumentReader(OptionList((spec,)), engine="engine", where="Deployment.inference")
    (option,), (argument,) = reader.options({"tag": ["a", "b"]}), reader.arguments(["--tag", "c"])
    assert (option.value, option.tokens) == (["a", "b"], ("--tag", "a", "--tag", "b"))
    assert (argument.value, argument.tokens) == (["c"], ("--tag", "c"))
    assert reader.problems == []


# -- what Standfast manages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens",
    [
        ("--tensor-parallel-size", "2"),
        ("--tensor_parallel_size=2",),
        ("--tensor-par", "2"),
        ("-tp", "2"),
        ("-tp=2",),
        ("-t", "2"),
        ("-n2",),
        ("-r", "1"),
        ("-dp", "2"),
        ("--data-parallel-rank", "1"),
        ("-dpm",),
        ("-ep",),
        ("--enable-expert-parallel",),
        ("--no-enable-expert-parallel",),
        ("--no_enable_expert",),
        ("-dcp", "2"),
        ("--nnodes", "2"),
        ("--headless",),
        ("--model", "other"),
        ("--served-model-name", "x"),
        ("--served", "x"),
        ("--revision", "main"),
        ("--tokenizer", "other"),
        ("--lora-modules", "a=/b"),
        ("--spec-model", "x"),
        ("--speculative-config", '{"method": "eagle", "model": "x"}'),
        ("--speculative-config.model", "x"),
        ("-sc.model=x",),
        ("--config", "file.yaml"),
        ("--host", "0.0.0.0"),
        ("--port=1",),
        ("--uds", "/s"),
        ("--grpc",),
        ("--root-path", "/x"),
        ("--api-key", "abc"),
        ("--api_key=abc",),
        ("--hf-token",),
        ("--ssl-keyfile", "x"),
        ("--ssl-certf", "x"),
        ("--no-enable-ssl-refresh",),
        ("--middleware", "x"),
        ("--tool-parser-plugin", "x"),
        ("--logits-processors", "a", "b"),
        ("--distributed-executor-backend", "ray"),
        ("--worker-cls", "x"),
        ("--api-server-count", "2"),
        ("-asc", "2"),
        ("--kv-transfer-config", "{}"),
        ("--kv-transfer-config.kv_port=1",),
        ("--master-addr", "x"),
        ("--master-p", "1"),
        ("--distributed-timeout-seconds", "1"),
        ("--shutdown-timeout", "1"),
        ("--max-model-len", "1k"),
    ],
)
def test_what_standfast_manages_is_refused_in_every_spelling(tokens: tuple[str, ...]) -> None:
    (problem,) = arguments_refused(*tokens)
    assert problem.code == "managed-option"
    assert problem.where == "Deployment.inference.extra_args[0]"
    assert problem.help


@pytest.mark.parametrize(
    "key",
    ["tensor-parallel-size", "tensor_parallel_size", "tp", "no-enable-expert-parallel", "model", "port", "api_key"],
)
def test_a_managed_option_is_refused_by_every_name(key: str) -> None:
    assert [problem.code for problem in options_refused({key: 2})] == ["managed-option"]


def test_a_managed_key_inside_a_setting_is_refused() -> None:
    (problem,) = options_refused({"speculative_config": {"method": "eagle", "model": "x"}})
    assert problem.code == "managed-option"
    assert "--speculative-config.model" in problem.message
    assert options_refused({"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}) == ()


def test_a_refusal_says_what_was_written_and_what_to_write() -> None:
    (problem,) = arguments_refused("-tp=4")
    assert problem.message == (
        "-tp is --tensor-parallel-size, which decides tensor parallelism, and Standfast manages that."
    )
    assert problem.help == "Set Compute(gpus=4), or Parallelism(tensor=4)."
    assert problem.value == "4"


def test_every_problem_is_reported_at_once() -> None:
    problems = refusals(
        deployment(
            options={"max-num-seq": 1, "port": 1},
            extra_args=["--dtype", "bf16", "loose"],
            environment={"RANK": "1", "HF_TOKEN": "literal"},
        )
    )
    assert [problem.code for problem in problems] == [
        *("literal-secret", "managed-variable", "unknown-option", "managed-option", "wrong-value", "loose-argument")
    ]


# -- variables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *(
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "MASTER_ADDR",
            "MASTER_PORT",
            "VLLM_PORT",
            "VLLM_HOST_IP",
            "VLLM_DP_RANK",
        ),
        *("CUDA_VISIBLE_DEVICES", "SLURM_PROCID", "TORCHELASTIC_RUN_ID", "STANDFAST_ATTEMPT", "PYTHONPATH"),
        *("VLLM_PLUGINS", "VLLM_API_KEY"),
    ],
)
@pytest.mark.parametrize("value", ["1", Secret("A")])
def test_a_managed_variable_is_refused(name: str, value: str | Secret) -> None:
    (problem,) = refusals(deployment(environment={name: value}))
    assert problem.code == "managed-variable"
    assert problem.where == f"Deployment.inference.environment[{name!r}]"


@pytest.mark.parametrize(
    "environment", [{"HF_TOKEN": "x"}, {"MY_API_KEY": "x"}, {"DB_PASSWORD": "x"}, {"NOTES": "hf_abcdefgh12345678"}]
)
def test_a_literal_secret_is_refused_and_not_echoed(environment: dict[str, str]) -> None:
    (problem,) = refusals(deployment(environment=environment))
    assert problem.code == "literal-secret"
    assert "hf_abcdefgh12345678" not in problem.render()
    assert "Secret(" in problem.help


def test_a_config_may_override_what_standfast_only_suggests() -> None:
    generation = resolve(deployment(environment={"OMP_NUM_THREADS": "7", "HF_HUB_OFFLINE": "0"}), inputs())
    environment = {binding.name: binding.value for binding in plan(generation).head.environment}
    assert environment["OMP_NUM_THREADS"] == "7"
    assert environment["HF_HUB_OFFLINE"] == "0"
