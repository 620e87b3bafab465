"""What a release consists of: the version in every place, workflows that run targets of the Makefile."""

import re
import tomllib

import pytest
import yaml

import spanjax
from tests.running import ROOT

pytestmark = pytest.mark.unit
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == spanjax.__version__
    headings = re.findall(r"^## (?:Unreleased \(after )?([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings and spanjax.__version__.startswith(headings[0])
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_targets_of_the_makefile(path) -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    jobs = yaml.safe_load(path.read_text())["jobs"]
    assert all(
        job["timeout-minutes"] <= 360
        for job in jobs.values()
        if job.get("runs-on") and "steps" in job and "needs" not in job
    )
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = [name for line in lines if line.startswith("make ") for name in line.split()[1:]]
    assert called and set(called) <= set(targets)


def test_hooks_are_installed_tools() -> None:
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"].split() for repo in repos for hook in repo["hooks"]]
    developing = (ROOT / "requirements-dev.txt").read_text()
    assert {words[2] for words in entries} == {"ruff", "pytest"}
    assert all(words[:2] == [".venv/bin/python", "-m"] and words[2] in developing for words in entries)


def prerequisites(target: str) -> set[str]:
    """The stamps that a target of the Makefile needs."""
    line = re.search(rf"^{target}:([^#\n]*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(re.findall(r"\.installed[\w-]*", line[1])) if line else set()


@pytest.mark.parametrize("target", ["docs", "test-slow", "browser"])
def test_what_builds_the_site_installs_its_packages(target: str) -> None:
    """Without them the tests of the notebooks and of the site would be skipped."""
    assert ".installed-docs" in prerequisites(target)


def test_an_installation_brings_its_setuptools() -> None:
    """A new environment has none, or one that does not read pyproject.toml: no first attempt may fail and fill the screen."""
    recipe = (ROOT / "Makefile").read_text().split("$(VENV)/.installed: ")[1].split("@touch")[0]
    assert '["build-system"]["requires"]' in recipe.split("--no-build-isolation")[0]
    assert recipe.count("--no-build-isolation") == 2 and not re.search(r"pip install.*\|\|", recipe)
