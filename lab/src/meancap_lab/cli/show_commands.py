"""`meancap rules`, `pipelines` and `explore`: lists of rules and pipelines, and the page in the browser."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..extras import need
from .command import add_command, progress

_RULES = """\
  meancap rules                    one line per method: name, space it acts in, how sure we are, title
  meancap rules apg mambo_g        the fact sheets of these
  meancap rules cap                methods whose name, family or fact sheet has this word
"""
_PIPELINES = """\
  meancap pipelines                what `guided` from meancap.adapters.diffusers supports

c is the conditional prediction, u the unconditional one, p a perturbed one; s is the pipeline's own scale and
λ the scale of classifier-free guidance that it means. If `rules` is caps, the pipeline has a formula of its
own, on whose result only caps act. The tests run every pipeline of the list with random weights; a layout is
checked against the pipeline's own result at the first step of a run.
"""


def add_rules(commands: Any) -> None:
    p = add_command(commands, "rules", rules, "list the guidance rules, or print all facts of some", _RULES)
    p.add_argument("names", nargs="*", metavar="NAME", help="a method, such as apg, or a word to search for")


def rules(args: argparse.Namespace) -> int:
    from meancap.rules.methods import catalogue_table, entry, entry_text, search

    sheets = []
    for name in args.names:
        try:
            sheets.append(entry_text(entry(name)))
        except ValueError:
            if not (matches := search(name)):
                raise
            sheets.append(catalogue_table(matches))
    print("\n\n".join(sheets) if sheets else catalogue_table())
    return 0


def add_pipelines(commands: Any) -> None:
    add_command(
        commands, "pipelines", pipelines, "list the diffusers pipelines that can be guided", _PIPELINES
    )


def pipelines(args: argparse.Namespace) -> int:
    from .pipeline_list import pipelines_text

    print(pipelines_text())
    return 0


_EXPLORE = """\
  meancap explore
  meancap explore --port 8123 --no-browser
  meancap explore --state 'images?classes=7&seeds=0-15' --export sneakers.html

A state is what follows # in the page's address. An exported page is one file that works without server and
network. The page needs no network and is reachable from this machine alone. Ctrl-C ends it.
"""


def add_explore(commands: Any) -> None:
    p = add_command(commands, "explore", _explore, "see what guidance does, in the browser", _EXPLORE)
    p.add_argument("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (a free one)")
    p.add_argument("--no-browser", action="store_true", help="only print the address")
    p.add_argument("--state", metavar="LINK", help="open this state, copied from the page's address")
    p.add_argument(
        "--export", type=Path, metavar="FILE", help="write the state as one HTML file, open nothing"
    )


def _explore(args: argparse.Namespace) -> int:
    need("numpy", "explore")
    if args.export is not None:
        return _write_export(args.state or "mixture", args.export)
    if not 0 <= args.port <= 65535:
        raise ValueError(f"--port must be a number from 0 (a free one) to 65535; got {args.port}")
    need("starlette", "explore")
    need("uvicorn", "explore")
    import threading
    import webbrowser

    import torch

    from ..explorer.comparison import COMPILED
    from ..explorer.export import link_hash
    from ..explorer.server import Server

    torch.set_num_threads(1)  # requests run in parallel; threads inside them would only wait
    state = "" if args.state is None else link_hash(args.state)

    def show() -> None:
        print(f"meancap explorer: {server.url}{state}  (Ctrl-C ends it)", flush=True)
        if not args.no_browser:
            threading.Thread(target=webbrowser.open, args=(server.url + state,), daemon=True).start()

    server = Server(args.port, ready=show)
    try:
        COMPILED.warm()
        server.run()
    except KeyboardInterrupt:
        print("\nmeancap explorer: ended")
    finally:
        COMPILED.wait()
    return 0


def _write_export(state: str, path: Path) -> int:
    import torch

    from ..explorer.export import write_page
    from ..explorer.requests import Work

    torch.set_num_threads(1)
    with progress(100, path.name, "%") as line:

        class Shown(Work):
            def tell(self, share: float, said: str = "", partial: Any = None) -> None:
                line.update(int(100 * share) - line.n)

        write_page(state, path, Shown())
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, opens in any browser")
    return 0
