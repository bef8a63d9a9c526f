"""Deployments, generations, attempts, images, proofs, keys and gateways are read back as they were written."""

from datetime import UTC, datetime, timedelta

import pytest

from standfast.registry import NotFound, Registry, RegistryError, ServedNameTaken, hash_key
from tests.support.registry_records import a_generation, an_inspection, digest, put_generations

pytest_plugins = ("tests.support.registry",)


async def test_a_deployment_is_kept_changed_and_found(registry: Registry) -> None:
    first = await registry.put_deployment("qwen", served_name="qwen-chat", target="local", visible=False)
    assert (first.served_name, first.visible, first.current_generation, first.retired_at) == (
        "qwen-chat",
        False,
        None,
        None,
    )
    assert first.created_at.tzinfo is UTC
    assert abs(datetime.now(UTC) - first.created_at) < timedelta(minutes=5)
    second = await registry.put_deployment("qwen", served_name="qwen", target="slurm")
    assert (second.served_name, second.visible, second.target) == ("qwen", True, "slurm")
    assert second.created_at == first.created_at
    assert await registry.get_deployment("qwen") == second
    assert await registry.get_deployment("other") is None
    assert await registry.list_deployments() == [second]


async def test_a_served_name_belongs_to_one_standing_deployment(registry: Registry) -> None:
    await registry.put_deployment("qwen", served_name="chat", target="local")
    with pytest.raises(ServedNameTaken, match="'chat' belongs to the deployment 'qwen'"):
        await registry.put_deployment("llama", served_name="chat", target="local")
    await registry.retire_deployment("qwen")
    await registry.put_deployment("llama", served_name="chat", target="local")
    with pytest.raises(ServedNameTaken, match="'llama'"):
        await registry.put_deployment("qwen", served_name="chat", target="local")


async def test_a_retired_deployment_is_listed_on_request_and_can_stand_again(registry: Registry) -> None:
    await registry.put_deployment("qwen", served_name="qwen", target="local")
    await registry.retire_deployment("qwen")
    retired = await registry.get_deployment("qwen")
    assert retired is not None
    assert retired.retired_at is not None
    await registry.retire_deployment("qwen")
    again = await registry.get_deployment("qwen")
    assert again is not None
    assert again.retired_at == retired.retired_at
    assert await registry.list_deployments() == []
    assert [row.name for row in await registry.list_deployments(retired=True)] == ["qwen"]
    assert (await registry.put_deployment("qwen", served_name="qwen", target="local")).retired_at is None
    with pytest.raises(NotFound, match="'none'"):
        await registry.retire_deployment("none")


async def test_a_generation_is_read_back_as_it_was_written(registry: Registry) -> None:
    generation = a_generation()
    await put_generations(registry, generation)
    stored = await registry.get_generation(generation.id)
    assert stored is not None
    assert stored.record == generation
    assert (stored.id, stored.deployment, stored.digest) == (generation.id, "qwen", generation.digest)
    assert (stored.phase, stored.failure) == ("preparing", None)
    assert await registry.get_generation("qwen@000000000000") is None


async def test_a_generation_needs_its_deployment(registry: Registry) -> None:
    with pytest.raises(NotFound, match="no deployment 'qwen'"):
        await registry.put_generation(a_generation())


async def test_keeping_a_live_generation_again_changes_nothing(registry: Registry) -> None:
    generation = a_generation()
    await put_generations(registry, generation)
    await registry.set_generation_phase(generation.id, "serving")
    assert (await registry.put_generation(generation, "preparing")).phase == "serving"


@pytest.mark.parametrize("ended", ["retired", "failed"])
async def test_a_retired_or_failed_generation_starts_again(registry: Registry, ended: str) -> None:
    generation = a_generation()
    await put_generations(registry, generation)
    await registry.set_generation_phase(
        generation.id, "failed" if ended == "failed" else "retired", {"message": "boom", "lines": ["ä"]}
    )
    stored = await registry.get_generation(generation.id)
    assert stored is not None
    assert stored.failure == {"message": "boom", "lines": ["ä"]}
    again = await registry.put_generation(generation, "preparing")
    assert (again.phase, again.failure) == ("preparing", None)


async def test_two_digests_that_begin_alike_are_not_taken_for_one_generation(registry: Registry) -> None:
    generation = a_generation()
    await put_generations(registry, generation)
    twin = generation.model_copy(update={"digest": generation.digest[:12] + "0" * 52})
    with pytest.raises(RegistryError, match="another generation already"):
        await registry.put_generation(twin)


async def test_generations_are_listed_newest_first(registry: Registry) -> None:
    first, second, other = a_generation(variant="1"), a_generation(variant="2"), a_generation("llama")
    await put_generations(registry, first, second, other)
    assert [row.id for row in await registry.list_generations("qwen")] == [second.id, first.id]
    assert [row.id for row in await registry.list_generations(limit=1)] == [other.id]
    with pytest.raises(NotFound):
        await registry.set_generation_phase("qwen@none", "failed")


async def test_an_attempt_keeps_when_it_was_first_ready_and_when_it_ended(registry: Registry) -> None:
    put = await registry.put_attempt(
        "retry/qwen/0#1", deployment="qwen", generation="g", replica=0, number=1, directory="/d"
    )
    assert (put.phase, put.role, put.ready_at, put.ended_at, put.failure) == (
        "launching",
        "inference",
        None,
        None,
        None,
    )
    ready = await registry.set_attempt("retry/qwen/0#1", "ready")
    assert ready.ready_at is not None
    assert (await registry.set_attempt("retry/qwen/0#1", "ready")).ready_at == ready.ready_at
    ended = await registry.set_attempt("retry/qwen/0#1", "ended", failure={"kind": "transient"})
    assert ended.ended_at is not None
    assert ended.failure == {"kind": "transient"}
    assert await registry.set_attempt("retry/qwen/0#1", "ended") == ended


