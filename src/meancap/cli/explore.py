"""`meancap explore`: the interactive page, on this machine only."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .command import progress

_EXAMPLES = """\
examples:
  meancap explore
  meancap explore --port 8123 --no-browser
  meancap explore --state 'images?classes=7&seeds=0-15' --export sneakers.html

A state is what stands after # in the page's address. An exported page is one file that works without server
and network. The page needs no network and answers only to this machine. Ctrl-C ends it.
"""


def add_explore(commands: Any) -> None:
    p = commands.add_parser(
        "explore",
        help="see what guidance does, in the browser",
        description="Opens a page where scales, caps and rules can be moved and compared on the same noise.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (a free one)")
    p.add_argument("--no-browser", action="store_true", help="only print the address")
    p.add_argument("--state", metavar="LINK", help="open this state, copied from the page's address")
    p.add_argument(
        "--export", type=Path, metavar="FILE", help="write the state as one HTML file, open nothing"
    )
    p.set_defaults(run=explore)


def explore(args: argparse.Namespace) -> int:
    import threading
    import webbrowser
    from importlib.util import find_spec

    if find_spec("numpy") is None:
        raise ImportError('meancap explore needs numpy: pip install "meancap[fast]"')
    if args.export is not None:
        return write_export(args.state or "mixture", args.export)
    import torch

    from ..explorer.comparison import COMPILED
    from ..explorer.export import hashed
    from ..explorer.server import Server

    if not 0 <= args.port <= 65535:
        raise ValueError(f"--port is a number from 0 (a free one) to 65535; got {args.port}")
    torch.set_num_threads(1)  # requests run in parallel; threads inside them would only wait
    state = "" if args.state is None else hashed(args.state)
    server = Server(args.port)
    try:
        COMPILED.warm()
        print(f"meancap explorer: {server.url}{state}  (Ctrl-C ends it)", flush=True)
        if not args.no_browser:
            threading.Thread(target=webbrowser.open, args=(server.url + state,), daemon=True).start()
        server.serve_forever()
    except KeyboardInterrupt:
        print("\nmeancap explorer: ended")
    finally:
        server.server_close()
        COMPILED.wait()
    return 0


def write_export(state: str, path: Path) -> int:
    """Writes the comparison as a file, with a progress bar."""
    import torch

    from ..explorer.export import export
    from ..explorer.jobs import Work

    torch.set_num_threads(1)
    with progress(100, path.name, "%") as line:

        class Shown(Work):
            def tell(self, share: float, said: str = "", partial: Any = None) -> None:
                line.update(int(100 * share) - line.n)

        export(state, path, Shown())
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, opens in any browser")
    return 0
