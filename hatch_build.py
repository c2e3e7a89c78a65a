"""Compile ``ddtree_metrics/native/*.c`` where there is a C compiler: each file is one extension module of Python's limited API.

hatchling calls the hook when a wheel or an editable install is made. As a script, ``python hatch_build.py``, it builds them in the tree,
or in another folder (``--into DIR``, with flags for the compiler), or only looks for warnings (``--check``).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # as a script
    BuildHookInterface = object

FOLDER = Path("ddtree_metrics/native")
ROOT = Path(__file__).parent
STRICT = ["-Wall", "-Wextra", "-Werror"]


def compiled(into: Path, *flags: str) -> list[Path]:
    """Compile every C file into a folder; raise ``OSError`` with a reason if one will not."""
    made = []
    for source in sorted((ROOT / FOLDER).glob("*.c")):
        target = into / f"{source.stem}.abi3.so"
        _compile(source, "-O2", "-shared", *flags, "-o", str(target))
        made.append(target)
    return made


def check() -> None:
    """Compile with every warning an error, and write nothing; optimized, for some warnings come from the optimizer only."""
    for source in sorted((ROOT / FOLDER).glob("*.c")):
        _compile(source, *STRICT, "-O2", "-c", "-o", os.devnull)


def _compile(source: Path, *flags: str) -> None:
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if sys.platform == "darwin":
        flags = ("-undefined", "dynamic_lookup", *flags)
    command = [*compiler, "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-fvisibility=hidden", "-I", sysconfig.get_path("include"), str(source)]
    done = subprocess.run([*command, *flags], env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{source.name} does not compile: {_first_error(done.stderr)}")


def _first_error(text: str) -> str:
    lines = text.strip().splitlines() or ["the compiler says nothing"]
    return next((line for line in lines if "error" in line), lines[0])


class NativeHook(BuildHookInterface):
    """Put the extension modules into a wheel; without a compiler it becomes one of pure Python."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile: in the tree for an editable install, else into a folder that lives as long as the build."""
        self._folder = tempfile.TemporaryDirectory()
        into = ROOT / FOLDER if version == "editable" else Path(self._folder.name)
        try:
            made = compiled(into)
        except OSError as error:
            print(f"no extension modules are built, so reading will be slower: {error}", file=sys.stderr)
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"cp310-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        if version != "editable":
            build_data["force_include"].update({str(path): str(FOLDER / path.name) for path in made})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        self._folder.cleanup()


def main(arguments: list[str]) -> None:
    """Build or check, as the command line says."""
    try:
        if arguments == ["--check"]:
            check()
        elif arguments[:1] == ["--into"] and len(arguments) > 1:
            Path(arguments[1]).mkdir(parents=True, exist_ok=True)
            compiled(Path(arguments[1]), *arguments[2:])
        elif not arguments:
            compiled(ROOT / FOLDER)
        else:
            sys.exit("usage: python hatch_build.py [--check | --into DIR [COMPILER-FLAG ...]]")
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
