"""SGLang's settings: what is planned, what the engine's rules refuse, and what a config may not set."""

from typing import Any

import pytest

from standfast.plans import bind, resolve
from standfast.plans.ownership import owner_of
from standfast.problems import ProblemsError
from standfast.spec import Compute, Deployment, Parallelism, Scaling
from tests.unit.plans_cases import (
    MODEL,
    SGLANG_CPU_IMAGE,
    SGLANG_INSPECTION,
    facts,
    plan,
    refusals,
    sglang,
    sglang_inputs,
)

_MANAGED = """
model_path tokenizer_path served_model_name weight_version revision context_length host port nccl_port
dist_init_addr nnodes node_rank tp_size pp_size dp_size attn_dp_size ep_size attn_cp_size moe_dp_size dwdp_size
enable_dp_attention base_gpu_id gpu_id_step device numa_node dist_timeout watchdog_timeout api_key admin_api_key
grpc_port smg_grpc_mode lora_paths speculative_draft_model_path disaggregation_mode disaggregation_bootstrap_port
decoupled_spec_bind_endpoint encoder_urls use_ray tokenizer_worker_num sidecar forward_hooks custom_weight_loader
custom_sigquit_handler enable_http2 ssl_keyfile elastic_ep_backend max_ep_size gated_launch_port
delete_ckpt_after_loading remote_instance_weight_loader_seed_instance_ip
"""
_TUNING = """
max_total_tokens speculative_num_draft_tokens speculative_token_map stream_interval mem_fraction_static
max_running_requests chunked_prefill_size schedule_policy attention_backend tool_call_parser reasoning_parser
quantization dtype kv_cache_dtype enable_lora max_lora_rank speculative_algorithm speculative_draft_load_format
disable_cuda_graph log_level tokenizer_mode enable_tokenizer_batch_encode disable_radix_cache random_seed
tbo_token_distribution_threshold num_reserved_decode_tokens chat_template trust_remote_code
"""

GPUS = Compute(gpu="H100", gpus=8, cpus=64, memory="1TiB")
TWO = Compute(gpu="H100", gpus=8, nodes=2, cpus=64, memory="1TiB")


def settings(wanted: Deployment, *, rank: int = 0) -> dict[str, str]:
    """The settings of one bound rank."""
    role = plan(resolve(wanted, sglang_inputs()))
    bound = bind(role, 0, facts(role))
    tokens = bound.ranks[rank].argv[len(facts(role).executable) :]
    return dict(token.split("=", 1) for token in tokens)


def codes(wanted: Deployment) -> list[tuple[str, str]]:
    return [(problem.code, problem.where) for problem in refusals(wanted, sglang_inputs())]


def test_a_bound_rank_is_complete() -> None:
    made = settings(sglang(compute=TWO), rank=1)
    assert made["model_path"] == "/weights/qwen"
    assert made["served_model_name"] == "sg"
    assert made["weight_version"].endswith("/inference/0/1")
    assert (made["host"], made["port:"]) == ("10.0.0.2", "20000")
    assert made["dist_init_addr"] == "10.0.0.1:20002"
    assert (made["nnodes:"], made["node_rank:"], made["tp_size:"], made["pp_size:"]) == ("2", "1", "8", "2")


def test_what_is_asked_for_goes_by_the_parameters_names() -> None:
    made = settings(
        sglang(
            compute=GPUS,
            options={"tool-call-parser": "qwen", "disable_radix_cache": False, "json_model_override_args": {"a": 1}},
            extra_args=["--lora-target-modules", "q_proj", "k_proj", "--max-running-requests=4", "--enable-lora"],
        )
    )
    assert made["tool_call_parser"] == "qwen"
    assert made["disable_radix_cache:"] == "false"
    assert made["json_model_override_args"] == '{"a":1}'
    assert made["lora_target_modules:"] == '["q_proj","k_proj"]'
    assert made["max_running_requests:"] == "4"
    assert made["enable_lora:"] == "true"