async def test_an_attempt_that_ended_never_becomes_ready_again(registry: Registry) -> None:
    await registry.put_attempt("a#1", deployment="qwen", generation="g", replica=0, number=1, directory="/d")
    ended = await registry.set_attempt("a#1", "ended")
    assert await registry.set_attempt("a#1", "ready", failure={"kind": "late"}) == ended
    again = await registry.put_attempt("a#1", deployment="qwen", generation="g", replica=0, number=1, directory="/d")
    assert again == ended
    with pytest.raises(NotFound):
        await registry.set_attempt("a#2", "ended")


async def test_attempts_are_found_by_deployment_generation_and_replica(registry: Registry) -> None:
    for name, generation, replica in (("a", "g1", 0), ("b", "g1", 1), ("c", "g2", 0)):
        await registry.put_attempt(
            name, deployment="qwen", generation=generation, replica=replica, number=1, directory="/d"
        )
    assert [row.name for row in await registry.list_attempts(deployment="qwen")] == ["c", "b", "a"]
    assert [row.name for row in await registry.list_attempts(generation="g1")] == ["b", "a"]
    assert [row.name for row in await registry.list_attempts(generation="g1", replica=0)] == ["a"]
    assert [row.name for row in await registry.list_attempts(limit=1)] == ["c"]
    assert await registry.list_attempts(deployment="llama") == []
    assert await registry.get_attempt("none") is None


async def test_an_image_remembers_when_it_was_built_and_last_used(registry: Registry) -> None:
    built = datetime(2026, 1, 1, tzinfo=UTC)
    first = await registry.put_image(
        digest("image"), name="vllm-cpu", path="/images/1", inspection=an_inspection(), built_at=built
    )
    assert first.inspection == an_inspection()
    assert first.built_at == built
    again = await registry.put_image(digest("image"), name="vllm-cpu", path="/images/1", inspection=an_inspection())
    assert again.built_at == built
    assert again.used_at > first.used_at
    other = await registry.put_image(digest("other"), name="other", path="/images/2", inspection=an_inspection())
    assert await registry.list_images() == [other, again]
    assert await registry.get_image(digest("image")) == again
    assert await registry.get_image(digest("none")) is None


async def test_a_proof_is_fresh_until_a_later_validation_fails(registry: Registry) -> None:
    generation = a_generation()
    await put_generations(registry, generation)
    hash_ = digest("plan")
    assert await registry.fresh_proof(hash_) is None
    passed = await registry.put_proof(
        generation=generation.id, inference_hash=hash_, passed=True, report={"probes": []}
    )
    assert passed.deployment == "qwen"
    assert passed.report == {"probes": []}
    assert await registry.fresh_proof(hash_) == passed
    assert await registry.fresh_proof(hash_, max_age=timedelta(0)) is None
    assert await registry.fresh_proof(hash_, max_age=timedelta(hours=1)) == passed
    failed = await registry.put_proof(generation=generation.id, inference_hash=hash_, passed=False, report={})
    assert await registry.fresh_proof(hash_) is None
    assert await registry.list_proofs(deployment="qwen") == [failed, passed]
    assert await registry.list_proofs(generation=generation.id, limit=1) == [failed]
    assert await registry.list_proofs(deployment="llama") == []


async def test_a_proof_under_a_given_id_is_kept_once(registry: Registry) -> None:
    generation = a_generation()
    await put_generations(registry, generation)
    first = await registry.put_proof(
        generation=generation.id, inference_hash=digest("plan"), passed=True, report={}, id="validate/qwen/1"
    )
    again = await registry.put_proof(
        generation=generation.id, inference_hash=digest("plan"), passed=True, report={}, id="validate/qwen/1"
    )
    assert again == first
    assert await registry.list_proofs() == [first]
    with pytest.raises(NotFound):
        await registry.put_proof(generation="qwen@none", inference_hash=digest("plan"), passed=True, report={})


async def test_an_api_key_is_shown_once_and_kept_as_a_hash(registry: Registry) -> None:
    stored, plaintext = await registry.create_api_key("laptop")
    _other, other_plaintext = await registry.create_api_key("laptop")
    assert plaintext.startswith("sf-")
    assert len(plaintext) > 40
    assert plaintext != other_plaintext
    assert stored.prefix == plaintext[:9]
    assert plaintext not in repr(await registry.list_api_keys())
    assert await registry.active_key_hashes() == {hash_key(plaintext), hash_key(other_plaintext)}
    await registry.revoke_api_key(stored.id)
    assert await registry.active_key_hashes() == {hash_key(other_plaintext)}
    revoked = (await registry.list_api_keys())[0]
    assert revoked.revoked_at is not None
    await registry.revoke_api_key(stored.id)
    assert (await registry.list_api_keys())[0] == revoked
    with pytest.raises(NotFound):
        await registry.revoke_api_key("none")


async def test_a_gateway_is_known_by_its_last_beat(registry: Registry) -> None:
    await registry.gateway_beat("g1", url="http://127.0.0.1:1", revision_seen=3, inflight={})
    await registry.gateway_beat("g1", url="http://127.0.0.1:1", revision_seen=4, inflight={"qwen@1/inference/0": 2})
    (gateway,) = await registry.list_gateways(max_age_s=60)
    assert (gateway.revision_seen, gateway.inflight) == (4, {"qwen@1/inference/0": 2})
    assert await registry.list_gateways(max_age_s=-60) == []
    await registry.forget_gateway("g1")
    assert await registry.list_gateways() == []
