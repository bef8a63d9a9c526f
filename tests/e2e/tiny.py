"""Small models with random weights, deployments of them, and code that runs in an engine's image."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from standfast.client import Client
from standfast.home import Home
from standfast.images.store import BuiltImage
from standfast.plans import bind
from standfast.plans.facts import BindFacts, RankFacts
from standfast.plans.records import RolePlan
from standfast.spec import Deployment, DirectorySource, Inference, Model, Readiness

#: Writes ``dense`` and ``experts`` into the directory that is its argument; needs torch, transformers and tokenizers.
MAKE_MODEL = """
import sys, torch, transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
special = ["<|endoftext|>", "<|end|>"]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
tokenizer.train_from_iterator(["a few words to learn from"] * 9, trainer)
torch.manual_seed(0)
shape = dict(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=4, head_dim=32, max_position_embeddings=512, tie_word_embeddings=False,
             bos_token_id=0, eos_token_id=1, pad_token_id=0)
experts = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, decoder_sparse_step=1)
for name, model in {
    "dense": transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape)),
    "experts": transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**shape, **experts)),
}.items():
    model.to(torch.bfloat16).save_pretrained(f"{sys.argv[1]}/{name}")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|endoftext|>"
    ).save_pretrained(f"{sys.argv[1]}/{name}")
"""


async def run_in_image(
    image: BuiltImage, code: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> str:
    """Run code with the image's Python, as engines run; returns what it printed."""
    base = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = await asyncio.create_subprocess_exec(
        *(str(image.python), "-I", "-c", code, *arguments),
        env={**base, "HF_HUB_OFFLINE": "1", **(environment or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await child.communicate()
    assert child.returncode == 0, errors.decode()[-2000:]
    return output.decode()


def tiny_deployment(name: str, model: Path, **inference: Any) -> Deployment:
    """A deployment of one of the small models; keywords are fields of ``Inference``."""
    return Deployment(
        name=name,
        model=Model(id=f"tiny/{model.name}", source=DirectorySource(path=str(model))),
        inference=Inference(context_length=256, readiness=Readiness(startup_timeout="20m"), **inference),
    )


@contextlib.asynccontextmanager
async def standing(home: Home, wanted: Sequence[Deployment]) -> AsyncIterator[Client]:
    """Bring deployments up side by side; they are retired at the end."""
    async with Client.connect(home) as client:
        try:
            await asyncio.gather(*(client.deploy(one) for one in wanted))
            yield client
        finally:
            await asyncio.gather(*(client.deprecate(one.name, reason="the test") for one in wanted))


def commands(role: RolePlan, model: Path) -> list[list[str]]:
    """What each rank of attempt ``a/1`` would be started with, less the executable."""
    facts = BindFacts(
        attempt="a/1",
        model_path=str(model),
        executable=("engine",),
        ranks=tuple(
            RankFacts(rank=rank.rank, host=f"n{rank.node}", address="127.0.0.1", port_base=21000, gpu_ids=())
            for rank in role.ranks
        ),
    )
    return [list(rank.argv[1:]) for rank in bind(role, 0, facts).ranks]
