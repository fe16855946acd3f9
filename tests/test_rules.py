"""The project's own rules, held by tests: who may import whom, what loads without torch, what README promises."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fastverify"
BASE = {"errors", "units", "env", "hardware", "model_config", "bundled", "records", "whole_file", "__init__"}
# ARCHITECTURE.md draws these arrows; a folder may import the folders of its row, itself and the base files.
ARROWS = {
    "comm": set(),
    "models": {"comm"},
    "engine": {"models", "comm"},
    "training": {"models", "comm"},
    "trace": set(),
    "servers": set(),
    "diagnosis": {"trace", "servers"},
    "tuning": {"diagnosis", "trace", "servers"},
    "plugins": {"comm"},
    "cli": {"engine", "tuning", "plugins", "training", "comm", "diagnosis", "servers", "trace"},
}
TORCH_FREE = ("trace", "servers", "diagnosis", "tuning", "cli")
PUBLIC_NAMES = {"__version__"}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_parts(path: Path) -> set[str]:
    """First name below fastverify of every import of the file, also the lazy ones inside functions."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [
                f"{node.module}.{alias.name}" if node.module == "fastverify" else node.module for alias in node.names
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative imports hide the arrows"
        parts |= {name.split(".")[1] for name in names if name.startswith("fastverify.")}
    return parts


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    part = part_of(path)
    if part in BASE or part == "__main__":
        allowed = BASE | ({"cli"} if part == "__main__" else set())
    else:
        allowed = ARROWS[part] | BASE | {part}
    assert imported_parts(path) - {"__version__"} <= allowed


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_says_what_it_is_and_stays_readable(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "a module docstring says what the file does"
    assert len(text.splitlines()) <= 450, "split the file, one idea each"


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_torch_free_parts_import_without_torch() -> None:
    names = [
        "fastverify." + str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for path in modules()
        if part_of(path) in TORCH_FREE or part_of(path) in BASE
    ]
    code = f"""
import importlib, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] == 'torch':
            raise ImportError('torch is an extra: this part must work without it')
sys.meta_path.insert(0, Blocker())
for name in {names!r}:
    importlib.import_module(name)
print(len(sys.modules))
"""
    assert int(run_python(code)) > 0


def test_import_is_fast_and_light() -> None:
    code = """
import sys, time
before = set(sys.modules); start = time.perf_counter()
import fastverify
elapsed_ms = (time.perf_counter() - start) * 1000
print(elapsed_ms, *sorted({name.split('.')[0] for name in set(sys.modules) - before}))
"""
    elapsed_ms, *loaded = run_python(code).split()
    foreign = set(loaded) - set(sys.stdlib_module_names)
    assert foreign == {"fastverify"}, "importing the package loads nothing from outside the standard library"
    assert float(elapsed_ms) < 100


def test_public_names() -> None:
    import fastverify

    assert set(fastverify.__all__) == PUBLIC_NAMES


def test_environment_is_read_in_one_place() -> None:
    for path in modules():
        if path.name != "env.py":
            assert not re.search(r"environ[^\n]*FASTVERIFY_|getenv\(.FASTVERIFY_", path.read_text()), path


def documented_commands() -> list[str]:
    """Every `fastverify VERB ...` and `make TARGET` in a code block of README and docs."""
    commands = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"```(?:bash|sh|console)?\n(.*?)```", path.read_text(), flags=re.DOTALL):
            lines = [line.removeprefix("$ ").strip() for line in block.splitlines()]
            commands += [line for line in lines if line.startswith(("fastverify ", "make "))]
    return sorted(set(commands))


@pytest.mark.parametrize("command", documented_commands())
def test_documented_command_exists(command: str) -> None:
    words = command.split("#")[0].split()
    if words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text()
        return
    from typer.testing import CliRunner

    from fastverify.cli.main import app

    verb = [word for word in words[1:3] if re.fullmatch(r"[a-z][a-z-]*", word)]
    flags = {word.split("=")[0] for word in words[1:] if word.startswith("--")}
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    for depth in (2, 1):
        result = runner.invoke(app, [*verb[:depth], "--help"])
        if result.exit_code == 0:
            break
    assert result.exit_code == 0, command
    assert all(flag in result.output for flag in flags), f"{flags} of `{command}`"


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150
