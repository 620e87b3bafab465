"""python -m spanjax.train --config configs/pretrain/demo.py --workdir DIR: trains whatever Run the config file defines.

The same command continues a run that was stopped or killed. Exit codes: 0 done, 2 something that a person has to change (wrong
input, a checkpoint that cannot be saved, numbers that are not finite), 3 some of the processes of the run are missing (they are
named), 75 stopped by a signal after saving (3 and 75: run the same command again).
"""

import contextlib
import dataclasses
import functools
import json
import logging
import pathlib
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import tyro

from spanjax.command import PROCESSES_MISSING, STOPPED, WRONG_INPUT, start_problem


def parse(arguments: list[str]) -> Any:
    """The command line over the RUN of its --config file; `--help` and misspelt settings are answered by tyro."""
    from spanjax.run import Preset, Run, named_run
    from spanjax.training.compilation_cache import CompilationCache

    base, path = named_run(arguments)

    @dataclasses.dataclass(frozen=True)
    class Train:
        """Trains the run that a config file defines; every setting of it can be overridden here."""

        run: Annotated[Run, tyro.conf.arg(name="")]
        config: str
        """File that defines RUN."""
        workdir: str = ""
        """Folder of checkpoints, metrics and the resolved run; the same command again continues from it."""
        preset: Preset = ""
        """parity: attention dropout 0.1, as BERT and SpanBERT; fast: none, as fused attention kernels need.
        --encoder.attention-dropout beside it still counts."""
        dry_run: bool = False
        """Print mesh, parameters, memory, learning rate and a masked example, then exit."""
        compilation_cache: CompilationCache = True

    default = Train(run=base, config=path)
    marks = (tyro.conf.AvoidSubcommands,)
    return tyro.cli(Train, default=default, args=arguments, config=marks, prog="python -m spanjax.train")


def opened(run: Any) -> Any:
    """The session of a run: of a task's examples, or of prepared rows."""
    from spanjax.tasks.base import Task

    if isinstance(run.objective, Task):
        from spanjax.tuning import open_task_session

        return open_task_session(run)
    from spanjax.session import open_session

    return open_session(run)


def words_of(session: Any) -> Any:
    """The module that says of such a session what a person wants to know."""
    from spanjax.tasks.base import Task

    if isinstance(session.run.objective, Task):
        from spanjax import show_task as words
    else:
        from spanjax import show as words
    return words


def _description(session: Any) -> dict[str, Any]:
    from spanjax.run import describe

    return {**describe(session.run), **session.identity()}


def _meta(session: Any) -> dict[str, Any]:
    import jax

    from spanjax import __version__
    from spanjax.model import stored_vocabulary

    device = session.mesh.devices.flat[0]
    return {
        "spanjax": __version__,
        "run": _description(session),
        **session.about(),
        "hardware": {
            "devices": f"{session.mesh.devices.size} x {device.device_kind}",
            "processes": jax.process_count(),
            "jax": jax.__version__,
        },
        "vocabulary": stored_vocabulary(session.vocabulary),
    }


def _fit(command: Any, session: Any, checkpoints: Any, state: Any, terminal: Any) -> Any:
    """Runs the loop with every writer open; returns how it ended."""
    from spanjax.training.guard import Watch
    from spanjax.training.loop import Loop, fit
    from spanjax.training.metrics import JsonLines, Steady, TensorBoard
    from spanjax.training.tracking import Trackers

    run, workdir, begin = session.run, pathlib.Path(command.workdir), int(state.step)
    writers, meta = (), _meta(session)
    if terminal:
        writers = (Steady("metrics.jsonl", lambda last: JsonLines(workdir / "metrics.jsonl", last), begin),)
        try:
            board = Steady("tensorboard", lambda last: TensorBoard(workdir / "tensorboard", last), begin)
            writers = (*writers, board)
        except ModuleNotFoundError:
            terminal.note("tensorboardX is not installed: metrics.jsonl holds the same numbers")
        trackers = Trackers(run.tracking, workdir, begin, run.steps, meta["run"], terminal.note)
        writers, meta = (*writers, trackers), {**meta, **trackers.meta()}
    loop = Loop(
        mesh=session.mesh,
        steps=run.steps,
        cadence=run.cadence,
        train_step=session.train_step(),
        evaluate=session.evaluator(),
        judge=session.judge,
        open_feed=session.feed,
        statistics=session.statistics,
        flops=session.flops,
        checkpoints=checkpoints,
        meta=meta,
        writers=writers,
        terminal=terminal,
        profile=run.profile,
        profile_folder=str(workdir / "profile"),
        watch=Watch(run.guard, workdir if terminal else None, session.batch_rows),
    )
    try:
        return fit(loop, state, begin)
    finally:
        for writer in (*writers, *([terminal] if terminal else [])):
            writer.close()


