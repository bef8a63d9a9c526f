"""The options of ``vllm serve``: a subset of the real ones, with their real spellings, arities and choices."""

import argparse
import json

from vllm.utils.argparse_utils import FlexibleArgumentParser

_DTYPES = ("auto", "bfloat16", "float", "float16", "float32", "half")


def make_arg_parser(parser: FlexibleArgumentParser) -> FlexibleArgumentParser:
    """Add the options of ``serve`` to ``parser``."""
    flag = argparse.BooleanOptionalAction
    parser.add_argument("model_tag", type=str, nargs="?", help="The model to serve")
    parser.add_argument("--headless", action="store_true", default=False)
    parser.add_argument("--api-server-count", "-asc", type=int, default=None)
    parser.add_argument("--config", help="Read options from a file")

    frontend = parser.add_argument_group("Frontend")
    frontend.add_argument("--host", type=str, default=None)
    frontend.add_argument("--port", type=int, default=8000)
    frontend.add_argument("--uds", type=str, default=None)
    frontend.add_argument("--uvicorn-log-level", choices=["critical", "debug", "error", "info", "trace", "warning"])
    frontend.add_argument("--disable-uvicorn-access-log", action=flag, default=False)
    frontend.add_argument("--allowed-origins", type=json.loads, default=["*"])
    frontend.add_argument("--api-key", type=str, nargs="*", default=None)
    frontend.add_argument("--root-path", type=str, default=None)
    frontend.add_argument("--middleware", type=str, action="append", default=[])
    frontend.add_argument("--lora-modules", type=str, nargs="+", default=None)
    frontend.add_argument("--chat-template", type=str, default=None)
    frontend.add_argument("--response-role", type=str, default="assistant")
    frontend.add_argument("--enable-auto-tool-choice", action=flag, default=False)
    frontend.add_argument("--tool-call-parser", type=str, default=None)
    frontend.add_argument("--enable-server-load-tracking", action=flag, default=False)

    model = parser.add_argument_group("ModelConfig")
    model.add_argument("--model", type=str, default="Qwen/Qwen3-0.6B")
    model.add_argument("--tokenizer", type=str, default=None)
    model.add_argument("--trust-remote-code", action=flag, default=False)
    model.add_argument("--dtype", choices=_DTYPES, default="auto")
    model.add_argument("--seed", type=int, default=0)
    model.add_argument("--revision", type=str, default=None)
    model.add_argument("--max-model-len", type=_human_int, default=None)
    model.add_argument("--quantization", "-q", type=str, default=None)
    model.add_argument("--enforce-eager", action=flag, default=False)
    model.add_argument("--served-model-name", type=str, nargs="+", default=None)
    model.add_argument("--generation-config", type=str, default="auto")
    model.add_argument("--override-generation-config", type=json.loads, default={})
    model.add_argument("--max-logprobs", type=int, default=20)

    load = parser.add_argument_group("LoadConfig")
    load.add_argument("--load-format", type=str, default="auto")
    load.add_argument("--download-dir", type=str, default=None)

    parallel = parser.add_argument_group("ParallelConfig")
    parallel.add_argument("--distributed-executor-backend", choices=["external_launcher", "mp", "ray", "uni"])
    parallel.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1)
    parallel.add_argument("--master-addr", type=str, default="127.0.0.1")
    parallel.add_argument("--master-port", type=int, default=29501)
    parallel.add_argument("--nnodes", "-n", type=int, default=1)
    parallel.add_argument("--node-rank", "-r", type=int, default=0)
    parallel.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parallel.add_argument("--data-parallel-size", "-dp", type=int, default=1)
    parallel.add_argument("--data-parallel-size-local", "-dpl", type=int, default=None)
    parallel.add_argument("--data-parallel-address", "-dpa", type=str, default=None)
    parallel.add_argument("--data-parallel-rpc-port", "-dpp", type=int, default=None)
    parallel.add_argument("--data-parallel-start-rank", "-dpr", type=int, default=None)
    parallel.add_argument("--data-parallel-backend", choices=["mp", "ray"], default="mp")
    parallel.add_argument("--distributed-timeout-seconds", type=int, default=None)
    parallel.add_argument("--enable-expert-parallel", "-ep", action=flag, default=False)
    parallel.add_argument("--disable-custom-all-reduce", action=flag, default=False)

    cache = parser.add_argument_group("CacheConfig")
    cache.add_argument("--block-size", type=int, choices=[1, 8, 16, 32, 64, 128, 256], default=None)
    cache.add_argument("--gpu-memory-utilization", type=float, default=0.92)
    cache.add_argument("--kv-cache-dtype", choices=["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"], default="auto")
    cache.add_argument("--enable-prefix-caching", action=flag, default=None)
    cache.add_argument("--swap-space", type=float, default=4)
    cache.add_argument("--cpu-offload-gb", type=float, default=0)

    lora = parser.add_argument_group("LoRAConfig")
    lora.add_argument("--enable-lora", action=flag, default=None)
    lora.add_argument("--max-loras", type=int, default=1)
    lora.add_argument("--max-lora-rank", type=int, choices=[1, 8, 16, 32, 64, 128, 256, 320, 512], default=16)

    scheduler = parser.add_argument_group("SchedulerConfig")
    scheduler.add_argument("--max-num-batched-tokens", type=_human_int, default=None)
    scheduler.add_argument("--max-num-seqs", type=int, default=None)
    scheduler.add_argument("--enable-chunked-prefill", action=flag, default=None)
    scheduler.add_argument("--scheduling-policy", choices=["fcfs", "priority"], default="fcfs")
    scheduler.add_argument("--async-scheduling", action=flag, default=None)

    engine = parser.add_argument_group("VllmConfig")
    engine.add_argument("--compilation-config", "-cc", type=json.loads, default={})
    engine.add_argument("--speculative-config", type=json.loads, default=None)
    engine.add_argument("--kv-transfer-config", type=json.loads, default=None)
    engine.add_argument("--additional-config", type=json.loads, default={})
    engine.add_argument("--disable-log-stats", action="store_true")
    engine.add_argument("--enable-log-requests", action=flag, default=False)
    return parser


def _human_int(text: str) -> int:
    """``"2048"``, ``"2k"`` (2000) or ``"2K"`` (2048)."""
    units = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    if text and text[-1] in units:
        return int(float(text[:-1]) * units[text[-1]])
    return int(text)
