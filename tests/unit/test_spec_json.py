"""A deployment survives JSON, pickling and copying, with every field set to something of its own."""

import copy
import dataclasses
import json
import pickle
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from standfast.plans.record import canonical_json
from standfast.spec import (
    Adapters,
    Backpressure,
    Compute,
    Deployment,
    DirectorySource,
    HubSource,
    Image,
    Inference,
    Launch,
    Model,
    Optimizer,
    Parallelism,
    Readiness,
    RetryBudget,
    Scaling,
    Secret,
    Trainer,
    Validation,
    WheelSource,
)
from tests.unit.test_values import json_values

DEPLOYMENT = TypeAdapter(Deployment)

counts = st.integers(min_value=1, max_value=10**6)
sizes = st.none() | counts
durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=400))
lengthy = st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=400))
names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
tokens = st.lists(st.text(min_size=1), max_size=3).map(tuple)
variables = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True)
literals = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
environments = st.dictionaries(variables, literals | st.builds(Secret, st.sampled_from(["HF_TOKEN", "A"])), max_size=3)
options = st.dictionaries(st.text(), json_values, max_size=3)
rates = st.floats(min_value=0, max_value=1, exclude_max=True)
parallelism = st.builds(
    Parallelism,
    tensor=sizes,
    pipeline=sizes,
    data=sizes,
    expert=sizes,
    context=sizes,
    sequence=st.none() | st.booleans(),
)
compute = st.builds(Compute, cpus=counts, memory=counts, nodes=counts) | st.builds(
    Compute, gpu=st.sampled_from(["H100", "any"]), gpus=counts
)
images = st.builds(
    Image,
    name=names,
    engine=st.sampled_from(["vllm", "sglang"]),
    requirements=st.just(("vllm",)),
    environment=environments,
)
readiness = lengthy.map(lambda value: Readiness(startup_timeout=value, initialization_timeout=value))
launches = st.builds(Launch, standoff=durations, stagger=durations, stop_grace=durations)
inferences = st.builds(
    Inference,
    engine=st.sampled_from(["vllm", "sglang"]),
    compute=compute,
    parallelism=parallelism,
    scaling=counts.map(lambda count: Scaling(min_replicas=0, max_replicas=count)),
    context_length=sizes,
    options=options,
    extra_args=tokens,
    environment=environments,
    image=st.none() | names | images,
    readiness=readiness,
    backpressure=st.builds(Backpressure, max_waiting=counts, retry_after=durations),
    launch=launches,
)
trainers = st.builds(
    Trainer,
    backend=st.sampled_from(["megatron", "miles", "peft"]),
    compute=compute,
    parallelism=parallelism,
    adapters=st.none() | st.builds(Adapters, rank=counts, dropout=rates, targets=st.just(("a", "b"))),
    optimizer=st.builds(Optimizer, learning_rate=rates, beta1=rates, min_learning_rate=st.none() | rates),
    options=options,
    environment=environments,
)
sources = (
    st.none()
    | st.builds(HubSource, repo=st.just("org/model"), revision=st.text(min_size=1))
    | st.builds(DirectorySource, path=st.text(min_size=1))
    | st.just(WheelSource(requirement="a==1", file="a.gguf"))
)
deployments = st.builds(
    Deployment,
    name=names,
    model=st.builds(Model, id=st.text(min_size=1), source=sources),
    inference=inferences,
    trainer=st.none() | trainers,
    served_name=st.none() | st.from_regex(r"[\w./:-]{1,20}", fullmatch=True).filter(str.isascii),
    visible=st.booleans(),
    description=st.text(),
    retry=st.builds(RetryBudget, attempts=counts, window=lengthy),
    validation=st.builds(Validation, prompt=st.text(min_size=1), max_tokens=counts, timeout=lengthy),
)


@settings(max_examples=40, deadline=None)
@given(deployments)
def test_a_deployment_survives_json_pickling_and_copying(made: Deployment) -> None:
    text = DEPLOYMENT.dump_json(made)
    assert DEPLOYMENT.validate_json(text) == made
    assert DEPLOYMENT.validate_json(canonical_json(DEPLOYMENT.dump_python(made, mode="json"))) == made
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == dataclasses.replace(made) == made
    assert hash(copy.deepcopy(made)) == hash(made)


def test_equal_settings_give_the_same_json_in_any_order_of_keys() -> None:
    def text(options: dict[str, Any], environment: dict[str, Any]) -> bytes:
        inference = Inference(engine="vllm", options=options, environment=environment)
        return DEPLOYMENT.dump_json(Deployment(name="a", model=Model(id="m"), inference=inference))

    assert text({"a": 1, "b": {"c": 1, "d": 2}}, {"X": "1", "Y": "2"}) == text(
        {"b": {"d": 2, "c": 1}, "a": 1}, {"Y": "2", "X": "1"}
    )


def test_json_holds_readable_sizes_and_secrets_by_name() -> None:
    made = Deployment(
        name="a",
        model=Model(id="m"),
        inference=Inference(
            engine="vllm", compute=Compute(memory="2GiB"), environment={"HF_TOKEN": Secret("HF_TOKEN"), "A": "1"}
        ),
    )
    inference = json.loads(DEPLOYMENT.dump_json(made))["inference"]
    assert inference["compute"]["memory"] == "2GiB"
    assert inference["readiness"]["startup_timeout"] == "15m"
    assert inference["environment"] == {"A": "1", "HF_TOKEN": {"name": "HF_TOKEN"}}
