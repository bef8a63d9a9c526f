"""From a deployment to an answer, and what a killed part costs. The engine is scripted; everything else is real."""

from collections.abc import Callable

from tests.support.scripted_deployments import Scripted
from tests.support.stack import TestStack


async def test_a_deployed_model_answers_behind_the_gateway(stack: TestStack, engine: Callable[..., Scripted]) -> None:
    model = engine()
    async with stack.client() as client, stack.http() as http:
        result = await client.deploy(model.deployment)
        assert result.changed
        answer = await http.post(
            "/v1/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": "What is the capital of France?"}]},
        )
        assert answer.status_code == 200, answer.text
        assert "Paris" in answer.json()["choices"][0]["message"]["content"]
        assert answer.headers["x-standfast-generation"] == result.generation
        assert len(model.script.starts()) == 1
