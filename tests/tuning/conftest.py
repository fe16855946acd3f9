"""Loads the shared test modules of this folder and the fake server by path: tests are not a package."""

import importlib.util
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent


def _load(name: str, path: Path) -> None:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


_load("tuning_machine", TESTS / "tuning" / "machine.py")
_load("fake_server", TESTS / "servers" / "fake_server.py")
