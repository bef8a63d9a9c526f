"""The configuration language: what it accepts, and how it refuses."""

# mypy: disable-error-code="arg-type, call-arg, dict-item, index, list-item, misc"

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from standfast import spec
from standfast.problems import Problem, ProblemsError
from standfast.spec import (
    Adapters,
    Compute,
    Deployment,
    DirectorySource,
    HubSource,
    Image,
    Inference,
    Launch,
    Model,
    Readiness,
    RetryBudget,
    Scaling,
    Secret,
    Trainer,
    Validation,
    WheelSource,
    memory_bytes,
    seconds,
)

CLASSES = [getattr(spec, name) for name in spec.__all__ if dataclasses.is_dataclass(getattr(spec, name))]


def refusals(make: Callable[[], Any]) -> tuple[Problem, ...]:
    with pytest.raises(ProblemsError) as caught:
        make()
    return caught.value.problems


def refusal(make: Callable[[], Any]) -> Problem:
    (problem,) = refusals(make)
    return problem


def deployment(**fields: Any) -> Deployment:
    given = {"name": "qwen", "model": Model(id="org/qwen"), "inference": Inference(engine="vllm"), **fields}
    return Deployment(**given)


# -- what it accepts ---------------------------------------------------------------------------------------------------


def test_model_id_model_source_and_served_name_are_distinct() -> None:
    made = deployment(model=Model(id="org/qwen", source=DirectorySource(path="/m")), served_name="chat")
    assert (made.name, made.model.id, made.resolved_served_name) == ("qwen", "org/qwen", "chat")
    assert deployment().resolved_served_name == "qwen"
    assert Model(id="org/qwen").resolved_source == HubSource(repo="org/qwen", revision="main")


def test_durations_and_memory_are_read_once_and_kept_as_values() -> None:
    readiness = Readiness(startup_timeout="1h30m", initialization_timeout=timedelta(minutes=5))
    assert readiness.startup_timeout == timedelta(minutes=90)
    assert seconds(readiness.generation_timeout) == 60.0
    assert memory_bytes(Compute(memory="2GiB").memory) == 2 * 2**30 == Compute(memory=2 * 2**30).memory


def test_replace_composes_a_variant_and_leaves_the_original() -> None:
    base = deployment()
    assert base.inference is not None
    long = dataclasses.replace(base, name="qwen-long", inference=dataclasses.replace(base.inference, context_length=9))
    assert (base.name, long.name, long.inference and long.inference.context_length) == ("qwen", "qwen-long", 9)


def test_replace_validates_again() -> None:
    assert refusal(lambda: dataclasses.replace(Scaling(), min_replicas=5)).help == "Write max_replicas=5 or more."
    assert refusal(lambda: dataclasses.replace(deployment(), inference=None)).message == "Deployment: needs a role."
    assert refusal(lambda: dataclasses.replace(deployment(), nam="x")).help == "Did you mean 'name'?"


def test_lists_become_tuples_and_mappings_freeze_deeply() -> None:
    options: dict[str, Any] = {"b": [1, {"c": 2}], "a": None}
    made = Inference(engine="vllm", options=options, extra_args=["--x", "1"])
    options["b"].append(3)
    assert made.extra_args == ("--x", "1")
    assert dict(made.options) == {"a": None, "b": (1, {"c": 2})}
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.engine = "sglang"
    with pytest.raises(TypeError, match="frozen"):
        made.options["b"] = 1


def test_environment_binds_text_or_the_name_of_a_secret() -> None:
    made = Inference(engine="vllm", environment={"HF_TOKEN": Secret("HF_TOKEN"), "A": "1"})
    assert dict(made.environment) == {"A": "1", "HF_TOKEN": Secret(name="HF_TOKEN")}


def test_what_later_work_puts_to_use_loads_already() -> None:
    trainer = Trainer(backend="miles", compute=Compute(gpu="H200", gpus=8, nodes=2), adapters=Adapters(slots=6))
    made = deployment(trainer=trainer, inference=Inference(engine="sglang", scaling=Scaling(min_replicas=0)))
    assert made.trainer is trainer


# -- unknown fields ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_misspelt_field_of_every_class_names_the_real_one(cls: type) -> None:
    for field in dataclasses.fields(cls):
        misspelt = f"{field.name[:-1]}{field.name[-1] * 2}x"
        unknown = [problem for problem in refusals(lambda: cls(**{misspelt: 1})) if problem.code == "unknown-field"]  # noqa: B023
        assert [problem.where for problem in unknown] == [f"{cls.__name__}.{misspelt}"]
        assert f"'{field.name}'" in unknown[0].help


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_name_like_no_field_gets_the_list_of_fields(cls: type) -> None:
    unknown = [problem for problem in refusals(lambda: cls(zzzzzz=1)) if problem.code == "unknown-field"]
    assert unknown[0].help == f"The fields are: {', '.join(field.name for field in dataclasses.fields(cls))}."


def test_a_trainer_has_no_min_instances_and_says_what_to_use() -> None:
    problem = refusal(lambda: Trainer(backend="miles", min_instances=1))
    assert "Inference(scaling=Scaling(min_replicas=...))" in problem.help
    assert "max_clients" in refusal(lambda: Trainer(backend="miles", max_instances=2)).help


def test_a_generic_timeout_is_refused_with_the_three_real_ones() -> None:
    help = refusal(lambda: Inference(engine="vllm", timeout="5m")).help
    assert all(word in help for word in ("startup_timeout", "generation_timeout", "stop_grace"))


def test_a_config_never_names_a_target() -> None:
    assert "--target" in refusal(lambda: deployment(target="local")).help