def test_attention_data_parallelism_divides_one_tensor_group_and_meets_at_the_head() -> None:
    parallelism = Parallelism(tensor=1, data=8, data_parallel_attention=True)
    made = settings(sglang(compute=GPUS, parallelism=parallelism))
    assert (made["tp_size:"], made["attn_dp_size:"]) == ("8", "8")
    assert made["dist_init_addr"] == "10.0.0.1:20002"
    assert "nccl_port:" not in made


def test_an_image_without_the_newer_name_gets_the_older_ones() -> None:
    older = SGLANG_INSPECTION.model_copy(
        update={"options": tuple(spec for spec in SGLANG_INSPECTION.options if spec.dest != "attn_dp_size")}
    )
    given = sglang_inputs().model_copy(update={"inspection": older})
    parallelism = Parallelism(tensor=1, data=8, data_parallel_attention=True)
    [rank] = plan(resolve(sglang(compute=GPUS, parallelism=parallelism), given)).ranks
    assert {"dp_size:=8", "enable_dp_attention:=true", "tp_size:=8"} <= set(rank.argv)


def test_data_parallel_copies_choose_ports_of_their_own() -> None:
    made = settings(sglang(compute=GPUS, parallelism=Parallelism(tensor=2, data=4)))
    assert (made["tp_size:"], made["dp_size:"]) == ("2", "4")
    assert "nccl_port:" not in made and "dist_init_addr" not in made


def test_every_port_lies_in_the_span_of_its_rank() -> None:
    parallelism = Parallelism(tensor=1, data=16, expert=16, data_parallel_attention=True)
    head, follower = plan(resolve(sglang(compute=TWO, parallelism=parallelism), sglang_inputs())).ranks
    offsets = dict(head.claim.ports.offsets)
    # The engine opens six ports after the rendezvous, and the thirteenth after it.
    assert offsets["derived"] == offsets["rendezvous"] + 1
    assert offsets["handshake"] == offsets["rendezvous"] + 13 < head.claim.ports.count
    assert [name for name, _ in follower.claim.ports.offsets] == ["http"]


def test_ranks_on_a_cpu_are_told_their_cores() -> None:
    wanted = sglang(compute=Compute(nodes=2, cpus=4), parallelism=Parallelism(tensor=4, pipeline=1))
    [head, _] = plan(resolve(wanted, sglang_inputs(SGLANG_CPU_IMAGE))).ranks
    variables = {binding.name: binding.value for binding in head.environment}
    assert variables["SGLANG_CPU_OMP_THREADS_BIND"] == "0-1|2-3|0-1|2-3"
    assert variables["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"compute": TWO, "parallelism": Parallelism(tensor=8, data=2)}, "data"),
        ({"compute": GPUS, "parallelism": Parallelism(tensor=2, data=4, expert=8)}, "expert"),
        (
            {"compute": TWO, "parallelism": Parallelism(tensor=4, data=2, pipeline=2, data_parallel_attention=True)},
            "data_parallel_attention",
        ),
    ],
)
def test_the_engines_own_rules_refuse_a_topology(fields: dict[str, Any], field: str) -> None:
    problems = refusals(sglang(**fields), sglang_inputs())
    assert [(problem.code, problem.where) for problem in problems] == [
        ("engine-topology", f"Deployment.inference.parallelism.{field}")
    ]
    assert all(problem.limit and problem.help and problem.value for problem in problems)


def test_a_colon_in_the_served_name_is_refused() -> None:
    wanted = Deployment(name="m", model=MODEL, served_name="org:m", inference=sglang(compute=GPUS).inference)
    assert codes(wanted) == [("served-name", "Deployment.served_name")]


@pytest.mark.parametrize(
    "options", [{"speculative_algorithm": "NGRAM"}, {"disable_overlap_schedule": False}], ids=["speculation", "overlap"]
)
def test_a_pipeline_excludes_speculation_and_overlap(options: dict[str, Any]) -> None:
    assert codes(sglang(compute=TWO, options=options))[0][0] == "option-clash"
    assert codes(sglang(compute=GPUS, options=options)) == []


