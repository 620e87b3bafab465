"""The tutorials: their code runs from the first block to the last, or says why not."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

from tests.docs.tutorials import TUTORIALS, blocks, is_notebook, problems
from tests.running import ROOT

KERNEL = "---\njupytext:\n  text_representation:\n    format_name: myst\nkernelspec:\n  name: python3\n---\n"
NOTEBOOK = f"""{KERNEL}
# A notebook

```{{code-cell}}
import pathlib, spanjax
made = 1
```

<!-- not run: fails -->
```{{code-cell}}
:tags: [skip-execution]

assert False
```

```{{code-cell}}
pathlib.Path("made.txt").write_text(spanjax.__version__ * made)
!spanjax --version >> made.txt
```
"""
PAGE = """# A page

```bash
mkdir inside && cd inside
NAME=some   # and no file
```

<!-- not run: needs a GPU -->

```bash
exit 3
```

```text
not code
```

```bash
echo "$NAME" > made.txt
spanjax --version >> made.txt
```

```python
import spanjax
open("made.txt", "a").write(spanjax.__file__)
```
"""


def run(text: str, folder: pathlib.Path) -> subprocess.CompletedProcess:
    """Runs a page in a process of its own, whose libraries may raise warnings."""
    (folder / "page.md").write_text(text)
    command = [sys.executable, "-m", "tests.docs.tutorials", str(folder / "page.md"), str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3500)


def need_notebooks() -> None:
    """Skips a test where the packages that run notebooks are missing."""
    for name in ("nbclient", "ipykernel", "myst_nb"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: the extra `docs`")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if is_notebook(page.read_text()):
        need_notebooks()
    done = run(page.read_text(), tmp_path)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])


@pytest.mark.unit
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_block_runs_or_says_why_not(page: pathlib.Path) -> None:
    assert problems(page.read_text()) == []


@pytest.mark.unit
def test_blocks_are_found() -> None:
    found = blocks(PAGE)
    assert [(block.line, block.language) for block in found] == [
        (4, "bash"),
        (11, "bash"),
        (15, "text"),
        (19, "bash"),
        (24, "python"),
    ]
    assert [block.reason for block in found] == ["", "needs a GPU", "", "", ""]
    assert PAGE.splitlines()[18] == found[3].text.splitlines()[0]
    assert is_notebook(NOTEBOOK) and not is_notebook(PAGE) and not is_notebook("---\ntitle: x\n---\n")
    nested = blocks("````markdown\n```bash\nfalse\n```\n````\n")
    assert [(block.language, block.text) for block in nested] == [("markdown", "```bash\nfalse\n```\n")]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```{code-cell}\nx\n```\n", "line 2: a cell, but the header of the page names no kernelspec"),
        (f"{KERNEL}```bash\nx\n```\n", "line 9: a block of a notebook that is no cell"),
        (f"{KERNEL}```{{code-cell}}\n:tags: [skip-execution]\n\nx\n```\n", "go together"),
        (KERNEL.replace("format_name: myst", "extension: .md"), "line 1: the header names a kernel without"),
        (f"{KERNEL}<!-- not run: why -->\n```{{code-cell}}\nx\n```\n", "go together"),
    ],
)
def test_a_block_that_does_not_run_is_found(text: str, said: str) -> None:
    (found,) = problems(text)
    assert said in found
    assert problems(NOTEBOOK) == problems(PAGE) == []


def test_blocks_of_a_page_run_in_one_shell(tmp_path: pathlib.Path) -> None:
    done = run(PAGE, tmp_path)
    assert done.returncode == 0, done.stderr
    name, version, module = (tmp_path / "inside" / "made.txt").read_text().splitlines()
    assert name == "some" and version.startswith("spanjax ") and module == str(ROOT / "spanjax" / "__init__.py")


def test_a_block_that_fails_is_found(tmp_path: pathlib.Path) -> None:
    done = run(PAGE.replace('echo "$NAME"', "cat gone.txt"), tmp_path)
    assert done.returncode == 1 and "gone.txt" in done.stderr
    assert "block of line 19" in done.stderr and "block of line 24" not in done.stderr


@pytest.mark.slow
def test_a_notebook_runs(tmp_path: pathlib.Path) -> None:
    need_notebooks()
    done = run(NOTEBOOK, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "spanjax 0." in (tmp_path / "made.txt").read_text()
    (tmp_path / "again").mkdir()
    done = run(NOTEBOOK.replace("made = 1", "made = missing"), tmp_path / "again")
    assert done.returncode == 1 and "NameError" in done.stderr
