// Pictures as bytes, grey or RGB: on canvases of their own size, which the style sheet enlarges, and as one PNG.

// Paints frame `index` of some bytes; each frame is side * side * channels of them. So small a canvas stays off the
// graphics card, where every change would be a transfer.
export function paint(canvas, bytes, { size: side, channels }, index = 0) {
  if (canvas.width !== side) canvas.width = canvas.height = side;
  canvas.getContext('2d', { willReadFrequently: true }).putImageData(picture(bytes, side, channels, index), 0, 0);
}

function picture(bytes, side, channels, index) {
  const data = new ImageData(side, side);
  const from = index * side * side * channels;
  for (let i = 0; i < side * side; i += 1) {
    for (let c = 0; c < 3; c += 1) data.data[4 * i + c] = bytes[from + i * channels + (channels === 3 ? c : 0)];
    data.data[4 * i + 3] = 255;
  }
  return data;
}

// All rules below each other, each under its rule, on white: a figure for a page.
export function sheet(rules, kind, { zoom = 4, gap = 4, most = 16 } = {}) {
  const { size: side, channels } = kind;
  const count = rules[0].pictures.length;
  const columns = Math.min(count, most);
  const lines = Math.ceil(count / columns);
  const cell = side * zoom + gap;
  const head = 30;
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(columns * cell + 2 * gap, 420);
  canvas.height = rules.length * (head + lines * cell) + gap;
  const pen = canvas.getContext('2d');
  pen.fillStyle = '#fff';
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.imageSmoothingEnabled = false;
  pen.textBaseline = 'middle';
  const one = document.createElement('canvas');
  rules.forEach((entry, a) => {
    const top = a * (head + lines * cell);
    pen.fillStyle = '#222';
    pen.font = '15px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace';
    pen.fillText(entry.rule, gap, top + head / 2 + 2, canvas.width - 2 * gap);
    entry.pictures.forEach((bytes, i) => {
      paint(one, bytes, kind, bytes.length / side / side / channels - 1);
      const x = gap + (i % columns) * cell;
      const y = top + head + Math.floor(i / columns) * cell;
      pen.drawImage(one, x, y, side * zoom, side * zoom);
    });
  });
  return canvas;
}
