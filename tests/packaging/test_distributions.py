"""Wheel and source distribution hold the whole package and nothing else, and install without a compiler."""

from __future__ import annotations

import configparser
import email
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

import tiercache

Distributions = tuple[Path, Path]


def modules_of(root: Path) -> set[str]:
    """Every file of the package in the source tree, links followed, as paths below the root."""
    return {
        os.path.relpath(os.path.join(folder, name), root)
        for folder, _, names in os.walk(root / "tiercache", followlinks=True)
        for name in names
        if name.endswith(".py") or name == "py.typed"
    }


def test_the_wheel_holds_every_module_once_and_only_our_name(root: Path, distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        files = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert len(files) == len(set(files))
    assert set(files) == modules_of(root)
    assert {name.split("/")[0] for name in files} == {"tiercache"}
    assert {"tiercache/fuse/__init__.py", "tiercache/policies/base.py", "tiercache/bench/__init__.py"} <= set(files)


def test_the_wheel_is_pure_python_and_says_what_it_needs(distributions: Distributions) -> None:
    assert distributions[1].name == f"tiercache_fs-{tiercache.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(distributions[1]) as wheel:
        info = f"tiercache_fs-{tiercache.__version__}.dist-info"
        metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
        entry_points = configparser.ConfigParser()
        entry_points.read_string(wheel.read(f"{info}/entry_points.txt").decode())
        assert f"{info}/licenses/LICENSE" in wheel.namelist()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"pyfuse3", "bench", "test", "integrations"} <= set(metadata.get_all("Provides-Extra", []))
    needed_always = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not [line for line in needed_always if line.startswith("pyfuse3")]
    assert entry_points["console_scripts"]["tiercache"] == "tiercache.cli:main"
    assert entry_points["fsspec.specs"]["tiercache"] == "tiercache.filesystem:TierCacheFileSystem"


def test_the_source_distribution_builds_the_same_package(root: Path, distributions: Distributions) -> None:
    """``build`` makes the wheel from it, so the test of the wheel covers its contents."""
    with tarfile.open(distributions[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "tiercache/fuse/__init__.py"} <= names


class Installed(NamedTuple):
    python: Path
    command: Path
    environment: dict[str, str]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, cwd="/")


@pytest.fixture(scope="module")
def installed(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in a new virtual environment, where only binaries of the dependencies are allowed."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    python = folder / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TIERCACHE_"))}
    environment["HOME"] = str(folder)
    environment["CC"] = environment["CXX"] = "/bin/false"
    installed = Installed(python, folder / "bin" / "tiercache", environment)
    # By our pip, and without bytecode of what is imported once at most: that is most of the time.
    result = installed.run(
        sys.executable, "-P", "-m", "pip", "--python", str(python), "install", "--quiet", "--no-input",
        "--disable-pip-version-check", "--no-compile", "--only-binary", ":all:", str(distributions[1]),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return installed


@pytest.mark.timeout(600)
def test_installing_needs_no_compiler_and_the_command_runs(installed: Installed) -> None:
    result = installed.run(str(installed.command), "version")
    assert (result.returncode, result.stderr) == (0, "")
    assert tiercache.__version__ in result.stdout


@pytest.mark.timeout(600)
def test_fsspec_finds_the_filesystem_by_its_name(installed: Installed) -> None:
    script = "import fsspec; print(fsspec.get_filesystem_class('tiercache').__name__)"
    result = installed.run(str(installed.python), "-c", script)
    assert result.stdout == "TierCacheFileSystem\n", result.stderr


@pytest.mark.timeout(600)
def test_fsspec_fuse_still_imports_the_fuse_of_fusepy(installed: Installed) -> None:
    """fusepy itself needs libfuse 2, so a module with its names stands in its place."""
    found = installed.run(str(installed.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    module = Path(found.stdout.strip()) / "fuse.py"
    names = ("FUSE", "FuseOSError", "LoggingMixIn", "Operations")
    module.write_text("".join(f"class {name}: ...\n" for name in names))
    script = "import tiercache.fuse, fsspec.fuse, fuse; print(fsspec.fuse.FUSE.__module__, fuse.__file__)"
    result = installed.run(str(installed.python), "-c", script)
    assert result.stdout == f"fuse {module}\n", result.stderr
