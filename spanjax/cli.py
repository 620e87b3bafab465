"""Common parts of every command line: commands by their first word, options, progress, errors as one message and an exit code."""

import contextlib
import dataclasses
import html
import importlib
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from spanjax.storage.objects import RANDOM, has_store

if TYPE_CHECKING:
    import rich.console

Code = Annotated[
    tuple[str, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(
        metavar="FILE",
        help="A Python file, or a module that can be imported, with classes of your own that the run has; it is run. Once for"
        " each.",
    ),
]
"""Option --code of commands that read runs and checkpoints; `run_format.load_code` loads it."""

# C0 and C1 controls but tab and newline, separators of lines, marks that turn the direction of text, lone surrogates
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Escapes text for a terminal: control characters become escapes such as \\x1b; newlines and tabs stay."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def visible_name(text: str) -> str:
    """Escapes a name for one line of a terminal, newlines and tabs as well."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def escaped(text: str) -> str:
    """Escapes text for HTML and SVG; replaces characters that neither may hold."""
    allowed = "".join(
        letter if letter in "\n\t" or (letter >= " " and not "\x7f" <= letter <= "\x9f" and letter < "\ud800")
        or letter > "\udfff" and letter not in "\ufffe\uffff" else "\ufffd"
        for letter in text
    )  # fmt: skip
    return html.escape(allowed)


def markdown_line(text: str) -> str:
    """Escapes text for one line of Markdown, so that it begins no HTML."""
    return html.escape(visible_name(text), quote=False)


DONE, WRONG_INPUT, PROCESSES_MISSING, SOME_FAILED, STOPPED, INTERRUPTED = 0, 2, 3, 4, 75, 130
"""Exit codes, for launchers: 3, processes, rows or devices are missing; 4, some of many records failed, the others are done;
75, stopped after saving, to be resumed."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
"""Requests to save and stop: from schedulers, Ctrl-C, and a terminal or an ssh connection that closes."""
LAUNCHER = "SPANJAX_LAUNCHER"
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def stop_signals() -> list[signal.Signals]:
    """Returns the STOP_SIGNALS that this process obeys: under nohup, which ignores SIGHUP, it outlives its terminal."""
    nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in STOP_SIGNALS if not (nohup and number == signal.SIGHUP)]


class StopSignals:
    """Catches STOP_SIGNALS inside a `with` block of the main thread; on another thread it does nothing.

    `tell` is called with the number on a thread, so also while the main thread is blocked in C (a compiler, a wait for other
    processes), where Python runs no handler. `handler` is Python's own, which runs in the main thread when it can.
    """

    def __init__(self, tell: Callable[[int], None], handler: Callable[[int, Any], None] = lambda number, frame: None):
        self._tell, self._handler = tell, handler
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._reading, self._writing = os.pipe()
            os.set_blocking(self._writing, False)
            self._old_wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
            threading.Thread(target=self._watch, name="spanjax-signals", daemon=True).start()
            self._before = {number: signal.signal(number, self._handler) for number in stop_signals()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._old_wakeup)
            os.close(self._writing)  # ends the thread

    def _watch(self) -> None:
        while number := os.read(self._reading, 1):
            if number[0] in STOP_SIGNALS:
                self._tell(number[0])
        os.close(self._reading)


def open_standard_streams() -> None:
    """Opens closed standard streams on the null device: a file opened later would take their numbers, and printed text."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def end_with_launcher() -> None:
    """Requests a SIGTERM for the moment at which the launcher, whose id is SPANJAX_LAUNCHER, ends in any way. Linux only."""
    launcher = os.environ.pop(LAUNCHER, "")
    if launcher and sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if launcher != str(os.getppid()):  # it has ended already
            stop_at_once(None)


def stop_at_once(number: int | None) -> None:
    """Ends a process that has nothing to save after a signal, its own or another process's (None)."""
    name = signal.Signals(number).name if number else "another process"
    with contextlib.suppress(OSError):
        os.write(2, f"stopped by {name}. Run the same command to continue.\n".encode())
    os._exit(STOPPED)


