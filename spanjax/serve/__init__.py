"""python -m spanjax.serve MODEL [--port 8000]: a page on which a model fills, tags, answers or links texts of yours.

A pretrained model fills the words that you select, by each of its heads. A fine-tuned model shows its task: entities, an
answer, coreference chains, a label. The page is for this machine alone and loads nothing from elsewhere. Exit codes: 0 stopped
by Ctrl-C or SIGTERM, 2 wrong input, 130 stopped while loading.
"""

import dataclasses
import socket
import sys
from typing import Annotated

import tyro

from spanjax.bounds import Bounds, flag_problems, raise_problems
from spanjax.cli import Code, StopSignals, exit_code, parse_options
from spanjax.serve.server import LOOPBACK, PageServer, is_every_interface, is_loopback, opened
from spanjax.training.compilation_cache import CompilationCache, use_compilation_cache


@dataclasses.dataclass(frozen=True)
class Serve:
    """A model, and the address of its page."""

    model: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="MODEL",
            help="A run directory, a checkpoint, a folder of PyTorch weights, or an installed model (spanbert-mini).",
        ),
    ]
    host: str = LOOPBACK
    """Address to listen on. Any other than this machine's own opens the page to the network, without a password."""
    port: Annotated[int, Bounds(0, 65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    code: Code = ()
    compilation_cache: CompilationCache = True


def address(server: PageServer) -> str:
    """Returns the URL of the page: with the name of this machine where the server listens on all interfaces."""
    host = socket.gethostname() if is_every_interface(server.host) else server.host
    return f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/"


def serve(options: Serve) -> int:
    """Serves the page until a stop signal; returns the exit code. ValueError for an unusable address or model."""
    empty = [] if options.host else [f"--host is empty: give an address of this machine, such as {LOOPBACK}"]
    raise_problems([*flag_problems(options), *empty])
    # opened first: loading a model takes seconds, a wrong port is reported at once
    with opened(options.host, options.port) as server:
        # these import jax, which --help does not need
        from spanjax.run_format import load_code
        from spanjax.serve.playground import Playground

        use_compilation_cache(options.compilation_cache)
        load_code(options.code)
        model = Playground(options.model)
        if not is_loopback(options.host):
            print(
                f"warning: --host {options.host} opens this page to every machine that reaches this one, without"
                " authentication or encryption; `ssh -L` reaches a page on 127.0.0.1 from elsewhere",
                file=sys.stderr,
            )
        print(f"{options.model}: open {address(server)} in a browser; Ctrl-C stops", flush=True)
        with StopSignals(lambda number: server.stop()):
            server.run(model)
    print("stopped")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = parse_options(
        Serve,
        args=arguments,
        prog="python -m spanjax.serve",
        description=__doc__,
        elsewhere=("host",),
        stores=("model",),
    )
    return exit_code("spanjax.serve", lambda: serve(options), cannot=f"cannot serve {options.model}")
