"""One HTML page of matched pictures that opens from disk: no server, no script, no file beside it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..files import write_whole
from ..runs.folder import Run
from .sheets import class_name, class_names, need_matched

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 14px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 75rem;
  padding: 0 1rem }}
h1 {{ font-size: 1.4rem }} code {{ font-size: .95em }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
th, td {{ padding: .25rem .5rem .25rem 0; text-align: left; vertical-align: middle }}
thead th {{ position: sticky; top: 0; background: #fff; border-bottom: 1px solid #ccc }}
img {{ display: block; width: clamp(48px, calc((100vw - 8rem) / {columns}), {width}px);
  max-width: none; image-rendering: {rendering} }}
.what {{ color: #555; max-width: 18rem; overflow-wrap: break-word }}
</style>
<h1>{title}</h1>
<p>{note}</p>
<table><thead><tr><th>sample</th>{heads}</tr></thead>
<tbody>
{rows}
</tbody></table>
</html>
"""


def gallery(
    runs: Sequence[Run], count: int = 40, title: str = "Matched samples", names: Sequence[str] = ()
) -> str:
    """The page as text: a row for each of the first `count` samples, a column for each run."""
    need_matched(runs)
    shown = min(count, *map(len, runs))
    images = [run.images(range(shown)) for run in runs]
    rows = []
    for i in range(shown):
        record = runs[0].records[i]
        asked = record.get("prompt")
        if asked is None:
            asked = class_name(record["label"], names or class_names(runs[0]))
        cells = "".join(f'<td><img alt="sample {i}" src="{_data_uri(batch[i])}"></td>' for batch in images)
        what = f"{escape(str(asked))}<br>seed {record['seed']}"
        rows.append(f'<tr><td class="what">{what}</td>{cells}</tr>')
    heads = "".join(f"<th><code>{escape(run.rule or 'no rule')}</code></th>" for run in runs)
    first = runs[0].config
    note = (
        f"{escape(str(first['model']))}, {len(first['times']) - 1} steps, {escape(str(first['solver']))}. "
        "Every row has one noise and one condition; only the rule differs."
    )
    small = images[0].shape[1] < 128
    return _PAGE.format(
        title=escape(title),
        note=note,
        heads=heads,
        rows="\n".join(rows),
        rendering="pixelated" if small else "auto",
        columns=len(runs),
        width=112 if small else min(320, images[0].shape[2]),
    )


def write_gallery(runs: Sequence[Run], path: Path, count: int = 40, names: Sequence[str] = ()) -> Path:
    """The page as a file that appears whole or not at all."""
    return write_whole(path, gallery(runs, count, names=names))


def _data_uri(image: npt.NDArray[np.uint8]) -> str:
    from PIL import Image

    buffer = BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
