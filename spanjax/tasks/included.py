"""The tasks of this package: for messages, and for models of transformers that name no task. A user's own is in no list."""

from spanjax.tasks.base import HfHead, Task
from spanjax.tasks.contrastive import Contrastive
from spanjax.tasks.coref import Coref
from spanjax.tasks.glue import Glue
from spanjax.tasks.ner import Ner
from spanjax.tasks.ner.spans import SpanNer
from spanjax.tasks.relation import Relation
from spanjax.tasks.squad import Questions

TASKS: tuple[type[Task], ...] = (Questions, Relation, Coref, Glue, Ner, SpanNer, Contrastive)


def score_names() -> list[str]:
    """All names of `spanjax.evaluate --task` that these tasks have."""
    return [name for kind in TASKS for name in kind.score_names]


def tasks_named(score_name: str = "", predict_command: str = "") -> str:
    """Class names of the tasks with a name of `--task` or a command of `spanjax.predict`, as text: "Questions or Ner"."""
    found = (kind for kind in TASKS if score_name in kind.score_names or predict_command == kind.predict_command)
    return " or ".join(kind.__name__ for kind in found)


def task_from_hf(head: HfHead, parts: set[str], labels: list[str]) -> tuple[type[Task], dict]:
    """Returns the task that reads models of transformers with this head, and its settings, see `Task.settings_from_hf`."""
    for kind in TASKS:
        settings = kind.settings_from_hf(parts, labels) if kind.hf_head == head else None
        if settings is not None:
            return kind, settings
    raise AssertionError(f"no task has the head {head}")
