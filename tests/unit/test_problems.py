"""Refusals read well and never show a secret."""

import pickle

import pytest

from standfast.problems import Problem, ProblemsError, UserError, redact

SECRETS = [
    "hf_aBcDeFgHiJkLmNoP123",
    "sk-proj-abcdefghijk1234567",
    "sf-0123456789abcdef",
    "ghp_abcdefghij0123456789",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    "api_key=verysecretvalue",
    "PASSWORD: hunter22",
    "Authorization: Bearer abcdefgh12345678",
    "https://user:pa55w0rd@example.org/simple",
    "HF_TOKEN=abcd1234efgh",
    "-----BEGIN RSA PRIVATE KEY-----\nabc",
]
HARMLESS = [
    "max_tokens=24",
    "set Inference(environment={'HF_TOKEN': Secret('HF_TOKEN')})",
    "set Inference(environment={'VLLM_API_KEY': Secret('VLLM_API_KEY')})",
    "68c46c4b3498877f3ef123c856ecfde50c39f404",
    "--max-num-batched-tokens 8192",
    "https://example.org/simple",
    "the token: none was given",
    "ask-me-anything",
]


@pytest.mark.parametrize("text", SECRETS)
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    assert "hidden" in redact(f"before {text} after")


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_a_problem_never_holds_a_secret_it_was_made_with() -> None:
    secret = "hf_aBcDeFgHiJkLmNoP123"
    problem = Problem(code="x", where=f"a[{secret!r}]", message=f"no {secret}", help=f"not {secret}", value=secret)
    error = ProblemsError((problem,))
    assert secret not in f"{problem!r} {error} {error.to_json()} {pickle.loads(pickle.dumps(error))}"


def test_a_problem_reads_as_cause_place_and_help() -> None:
    problem = Problem(code="unknown-field", where="Inference.gpus", message="No such field.", help="Write compute.")
    assert problem.at("configs/a.py", 14).render() == (
        "error: No such field.\n  --> configs/a.py:14  Inference.gpus\n   = help: Write compute."
    )


def test_errors_survive_pickling() -> None:
    error = UserError("No such file.", help="Write another.", where="a.py:3", exit_code=4)
    again = pickle.loads(pickle.dumps(error))
    assert (again.message, again.help, again.where, again.exit_code) == ("No such file.", "Write another.", "a.py:3", 4)
    assert again.render() == "error: No such file.\n  --> a.py:3\n   = help: Write another."


def test_a_refusal_without_a_problem_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ProblemsError(())
