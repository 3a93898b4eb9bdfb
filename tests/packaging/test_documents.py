"""The documents say what is true of the tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def named_tests(document: Path) -> list[tuple[str, str]]:
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", document.read_text())


@pytest.mark.parametrize("document", ["docs/semantics.md", "docs/conformance.md"])
def test_every_test_that_a_document_names_exists(document: str) -> None:
    named = named_tests(ROOT / document)
    assert named
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        assert any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name for node in ast.walk(tree)
        ), f"{path}::{name}"


def test_every_case_that_a_test_names_is_told() -> None:
    told = set(re.findall(r"^\| (C\d\d) \|", (ROOT / "tests/CASES.md").read_text(), re.MULTILINE))
    used = {case for path in (ROOT / "tests").rglob("*.py") for case in re.findall(r"\bC\d\d\b", path.read_text())}
    assert used <= told


def test_every_module_that_the_design_names_exists() -> None:
    for line in (ROOT / "docs/design.md").read_text().splitlines():
        if not line.startswith("| ") or "`" not in line:
            continue
        cells = line.split("|")
        directory = ""
        for name in re.findall(r"`([\w/]+(?:\.py|/))`", cells[2]):
            if "/" in name.rstrip("/"):
                directory = name.rpartition("/")[0] + "/"
            candidates = [ROOT / name, ROOT / "tiercache" / name, ROOT / "tiercache" / directory / name]
            assert any(candidate.exists() for candidate in candidates), name
