"""The engines that can be planned, by the name that a config gives them."""

from standfast.plans.engines import Engine
from standfast.plans.sglang import Sglang
from standfast.plans.vllm import Vllm

ENGINES: dict[str, Engine] = {"vllm": Vllm(), "sglang": Sglang()}