@contextlib.contextmanager
def _claimed(workdir: pathlib.Path, description: dict[str, Any]) -> Iterator[None]:
    """The work directory, locked and checked by process 0 before the others look into it; refused to one is refused to all."""
    import jax

    from spanjax.distributed import together
    from spanjax.lock import sole_run
    from spanjax.run import claim_workdir, writing

    with contextlib.ExitStack() as stack:

        def claim(mine: bool) -> None:
            if mine and jax.process_index() == 0:
                with writing(workdir):
                    stack.enter_context(sole_run(workdir))
            if mine:
                claim_workdir(workdir, description)

        for first in (True, False):
            together("work directory", functools.partial(claim, (jax.process_index() == 0) == first))
        yield


def _run(command: Any, session: Any, start: Any) -> int:
    """Starts or continues the run in its work directory."""
    import jax

    from spanjax.training.checkpoint import Checkpoints
    from spanjax.training.metrics import Terminal

    workdir = pathlib.Path(command.workdir)
    terminal = Terminal(session.run.steps) if jax.process_index() == 0 else None
    if terminal:
        terminal.note("\n".join([f"attention by {session.attention}", *getattr(session, "said", ())]))
    checkpoints = Checkpoints(workdir, session.run.cadence.keep)
    state = checkpoints.restore_newest(session.abstract)
    if state is None:
        state = session.fresh_state(start)
        if terminal and start:
            terminal.note("\n".join(f"init-from {session.run.init_from}: {line}" for line in start.lines))
    elif terminal:
        terminal.note(f"continuing {workdir} from step {int(state.step):,}")
    outcome = _fit(command, session, checkpoints, state, terminal)
    checkpoints.close()
    if terminal and outcome.interrupted:
        terminal.note(f"stopped by a signal after step {outcome.step:,}; saved. Run the same command to continue.")
    elif terminal:
        lines = words_of(session).summary_lines(session, outcome, command.workdir)
        terminal.note("\n".join(["", *lines]))
        (workdir / "summary.json").write_text(json.dumps({"step": outcome.step, "eval": outcome.held_out}) + "\n")
    return STOPPED if outcome.interrupted else 0


def train(command: Any) -> int:
    """Runs one parsed command; returns the exit code."""
    from spanjax import distributed

    distributed.start()
    import jax

    from spanjax.training.compilation_cache import use_compilation_cache
    from spanjax.training.saved import has_checkpoints
    from spanjax.training.tracking import require

    use_compilation_cache(command.compilation_cache)
    session = distributed.together("rows and mesh", lambda: opened(command.run))
    workdir = pathlib.Path(command.workdir)
    begun = bool(command.workdir) and has_checkpoints(workdir)
    start = None if begun else session.start()
    if command.dry_run:
        lines = words_of(session).dry_run_lines(session)
        print("\n".join([*lines, *(f"init-from   {line}" for line in (start.lines if start else ()))]))
        return 0
    if not command.workdir:
        raise ValueError("--workdir is not set: give a folder for checkpoints and metrics, or --dry-run")
    distributed.together("trackers", lambda: None if jax.process_index() else require(session.run.tracking))
    with _claimed(workdir, _description(session)):
        return _run(command, session, start)


def main(arguments: list[str] | None = None) -> int:
    """Entry point: user errors are one message on stderr and exit code 2."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    from spanjax.distributed import ProcessesMissing, leave

    try:
        return train(parse(sys.argv[1:] if arguments is None else arguments))
    except Exception as error:
        if problem := start_problem(error):
            print(f"spanjax.train: {problem}", file=sys.stderr)
            return leave(WRONG_INPUT)
        from spanjax.lock import LockedError
        from spanjax.training.guard import NonFiniteError
        from spanjax.training.saved import CheckpointError

        known = CheckpointError | LockedError | NonFiniteError | ProcessesMissing
        if type(error) is not ValueError and not isinstance(error, known):
            leave(1, error)
            raise
        print(f"spanjax.train: {error}", file=sys.stderr)
        return leave(PROCESSES_MISSING if isinstance(error, ProcessesMissing) else WRONG_INPUT)


if __name__ == "__main__":
    sys.exit(main())
