"""SGLang without a GPU. No build of it for CPUs is published, so two packages that it imports are stood in for.

What stands in has names only: kernels of ``sgl_kernel`` raise when they are called, and the text path on a CPU calls
none of them. The engine, its server, its processes and their rendezvous are the real ones.
"""

from pathlib import Path

from standfast.spec import Image
from tests.support.wheels import tiny_wheel

_ANY_NAME = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
"""

_MODES = """
import enum

class InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
"""

_TORCHVISION = {
    "torchvision/__init__.py": '__version__ = "0.0.0"\nfrom . import io, transforms\n',
    "torchvision/io.py": _ANY_NAME,
    "torchvision/transforms/__init__.py": f"{_MODES}\nfrom . import functional\n{_ANY_NAME}",
    "torchvision/transforms/functional.py": f"from . import InterpolationMode\n{_ANY_NAME}",
    "torchvision/transforms/v2/__init__.py": "from . import functional\n",
    "torchvision/transforms/v2/functional.py": f"from .. import InterpolationMode\n{_ANY_NAME}",
}

_KERNELS = {
    "sgl_kernel/__init__.py": """
__version__ = "0.4.10"

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*arguments, **options):
        raise NotImplementedError(f"there is no kernel {name} for CPUs here")

    return kernel
"""
}

#: What SGLang requires for GPUs only, or for models and frontends that the tests do not use.
_LEFT_OUT = [
    "torchaudio",
    "torchcodec",
    "cuda-python",
    "flash-attn-4",
    "flashinfer_python",
    "humming-kernels",
    "nvidia-cutlass-dsl",
    "nvidia-mathdx",
    "nvshmem4py-cu13",
    "quack-kernels",
    "sgl-deep-ep",
    "sgl-deep-gemm",
    "sgl-flash-mla",
    "sglang-kernel",
    "tilelang",
    "torch_memory_saver",
    "timm",
    "tml-renderers",
    "deepseek-recipe",
    "modelscope",
    "smg-grpc-servicer",
    "blobfile",
]


def sglang_cpu_image(directory: Path) -> Image:
    """A recipe of the real SGLang for this machine's CPU; its stand-ins are written into ``directory``."""
    torchvision = tiny_wheel(directory, "torchvision", "0.0.0", _TORCHVISION)
    kernels = tiny_wheel(directory, "sgl-kernel", "0.4.10", _KERNELS)
    return Image(
        name="sglang-cpu",
        engine="sglang",
        requirements=("sglang==0.5.23", f"sgl-kernel @ {kernels.resolve().as_uri()}"),
        overrides=(
            "torch==2.13.0+cpu",
            f"torchvision @ {torchvision.resolve().as_uri()}",
            *(f'{name}; python_version < "3"' for name in _LEFT_OUT),
        ),
        accelerator="cpu",
    )