@pytest.mark.parametrize(
    "name",
    [
        "model_path",
        "tokenizer_path",
        "served_model_name",
        "weight_version",
        "revision",
        "context_length",
        "host",
        "port",
        "nccl_port",
        "dist_init_addr",
        "nnodes",
        "node_rank",
        "tp_size",
        "pp_size",
        "dp_size",
        "attn_dp_size",
        "ep_size",
        "attn_cp_size",
        "moe_dp_size",
        "dwdp_size",
        "enable_dp_attention",
        "base_gpu_id",
        "gpu_id_step",
        "device",
        "numa_node",
        "dist_timeout",
        "watchdog_timeout",
        "api_key",
        "admin_api_key",
        "grpc_port",
        "smg_grpc_mode",
        "lora_paths",
        "speculative_draft_model_path",
        "disaggregation_mode",
        "disaggregation_bootstrap_port",
        "decoupled_spec_bind_endpoint",
        "encoder_urls",
        "use_ray",
        "tokenizer_worker_num",
        "sidecar",
        "forward_hooks",
        "custom_weight_loader",
        "custom_sigquit_handler",
        "enable_http2",
        "ssl_keyfile",
        "elastic_ep_backend",
        "max_ep_size",
        "gated_launch_port",
        "delete_ckpt_after_loading",
        "remote_instance_weight_loader_seed_instance_ip",
    ],
)
def test_what_decides_identity_topology_ports_and_processes_is_managed(name: str) -> None:
    [spec, *_] = [option for option in SGLANG_INSPECTION.options if option.dest == name]
    assert owner_of(spec) is not None


@pytest.mark.parametrize(
    "name",
    [
        "max_total_tokens",
        "speculative_num_draft_tokens",
        "speculative_token_map",
        "stream_interval",
        "mem_fraction_static",
        "max_running_requests",
        "chunked_prefill_size",
        "schedule_policy",
        "attention_backend",
        "tool_call_parser",
        "reasoning_parser",
        "quantization",
        "dtype",
        "kv_cache_dtype",
        "enable_lora",
        "max_lora_rank",
        "speculative_algorithm",
        "speculative_draft_load_format",
        "disable_cuda_graph",
        "log_level",
        "tokenizer_mode",
        "enable_tokenizer_batch_encode",
        "disable_radix_cache",
        "random_seed",
        "tbo_token_distribution_threshold",
        "num_reserved_decode_tokens",
        "chat_template",
        "trust_remote_code",
    ],
)
def test_what_only_tunes_may_be_set(name: str) -> None:
    [spec, *_] = [option for option in SGLANG_INSPECTION.options if option.dest == name]
    assert owner_of(spec) is None


@pytest.mark.parametrize("spelling", ["tp", "tensor-parallel-size", "tensor_parallel_size", "tp_size"])
def test_a_managed_parameter_is_found_in_any_spelling(spelling: str) -> None:
    problems = refusals(sglang(compute=GPUS, extra_args=[f"--{spelling}", "2"]), sglang_inputs())
    assert [problem.code for problem in problems] in (["managed-option"], ["ambiguous-option"])


def test_a_misspelt_parameter_names_the_nearest_real_one() -> None:
    [problem] = refusals(sglang(compute=GPUS, options={"mem-fracton-static": 0.8}), sglang_inputs())
    assert problem.code == "unknown-option" and "--mem-fraction-static" in problem.help
    assert "SGLang 0.5.23" in problem.message


def test_replicas_are_lanes_of_their_own() -> None:
    wanted = sglang(
        compute=Compute(gpu="H100", gpus=2, cpus=8, memory="64GiB"), scaling=Scaling(min_replicas=2, max_replicas=2)
    )
    with_room = resolve(wanted, sglang_inputs())
    assert len(plan(with_room).replicas) == 2


def test_an_engine_without_a_parameter_that_is_needed_is_refused() -> None:
    lacking = SGLANG_INSPECTION.model_copy(
        update={"options": tuple(spec for spec in SGLANG_INSPECTION.options if spec.dest != "weight_version")}
    )
    with pytest.raises(ProblemsError) as refusal:
        resolve(sglang(compute=GPUS), sglang_inputs().model_copy(update={"inspection": lacking}))
    assert [problem.code for problem in refusal.value.problems] == ["engine-lacks-option"]
