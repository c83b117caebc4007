"""Recipes whose trainer cannot be run here use no name that a pinned release of it lacks.

`recipe_names.json` has of each what its recipe may use, with the file and line where it is: what a module has, what a
call takes and gives, what an object has. A name is followed from the import through calls and attributes.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs import blocks
from tests.docs.blocks import Block

PINNED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("recipe_names.json").read_text())
NAMES: dict[str, dict[str, Any]] = {name: each for one in PINNED.values() for name, each in one["names"].items()}
PAGES = {"docs/recipes/other_trainers.md", "docs/recipes/torchtitan.md", "docs/recipes/megatron.md"}
RECIPES = [each for each in blocks.of("python") if each.page in PAGES and each.no_run]
COMMANDS = [each for each in blocks.of("bash", "console") if each.page in PAGES]


class Used(ast.NodeVisitor):
    """Follows pinned names through a recipe; `problems` are those that the release does not have."""

    def __init__(self) -> None:
        self.types: dict[str, str] = {}
        self.followed: set[str] = set()
        self.problems: list[str] = []

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and node.module.split(".")[0] in PINNED:
            for each in node.names:
                self.types[each.asname or each.name] = self._member(node.module, each.name)

    def visit_Import(self, node: ast.Import) -> None:
        taken = [each.name for each in node.names if each.name.split(".")[0] in PINNED]
        self.problems += [f"import {name}: write it with from, to be followed" for name in taken]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [base for each in node.bases if (base := self._type(each))]
        for method in [each for each in node.body if isinstance(each, ast.FunctionDef)]:
            for base in bases:
                if known := NAMES.get(self._member(base, method.name), {}).get("parameters"):
                    given = [each.arg for each in method.args.args]
                    if given != list(known):
                        self.problems.append(f"{base}.{method.name} is called with {list(known)}, not {given}")
                    self.types |= {name: each for name, each in known.items() if each}
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        found = self._type(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.types[target.id] = found

    def visit_Call(self, node: ast.Call) -> None:
        self._type(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._type(node)

    def _type(self, node: ast.expr) -> str:
        """The pinned name of what an expression is, or nothing."""
        if isinstance(node, ast.Name):
            return self.types.get(node.id, "")
        if isinstance(node, ast.Attribute):
            return self._member(self._type(node.value), node.attr)
        if not isinstance(node, ast.Call):
            self.generic_visit(node)
            return ""
        called = self._type(node.func)
        for argument in [*node.args, *(each.value for each in node.keywords)]:
            self.visit(argument)
        known = NAMES.get(called, {})
        named = {each.arg for each in node.keywords if each.arg}
        unknown = named - set(known.get("parameters", named))
        self.problems += [f"{called} takes no {name}" for name in sorted(unknown)]
        return str(known.get("returns", ""))

    def _member(self, owner: str, name: str) -> str:
        if not owner:
            return ""
        members = NAMES.get(owner, {}).get("members", {})
        if name not in members:
            self.problems.append(f"{owner} has no {name}")
        self.followed.add(f"{owner}.{name}")
        return str(members.get(name, ""))


def used(text: str) -> Used:
    found = Used()
    found.visit(ast.parse(text))
    return found


@pytest.mark.parametrize("block", RECIPES, ids=lambda block: block.place)
def test_the_recipe_uses_what_the_release_has(block: Block) -> None:
    found = used(block.text)
    assert found.followed, "a recipe of which nothing is pinned"
    assert not found.problems


def test_all_that_cannot_be_run_are_looked_at() -> None:
    packages = {
        each.module.split(".")[0]
        for block in RECIPES
        for each in ast.walk(ast.parse(block.text))
        if isinstance(each, ast.ImportFrom) and each.module
    }
    assert packages - {"rangewatch"} == set(PINNED) - {"verl"}
    assert all(re.search(r"\b(sha256 [0-9a-f]{64}|commit [0-9a-f]{40})\b", each["release"]) for each in PINNED.values())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("from torchtitan.config import JobConfig", "torchtitan.config has no JobConfig"),
        ("from torchtitan.job import Trainer", "torchtitan.job has no Trainer"),
        ("from nemo import lightning as nl\nnl.Trainers()", "nemo.lightning has no Trainers"),
        ("from nemo import lightning as nl\nnl.Trainer(hooks=[])", "nemo.lightning.Trainer takes no hooks"),
        (
            "from torchtitan.config import ConfigManager\nConfigManager().parse_args().build().fit()",
            "torchtitan.trainer.Trainer has no fit",
        ),
        (
            "from axolotl.integrations.base import BasePlugin\n"
            "class Mine(BasePlugin):\n    def add_callbacks_pre_trainer(self, model, cfg): ...",
            "axolotl.integrations.base.BasePlugin.add_callbacks_pre_trainer is called with "
            "['self', 'cfg', 'model'], not ['self', 'model', 'cfg']",
        ),
        (
            "from megatron.training.callbacks import Callback\n"
            "class Mine(Callback):\n    def on_train_start(self, context): context.models",
            "megatron.training.callbacks.CallbackContext has no models",
        ),
        ("import torchtitan.config", "import torchtitan.config: write it with from, to be followed"),
    ],
)
def test_a_name_that_is_not_there_is_a_problem(text: str, problem: str) -> None:
    assert used(text).problems == [problem]


def test_commands_and_settings_are_those_of_the_release() -> None:
    text = "\n".join(block.text for block in COMMANDS)
    modules = {each for each in re.findall(r"-m ([\w.]+)", text) if each.split(".")[0] in PINNED}
    assert modules == {name for one in PINNED.values() for name in one.get("modules", {})}

    titan = " ".join(line for line in text.splitlines() if "torchrun" in line)
    options = set(re.findall(r"(--[\w.]+)(?= |$)", titan)) - {"--run", "--"}
    assert options - {"--nproc-per-node"} <= set(PINNED["torchtitan"]["options"])
    assert set(re.findall(r"--config (\w+)", titan)) == set(PINNED["torchtitan"]["configurations"])

    overrides = re.findall(r'"\+([\w.]+)\.env_vars\.\w+=', text)
    assert overrides and set(overrides) == set(PINNED["verl"]["settings"])