@pytest.mark.parametrize(
    ("make", "help"),
    [
        (lambda: Inference(engine="vllm", gpus=2), "write compute=Compute(gpus=...)"),
        (lambda: deployment(gpus=2), "write inference=Inference(compute=Compute(gpus=...))"),
        (lambda: deployment(engine="vllm"), "write inference=Inference(engine=...)"),
        (
            lambda: Inference(engine="vllm", min_replica=2),
            "'min_replicas' in a part: scaling=Scaling(min_replicas=...)",
        ),
        (lambda: Model(id="x", engine="vllm"), "It is a field of Image and Inference."),
        (lambda: Model(id="x", revision="a"), "write source=HubSource(revision=...)"),
    ],
)
def test_a_misplaced_field_is_sent_to_the_part_it_belongs_to(make: Callable[[], Any], help: str) -> None:
    assert help in refusal(make).help


# -- wrong values ------------------------------------------------------------------------------------------------------


def test_every_problem_of_an_object_is_reported_at_once() -> None:
    make = lambda: Inference(engine="vlm", context_length=0, timeout=1, extra_args="--a b", optons={})  # noqa: E731
    assert [problem.where for problem in refusals(make)] == [
        "Inference.engine",
        "Inference.context_length",
        "Inference.extra_args",
        "Inference.timeout",
        "Inference.optons",
    ]


@pytest.mark.parametrize(
    ("make", "message", "help"),
    [
        (lambda: Model("org/qwen"), "Model takes its fields by name only.", "Write Model(id=...)."),
        (lambda: Deployment(model=Model(id="x")), "Deployment needs the field 'name'.", "Write Deployment(name=...)."),
        (lambda: Inference(engine="vlm"), "Inference.engine must be 'vllm' or 'sglang'.", "Did you mean 'vllm'?"),
        (lambda: deployment(model="org/qwen"), "Deployment.model must be Model(...), not a value of", "Write Model("),
        (lambda: deployment(inference=Inference), "not the class Inference itself", "Write Inference(...)."),
        (lambda: deployment(inference={"engine": "vllm"}), "not a value of type dict", "Write Inference(...)."),
        (lambda: Model(id="x", source="org/qwen"), "HubSource(...) or DirectorySource(...) or WheelSource(...)", ""),
        (lambda: Inference(engine="vllm", image=3), "must be Image(...) or the name of a shipped image, not", ""),
        (lambda: deployment(name="Qwen 3.5"), "lower-case letters, digits and dashes", "Write 'qwen-3-5'."),
        (lambda: deployment(served_name="a b"), "letters, digits and any of _./:-", ""),
        (lambda: Compute(gpus=1), "gpus=1 needs the type of GPU", "Write gpu='H100', or gpu='any'."),
        (lambda: Compute(gpu="H100"), "needs gpus=1 or more per node", ""),
        (lambda: Compute(gpus=1.5), "must be a whole number", ""),
        (lambda: Compute(cpus=True), "must be a whole number", ""),
        (lambda: Compute(memory="32G"), "'32G' is not an amount of memory", "'32GiB'"),
        (lambda: Readiness(startup_timeout=900), "900 has no unit", "'15m'"),
        (lambda: Readiness(startup_timeout="0s", initialization_timeout="0s"), "must be longer than 0s", ""),
        (lambda: Readiness(startup_timeout="5m"), "initialization_timeout must not exceed startup_timeout", ""),
        (lambda: Launch(stagger="-1s"), "is not a duration", ""),
        (lambda: RetryBudget(initial_backoff="1h"), "initial_backoff must not exceed max_backoff", ""),
        (lambda: Validation(expect="("), "expect is not a regular expression", ""),
        (lambda: Inference(engine="vllm", extra_args="--a b"), "nothing here passes through a shell", ""),
        (lambda: Inference(engine="vllm", extra_args=["--a", 1]), "item 1 is a value of type int", "in quotes"),
        (lambda: Inference(engine="vllm", options=["a"]), "must be a mapping from names to values", ""),
        (lambda: Inference(engine="vllm", options={"a": {1}}), "at ['a']: a value of type set", ""),
        (lambda: Inference(engine="vllm", environment={"A": 1}), "A must be text", "in quotes"),
        (lambda: Inference(engine="vllm", environment={"A-B": "1"}), "'A-B' is not the name of", ""),
        (lambda: Image(name="i", engine="vllm", requirements=[]), "must not be empty", ""),
        (lambda: WheelSource(requirement="llm>=1", file="a.gguf"), "must pin a version", ""),
        (lambda: Trainer(backend="peft", tokens_per_gpu=1, tokens_per_microbatch=1), "the same thing twice", ""),
        (lambda: Trainer(backend="peft", max_clients=2), "all weights serves one client", "adapters=Adapters(...)"),
        (
            lambda: Trainer(backend="peft", adapters=Adapters(slots=2), max_clients=3),
            "exceeds the 2 slots",
            "Adapters(slots=3)",
        ),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_would_be_right(make: Callable[[], Any], message: str, help: str) -> None:
    problems = refusals(make)
    assert message in problems[0].message
    assert help in problems[0].help


def test_a_secret_given_by_value_is_refused_and_not_echoed() -> None:
    value = "hf_aBcDeFgHiJkLmNoP123"
    for make in (lambda: Secret(value), lambda: deployment(name=value), lambda: Model(id="x", source=value)):
        with pytest.raises(ProblemsError) as caught:
            make()
        assert value not in f"{caught.value} {caught.value.to_json()}"


def test_values_of_the_environment_are_never_echoed() -> None:
    for value in (31415926, ["31415926"], {"name": 31415926}, b"31415926"):
        with pytest.raises(ProblemsError) as caught:
            Inference(engine="vllm", environment={"PIN": value})
        assert "31415926" not in str(caught.value)