def format_duration(seconds: float) -> str:
    """3725 -> "1h02m", 95 -> "1m35s", 7 -> "7s"."""
    seconds = max(0, round(seconds))
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds % 60:02d}s" if minutes else f"{seconds}s"


def _count(number: float, unit: str) -> str:
    return f"{number / 1e6:,.1f}" if unit == "MB" else f"{number:,.0f}"


class Progress:
    """Displays how far long work is, while a `with` block runs: a bar on a terminal, else a plain line at intervals.

    Short work displays nothing. The attributes may be set at any rate and cost nothing: a thread of its own reads them. `total`
    is in the unit of `done` ("MB": both are bytes); None, an unknown total, has a bar that moves and no time left.
    """

    SOON, OFTEN, SELDOM = 1.0, 0.25, 10.0
    """Seconds: until a bar appears, between its updates, between plain lines."""

    def __init__(
        self,
        name: str,
        total: float | None = None,
        unit: str = "",
        *,
        done: float = 0.0,
        text: str = "",
        update: "Callable[[Progress], None] | None" = None,
        console: "rich.console.Console | None" = None,
        stream: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Opens nothing yet. The thread calls `update` before it reads the attributes.

        `console` draws the bar, if given; else it is on `stream`, stderr by default, if that is a terminal.
        """
        # a bar is opened with the work, so that work which fails before has changed no terminal
        self.name, self.total, self.unit, self.done = name, total, unit, done
        self.text = text
        """More about the work, behind its numbers."""
        self.below = ""
        """A line below the bar, which stays on the screen at the end, as then the bar does."""
        self.seldom = self.SELDOM
        self._console, self._stream, self._clock, self._update = console, stream or sys.stderr, clock, update
        self._first, self._over = done, threading.Event()
        self._bar: Any = None

    def __enter__(self) -> "Progress":
        self._began = self._printed = self._clock()
        terminal = self._stream.isatty() if self._console is None else self._console.is_terminal
        self._bar = self._opened() if terminal else None
        self._thread = threading.Thread(target=self._watch, name="spanjax-progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._bar is not None and self._bar.live.is_started:
            self._bar.live.transient = not self.below
            with contextlib.suppress(OSError, SystemExit):
                self._draw()
                self._bar.stop()

    def _opened(self) -> Any:
        # rich is imported here, as it takes a tenth of a second that commands without a terminal need not spend
        import rich.console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        class TwoLines(Bar):
            """The bar, and `below` under it."""

            def get_renderables(bar) -> Iterator[Any]:  # pyright: ignore[reportSelfClsParameterName]
                yield bar.make_tasks_table(bar.tasks)
                if self.below:
                    yield Text(self.below)

        given = self._console is not None
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[rest]}", markup=False),
        )
        # results go to stdout: only a bar that is drawn there may redirect what is printed
        options: dict[str, Any] = {"auto_refresh": False, "redirect_stdout": given, "redirect_stderr": given}
        bar = TwoLines(*columns, console=self._console or rich.console.Console(file=self._stream), **options)
        self._task = bar.add_task(self.name, total=self.total, rest="")
        return bar

    def _watch(self) -> None:
        while not self._over.wait(self.OFTEN):
            with contextlib.suppress(
                OSError, SystemExit
            ):  # nobody reads any more; rich turns a broken pipe into SystemExit
                self.show()

    def show(self) -> None:
        """Draws the bar, or prints a line if one is due; the thread calls it all the time."""
        now = self._clock()
        if self._bar is None:
            if now - self._printed >= self.seldom:
                self.printed()
                self._refresh()
                self._stream.write(f"{self.name}: {self.numbers(now)}\n")
                self._stream.flush()
        elif now - self._began >= self.SOON:
            self._draw()

    def _refresh(self) -> None:
        if self._update is not None:
            self._update(self)

    def _draw(self) -> None:
        self._refresh()
        self._bar.update(
            self._task, description=self.name, total=self.total, completed=self.done, rest=self.numbers(self._clock())
        )
        if self._bar.live.is_started:
            self._bar.refresh()
        else:
            self._bar.start()

    def printed(self) -> None:
        """Puts the next plain line off, as another line has just been printed."""
        self._printed = self._clock()

    def numbers(self, now: float) -> str:
        """Returns "12 of 40 batches, TEXT, 5s, 12s left" at a time of the clock, without the parts that are unknown."""
        spent, ahead = now - self._began, self.done - self._first
        parts = []
        if self.unit:
            of = "" if self.total is None else f" of {_count(self.total, self.unit)}"
            parts.append(f"{_count(self.done, self.unit)}{of} {self.unit}")
        parts += [self.text] if self.text else []
        parts.append(format_duration(spent))
        if self.total is not None and ahead > 0 and self.done < self.total:
            parts.append(f"{format_duration(spent / ahead * (self.total - self.done))} left")
        return ", ".join(parts)


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # two letters at least; pathlib makes gs:/x of gs://x
Parsed = TypeVar("Parsed")


class SomeFailedError(ValueError):
    """Some records could not be used; all others are done."""


def dispatch(
    package: str, doc: str | None, commands: Mapping[str, str], arguments: list[str] | None, default: str = ""
) -> int:
    """Runs `main` of the module of `package` that the first word names (`default` before an option); returns its exit code.

    `commands` are names and descriptions, for the help.
    """
    open_standard_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print((doc or "") + "\n" + "\n".join(f"  {name:13s}{what}" for name, what in commands.items()))
        return 0 if words else WRONG_INPUT
    command = default if default and words[0].startswith("-") else words.pop(0)
    if command not in commands:
        program = package.rpartition(".")[2]
        print(f"{program}: no command {command!r}: expected one of {', '.join(commands)}", file=sys.stderr)
        return WRONG_INPUT
    try:
        module = importlib.import_module(f"{package}.{command.replace('-', '_')}")
    except Exception as error:
        # a command whose module imports jax fails here where jax does not start
        problem = missing_package(error) or start_problem(error)
        if problem is None:
            raise
        print(f"{command}: {problem}", file=sys.stderr)
        return WRONG_INPUT
    return module.main(words)


def parse_options(
    kind: Callable[..., Parsed],
    *,
    elsewhere: Collection[str] = (),
    stores: Collection[str] = (),
    other_names: Mapping[str, str] = MappingProxyType({}),
    **settings: Any,
) -> Parsed:
    """Parses the options of a command line by tyro with these `settings`; every command that reads or writes paths calls this.

    Each text among them could be a path, so one outside this machine (gs://bucket/x) ends the program with one message and
    code 2, except for the fields in `elsewhere` (dotted names), which may lie elsewhere, or are no paths, and for addresses of
    object stores in those of `stores`. So does a flag in `other_names`, as other commands call it, with the flag to write here.
    """
    open_standard_streams()
    program = str(settings.get("prog", "spanjax")).removeprefix("python -m ")
    given = sys.argv[1:] if settings.get("args") is None else settings["args"]
    words = [word.partition("=")[0] for word in given]
    if wrong := [f"{word} is called {other_names[word]} here" for word in words if word in other_names]:
        print(f"{program}: {'; '.join(wrong)}", file=sys.stderr)
        raise SystemExit(WRONG_INPUT)
    try:
        options: Any = tyro.cli(kind, **settings)
    except BrokenPipeError:  # of --help | head: the interpreter would complain once more when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(DONE) from None

    def named(name: str, fields: Collection[str]) -> bool:
        return any(name == each or name.startswith(f"{each}.") for each in fields)

    problems = [
        f"  - --{name.replace('_', '-')} {value}: "
        + ("paths of this machine, gs:// and s3://" if named(name, stores) else "only paths of this machine")
        + " are read and written; copy the files here, mount the bucket and give its folder, or write ./ before the name of a"
        " local folder"
        for name, given in _texts(options)
        for value in [given.removeprefix(RANDOM)]
        if _SCHEME.match(value) and not named(name, elsewhere) and not (named(name, stores) and has_store(value))
    ]
    if problems:
        print(f"{program}: paths that are not on this machine:", *map(visible, problems), sep="\n", file=sys.stderr)
        raise SystemExit(WRONG_INPUT)
    return options


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields texts of nested settings with the dotted names of their flags; `run` of train and plan has no name of its own."""
    if isinstance(value, str | os.PathLike):
        yield name, os.fspath(value)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _texts(item, name)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            inner = ".".join(filter(None, (name, field.name))) if field.name != "run" else name
            yield from _texts(getattr(value, field.name), inner)


def start_problem(error: BaseException | None) -> str | None:
    """Returns the reason why jax does not start in this environment, if that caused an error; else None."""
    while error is not None:
        places = traceback.walk_tb(error.__traceback__)
        names = [frame.f_globals.get("__name__", "") for frame, _ in places if frame.f_code.co_name == "<module>"]
        importing = any(name.partition(".")[0] in ("jax", "jaxlib") for name in names)
        if importing or (isinstance(error, RuntimeError) and "nable to initialize backend" in str(error)):
            found = {name: value for name, value in sorted(os.environ.items()) if name.startswith(("JAX_", "XLA_"))}
            variables = ", ".join(f"{name}={value}" for name, value in found.items()) or "no variable of jax"
            return (
                f"jax does not start ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}): correct or unset what is"
                f" wrong of {variables}; `python -m spanjax.doctor` looks for more"
            )
        error = error.__cause__ or error.__context__
    return None


TRAINING = frozenset(
    {
        *("tensorflow", "tensorflow_text", "tensorflow_datasets", "seqio", "numba", "pyarrow", "matplotlib"),
        "tensorboardX",
    }
)
"""Modules of the extra `train`, which an installation without it lacks."""
_EXTRAS = {**dict.fromkeys(TRAINING, "train"), "onnx": "onnx", "onnxruntime": "onnx", "sklearn": "suite"}


def missing_package(error: BaseException) -> str | None:
    """Returns the remedy for an error that a package of an extra caused by its absence; None for other errors."""
    name = str(getattr(error, "name", "") or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or name not in _EXTRAS:
        return None
    extra = _EXTRAS[name]
    return f"{name} is not installed, which this needs: pip install 'spanjax[{extra}]' (in a clone: pip install '.[{extra}]')"


def exit_code(command: str, work: Callable[[], object], *, cannot: str, stopped: str = "stopped") -> int:
    """Returns what `work` returns if that is a number, else 0; 2 for ValueError (4: SomeFailedError), OSError; 130 for Ctrl-C.

    Reports them on stderr, with the notes of the exception. `cannot` names the action that a ValueError prevented ("cannot
    read these rows"), `stopped` the state that a Ctrl-C leaves behind.
    """
    try:
        found = work()
        return found if isinstance(found, int) else 0
    except ValueError as error:
        message, cause = start_problem(error) or f"{cannot}:\n{error}", error
        code = SOME_FAILED if isinstance(error, SomeFailedError) else WRONG_INPUT
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        message, code, cause = f"{error.strerror or error}{where}", WRONG_INPUT, error
    except (RuntimeError, ModuleNotFoundError) as error:
        # jax raises it if a backend does not start, which the user can correct; any other is a fault of ours
        problem = missing_package(error) or start_problem(error)
        if problem is None:
            raise
        message, code, cause = problem, WRONG_INPUT, error
    except KeyboardInterrupt as error:
        message, code, cause = stopped, INTERRUPTED, error
    notes = [f"  {note}" for note in getattr(cause, "__notes__", ())]
    print(visible("\n".join([f"{command}: {message}", *notes])), file=sys.stderr)
    return code
