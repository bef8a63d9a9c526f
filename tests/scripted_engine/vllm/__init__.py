"""A stand-in for vLLM at its command line and its wire: standard library only, scripted by a JSON file. For tests."""

__version__ = "0.1.0"
