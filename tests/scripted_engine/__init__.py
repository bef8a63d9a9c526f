"""The scripted engine: a stand-in for vLLM at its command line and wire, for tests of engines that fail on purpose.

`build_wheel` packages it, `scripted_image` is the image recipe for that wheel, `Script` tells an engine what to do::

    script = Script.create(tmp_path, die_on_starts=2, log_lines=["CUDA error: device-side assert"])
    Inference(engine="vllm", image=scripted_image(build_wheel(tmp_path)), environment=script.environment)
    ...
    script.update(healthy_but_silent="hang")
    assert len(script.starts()) == 3

`argv` and `source_environment` run it without any image. Besides vLLM's own paths it answers ``GET /scripted`` with
request counts and process ids.
"""

from tests.scripted_engine.control import Script, Start, argv, source_environment
from tests.scripted_engine.wheel import build_wheel, scripted_image

__all__ = ["Script", "Start", "argv", "build_wheel", "scripted_image", "source_environment"]
