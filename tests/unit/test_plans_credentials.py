"""A credential that somebody types into a config is refused before it travels, in whatever field it stands."""

import copy
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from standfast.plans import check
from standfast.problems import ProblemsError
from standfast.spec import (
    Adapters,
    Compute,
    Deployment,
    DirectorySource,
    HubSource,
    Image,
    Inference,
    Model,
    Optimizer,
    Parallelism,
    Secret,
    Trainer,
    Validation,
    WheelSource,
)

DEPLOYMENT = TypeAdapter(Deployment)
SECRETS = ("hf_abcdefgh12345678", "sk-abcdefgh12345678")

PARALLELISM = Parallelism(tensor=1, pipeline=1, data=1, expert=1, expert_tensor=1, context=1, sequence=True)
IMAGE = Image(
    name="own",
    engine="vllm",
    requirements=["vllm==1"],
    overrides=["torch==2"],
    distribution_aliases=["vllm==1"],
    environment={"A": "b", "C": Secret("D")},
)
ROLE: dict[str, Any] = {
    "compute": Compute(gpu="H100", gpus=1),
    "parallelism": PARALLELISM,
    "context_length": 1024,
    "options": {"nested": {"list": ["text", {"deep": "text"}]}, "plain": "text"},
    "extra_args": ["--flag", "word"],
    "environment": {"PLAIN": "text", "BOUND": Secret("NAME")},
    "image": IMAGE,
}
FULL = Deployment(
    name="m",
    model=Model(id="org/m", source=HubSource(repo="org/m")),
    inference=Inference(engine="vllm", **ROLE),
    trainer=Trainer(
        backend="megatron",
        adapters=Adapters(),
        optimizer=Optimizer(min_learning_rate=1e-5, loss_scale=1.0),
        architecture="qwen",
        tokens_per_gpu=1024,
        **ROLE,
    ),
    served_name="m",
    description="what it is for",
    validation=Validation(expect="Paris"),
)
VARIANTS = [
    FULL,
    dataclasses.replace(FULL, model=Model(id="m", source=DirectorySource(path="/models/m"))),
    dataclasses.replace(FULL, model=Model(id="m", source=WheelSource(requirement="m==1", file="m.gguf"))),
    dataclasses.replace(FULL, inference=Inference(engine="vllm", **{**ROLE, "image": "own"})),
    dataclasses.replace(FULL, inference=None),
    dataclasses.replace(FULL, trainer=None),
]


def dumped(deployment: Deployment) -> dict[str, Any]:
    made: dict[str, Any] = DEPLOYMENT.dump_python(deployment, mode="json")
    return made


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every scalar of a JSON document and every empty container, with its path."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not items:
        yield path, value
    for key, item in items:
        yield from places(item, (*path, key))


def with_value(document: dict[str, Any], path: tuple[Any, ...], text: str) -> dict[str, Any]:
    made = copy.deepcopy(document)
    place: Any = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = text
    return made


def with_key(document: dict[str, Any], path: tuple[Any, ...], text: str) -> dict[str, Any]:
    made = copy.deepcopy(document)
    place: Any = made
    for key in path[:-1]:
        place = place[key]
    place[text] = place.pop(path[-1])
    return made


def test_the_full_deployment_says_something_in_every_field() -> None:
    silent = [path for path, value in places(dumped(FULL)) if value in (None, "", [], {})]
    assert silent == [("trainer", "tokens_per_microbatch")]  # the other way to say tokens_per_gpu


@pytest.mark.parametrize("deployment", VARIANTS, ids=["hub", "directory", "wheel", "shipped", "trains", "serves"])
@pytest.mark.parametrize("secret", SECRETS)
def test_a_credential_is_refused_in_every_field_that_takes_text(deployment: Deployment, secret: str) -> None:
    document = dumped(deployment)
    taken = 0
    for path, value in places(document):
        if not isinstance(value, str):
            continue
        forms = (secret, f"{value} {secret}", f"{value}-{secret}", f"{value}/{secret}", f"{value}=={secret}")
        candidates = [with_value(document, path, form) for form in (*forms, f"a=={secret}", f"{secret}.gguf")]
        candidates += [with_key(document, path, secret)] if isinstance(path[-1], str) else []
        for candidate in candidates:
            try:
                made = DEPLOYMENT.validate_json(json.dumps(candidate))
            except (ValidationError, ProblemsError):
                continue  # nobody can type it there
            taken += 1
            problems = check(made)
            assert "literal-secret" in {problem.code for problem in problems}, path
            assert not any(secret in problem.render() for problem in problems), path
    assert taken > 40


def test_where_it_stands_is_told_with_what_to_do() -> None:
    said = f"password={SECRETS[0]}"
    made = dataclasses.replace(FULL, description=said, validation=Validation(prompt=said, expect=said))
    told = {problem.where: problem.help for problem in check(made) if problem.code == "literal-secret"}
    kept = "Leave it out: what a config says is kept and shown."
    assert told == dict.fromkeys(
        ("Deployment.description", "Deployment.validation.prompt", "Deployment.validation.expect"), kept
    )


@pytest.mark.parametrize("role", ["inference", "trainer"])
@pytest.mark.parametrize(
    "settings",
    [
        {"environment": {"HF_TOKEN": "plain words"}},
        {"image": dataclasses.replace(IMAGE, environment={"DB_PASSWORD": "plain"})},
        {"options": {"hf-token": "plain"}},
        {"options": {"outer": {"api_key": "plain"}}},
        {"extra_args": ["--hf-token", "plain"]},
        {"extra_args": ["--api-key=plain"]},
    ],
)
def test_what_stands_where_a_credential_is_expected_is_one(role: str, settings: dict[str, Any]) -> None:
    made = dataclasses.replace(FULL, **{role: dataclasses.replace(getattr(FULL, role), **settings)})
    # What is managed in the inference role is refused as that.
    codes = [problem.code for problem in check(made)]
    assert codes.count("literal-secret") + codes.count("managed-option") == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"options": {"hf-overrides": {"eos_token": "</s>", "bos_token_id": "1"}, "api-key": ""}},
        {"extra_args": ["--tokenizer", "x", "--secret"]},
        {"environment": {"TOKENIZERS_PARALLELISM": "false", "HF_TOKEN": Secret("HF_TOKEN")}},
    ],
)
def test_what_only_sounds_like_one_is_not(settings: dict[str, Any]) -> None:
    assert FULL.inference is not None
    made = dataclasses.replace(FULL, inference=dataclasses.replace(FULL.inference, **settings))
    assert "literal-secret" not in {problem.code for problem in check(made)}
