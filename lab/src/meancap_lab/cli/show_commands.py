"""`meancap rules`, `pipelines`, `audit` and `explore`: lists, a report on a host, the page in the browser."""

from __future__ import annotations

import argparse
import pkgutil
import sys
from importlib.util import find_spec
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


_AUDIT = """\
  meancap audit my_model:subject --out audit
  meancap audit my_model:subject --gamma 1.05 --calls apart --order uc --noise-at 1

`subject` is a function without arguments in my_model.py. It returns a diffusers pipeline, or the network of a
loop of Euler steps, and a function that runs it:

  def subject():
      return pipe, lambda: pipe("a lighthouse", guidance_scale=7)

--calls, --order and --noise-at describe a loop. The folder gets audit.json and, with matplotlib, audit.png.
"""


def add_audit(commands: Any) -> None:
    p = add_command(commands, "audit", _audit, "report what the guidance of a pipeline or loop does", _AUDIT)
    p.add_argument("subject", metavar="MODULE:FUNCTION", help="where the pipeline or network comes from")
    p.add_argument("--gamma", type=float, default=1.1, help="count the samples above this ratio (1.1)")
    p.add_argument("--out", type=Path, metavar="DIR", help="write audit.json and audit.png into this folder")
    p.add_argument("--calls", choices=("together", "apart"), help="one call with both halves, or one each")
    p.add_argument("--order", choices=("cu", "uc"), help="which half comes first")
    p.add_argument("--noise-at", type=int, choices=(0, 1), help="the time at which the loop has noise")


def _audit(args: argparse.Namespace) -> int:
    from meancap.adapters.audit import audit

    sys.path.insert(0, str(Path.cwd()))
    try:
        subject = pkgutil.resolve_name(args.subject)
    except AttributeError as error:
        raise ValueError(f"MODULE:FUNCTION names a function, such as my_model:subject; {error}") from None
    thing, run = subject()
    given = {name: getattr(args, name) for name in ("calls", "order", "noise_at")}
    with audit(thing, gamma=args.gamma, **{k: v for k, v in given.items() if v is not None}) as found:
        run()
    print(found.summary())
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        print(found.save(args.out / "audit.json"))
        if len(found) and find_spec("matplotlib"):
            found.plot(args.out / "audit.png")
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
