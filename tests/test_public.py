"""The public face: names, lightness, versions."""

from __future__ import annotations

import subprocess
import sys

import ddtree_metrics as ddt


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in ddt.__all__ if not hasattr(ddt, name)] == []


def test_every_name_of_the_benchmark_can_be_imported() -> None:
    from ddtree_metrics import bench

    assert "run_sweep" in bench.__all__
    assert [name for name in bench.__all__ if not hasattr(bench, name)] == []


def test_the_diagnose_function_is_not_hidden_by_its_module() -> None:
    said = _python("import ddtree_metrics.diagnosis, ddtree_metrics as d; print(callable(d.diagnose))")

    assert said == "True"


def test_importing_loads_nothing_heavy() -> None:
    heavy = ["pandas", "pyarrow", "matplotlib", "numpy", "scipy", "click", "httpcore", "systemd"]
    said = _python(f"import sys, ddtree_metrics; print([m for m in {heavy} if m in sys.modules])")

    assert said == "[]"


def test_the_help_of_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom ddtree_metrics.cli import main\n"
        "try: main(['--help'], standalone_mode=False)\nexcept SystemExit: pass\n"
        "print('HEAVY', [m for m in ['pandas', 'pyarrow', 'matplotlib', 'numpy', 'scipy', 'httpx'] if m in sys.modules])"
    )

    assert _python(code).endswith("HEAVY []")


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "ddtree_metrics", "--version"], capture_output=True, text=True, check=True)

    assert done.stdout == f"ddtree-logs, version {ddt.__version__}\n"
