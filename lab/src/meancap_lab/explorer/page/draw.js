// Drawing on the plane: a square canvas whose box is { x, y, half }, with y upwards. Pure: data in, paint out.

import { ruleColour, bytes, colour, shorts } from './elements.js';

const OUTSIDE = -32768;
const FULL = 32000;

// A canvas that is as sharp as the screen; `paint(pen)` runs again when its size or the colours change.
export class Plane {
  constructor(canvas, paint) {
    this.canvas = canvas;
    this.paint = paint;
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(canvas);
    this.again = () => this.draw();
    document.addEventListener('themechange', this.again);
  }

  leave() {
    this.watch.disconnect();
    document.removeEventListener('themechange', this.again);
  }

  draw() {
    const side = Math.round(this.canvas.clientWidth * devicePixelRatio);
    if (!side) return;
    if (this.canvas.width !== side) { this.canvas.width = side; this.canvas.height = side; }
    const ctx = this.canvas.getContext('2d');
    ctx.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    ctx.clearRect(0, 0, side, side);
    this.paint(ctx, this.canvas.clientWidth);
  }
}

// From the plane to the canvas.
export function frame([cx, cy, half], size) {
  const unit = size / (2 * half);
  return { px: (x) => (x - cx + half) * unit, py: (y) => (cy + half - y) * unit, unit, size };
}

export function axes(ctx, box, size) {
  const f = frame(box, size);
  ctx.strokeStyle = colour('line');
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.moveTo(f.px(0), 0); ctx.lineTo(f.px(0), size);
  ctx.moveTo(0, f.py(0)); ctx.lineTo(size, f.py(0));
  ctx.stroke();
}

// The law of the data under the condition: a glow for each member, with rings at one and two widths.
export function density(ctx, box, size, scene) {
  const f = frame(box, size);
  const ink = colour('target');
  const total = scene.components.reduce((sum, [, , w, inside]) => sum + (inside ? w : 0), 0);
  for (const [x, y, weight, inside] of scene.components) {
    const radius = 3 * scene.std * f.unit;
    if (inside) {
      const share = 0.25 + 0.75 * Math.min(1, (weight / total) * 1.5);
      const glow = ctx.createRadialGradient(f.px(x), f.py(y), 0, f.px(x), f.py(y), radius);
      for (let i = 0; i <= 8; i += 1) {
        const z = (3 * i) / 8;
        glow.addColorStop(i / 8, fade(ink, 0.55 * share * (Math.exp((-z * z) / 2) - Math.exp(-4.5))));
      }
      ctx.fillStyle = glow;
      ctx.beginPath(); ctx.arc(f.px(x), f.py(y), radius, 0, 7); ctx.fill();
    }
    ctx.strokeStyle = fade(ink, inside ? 0.8 : 0.35);
    ctx.setLineDash(inside ? [] : [2, 3]);
    for (const ring of inside ? [1, 2] : [2]) {
      ctx.beginPath(); ctx.arc(f.px(x), f.py(y), Math.max(ring * scene.std * f.unit, 1), 0, 7); ctx.stroke();
    }
    ctx.setLineDash([]);
  }
}

// Samples as dots, fewer and fainter the more there are.
export function points(ctx, size, packed, index, most = 4000) {
  const at = shorts(packed);
  const count = Math.min(at.length / 2, most);
  const dot = size > 420 ? 2 : 1.6;
  ctx.fillStyle = fade(ruleColour(index), count > 2000 ? 0.45 : 0.65);
  for (let i = 0; i < count; i += 1) {
    if (at[2 * i] === OUTSIDE) continue;
    ctx.fillRect(place(at[2 * i], size) - dot / 2, place(-at[2 * i + 1], size) - dot / 2, dot, dot);
  }
}

const place = (value, size) => ((value / FULL + 1) * size) / 2;

// Paths of samples up to frame `now`, each with its guided mean there: x is on its way to m.
export function paths(ctx, size, meter, index, now, most) {
  const states = shorts(meter.states);
  const means = shorts(meter.means);
  const row = 2 * meter.paths;
  const frames = meter.times.length;
  const ink = ruleColour(index);
  const at = (list, i, j) => [list[i * row + 2 * j], list[i * row + 2 * j + 1]];
  const trace = (list, j, last) => {
    ctx.beginPath();
    let down = false;
    for (let i = 0; i <= last; i += 1) {
      const [x, y] = at(list, i, j);
      if (x === OUTSIDE) { down = false; continue; }
      if (down) ctx.lineTo(place(x, size), place(-y, size)); else ctx.moveTo(place(x, size), place(-y, size));
      down = true;
    }
    ctx.stroke();
  };
  ctx.lineWidth = 1.3;
  for (let j = 0; j < Math.min(most, meter.paths); j += 1) {
    ctx.strokeStyle = fade(ink, 0.18);
    trace(states, j, frames - 1);
    ctx.strokeStyle = fade(ink, 0.85);
    trace(states, j, now);
    ctx.strokeStyle = fade(colour('mean'), 0.55);
    ctx.setLineDash([1.5, 2.5]);
    trace(means, j, now);
    ctx.setLineDash([]);
    const [x, y] = at(states, now, j);
    const [mx, my] = at(means, now, j);
    if (x === OUTSIDE) continue;
    if (mx !== OUTSIDE) {
      diamond(ctx, place(mx, size), place(-my, size), 4, colour('mean'));
    }
    disc(ctx, place(x, size), place(-y, size), 3.2, ink, colour('panel'));
  }
}

// Where all metered samples are at frame `now`.
export function cloud(ctx, size, meter, now) {
  const states = shorts(meter.states);
  const row = 2 * meter.paths;
  ctx.fillStyle = fade(colour('ink'), 0.75);
  for (let j = 0; j < meter.paths; j += 1) {
    const [x, y] = [states[now * row + 2 * j], states[now * row + 2 * j + 1]];
    if (x === OUTSIDE) continue;
    ctx.beginPath();
    ctx.arc(place(x, size), place(-y, size), 1.8, 0, 7);
    ctx.fill();
  }
}

function disc(ctx, x, y, radius, ink, edge) {
  ctx.beginPath(); ctx.arc(x, y, radius, 0, 7);
  ctx.fillStyle = ink; ctx.fill();
  ctx.lineWidth = 1; ctx.strokeStyle = edge; ctx.stroke();
}

function diamond(ctx, x, y, r, ink) {
  ctx.beginPath();
  ctx.moveTo(x, y - r); ctx.lineTo(x + r, y); ctx.lineTo(x, y + r); ctx.lineTo(x - r, y); ctx.closePath();
  ctx.fillStyle = ink; ctx.fill();
}

// p(condition | x) as a tint, with lines where it is 10, 50 and 90 %; amber stripes where a cap acts.
export function landscape(ctx, size, field) {
  const values = bytes(field.posterior);
  const [low, high] = [rgb(colour('likely-0')), rgb(colour('likely-1'))];
  spread(ctx, size, field.grid, (i) => [...low.map((c, k) => c + ((high[k] - c) * values[i]) / 255), 255]);
  ctx.strokeStyle = fade(colour('ink'), 0.4);
  for (const [level, width] of [[0.1, 0.7], [0.5, 1.5], [0.9, 0.7]]) {
    ctx.lineWidth = width;
    contour(ctx, values, field.grid, level * 255, size);
  }
  if (!field.capped_share) return;
  const capped = bytes(field.capped);
  const n = field.grid;
  const cell = size / n;
  ctx.save();
  ctx.beginPath();
  for (let i = 0; i < capped.length; i += 1) {
    if (capped[i]) ctx.rect((i % n) * cell, Math.floor(i / n) * cell, cell + 0.5, cell + 0.5);
  }
  ctx.clip();
  ctx.strokeStyle = fade(colour('taken'), 0.5);
  ctx.lineWidth = 1;
  ctx.beginPath();
  for (let d = -size; d < size; d += 9) { ctx.moveTo(d, size); ctx.lineTo(d + size, 0); }
  ctx.stroke();
  ctx.restore();
}

// One colour for each cell, smoothed.
function spread(ctx, size, n, shade) {
  const small = new OffscreenCanvas(n, n);
  const pen = small.getContext('2d');
  const image = pen.createImageData(n, n);
  for (let i = 0; i < n * n; i += 1) image.data.set(shade(i), 4 * i);
  pen.putImageData(image, 0, 0);
  ctx.imageSmoothingEnabled = true;
  ctx.imageSmoothingQuality = 'high';
  ctx.drawImage(small, 0, 0, size, size);
}

// Level lines by linear interpolation along the sides of each cell.
function contour(ctx, values, n, level, size) {
  const cell = size / n;
  ctx.beginPath();
  for (let i = 0; i < n - 1; i += 1) {
    for (let j = 0; j < n - 1; j += 1) {
      const at = i * n + j;
      const [a, b, c, d] = [values[at], values[at + 1], values[at + n + 1], values[at + n]];
      const cut = [];
      const side = (p, q, x0, y0, x1, y1) => {
        if ((p < level) === (q < level)) return;
        const s = (level - p) / (q - p);
        cut.push([(j + 0.5 + x0 + s * (x1 - x0)) * cell, (i + 0.5 + y0 + s * (y1 - y0)) * cell]);
      };
      side(a, b, 0, 0, 1, 0); side(b, c, 1, 0, 1, 1); side(d, c, 0, 1, 1, 1); side(a, d, 0, 0, 0, 1);
      for (let k = 0; k + 1 < cut.length; k += 2) { ctx.moveTo(...cut[k]); ctx.lineTo(...cut[k + 1]); }
    }
  }
  ctx.stroke();
}

// Arrows of the conditional velocity in grey and the guided one in the rule's colour.
export function arrows(ctx, size, field, index) {
  const n = field.arrows;
  const cell = size / n;
  const speeds = field.guided.concat(field.conditional).map(([x, y]) => Math.hypot(x, y)).sort((a, b) => a - b);
  const unit = (1.15 * cell) / Math.max(speeds[Math.floor(0.95 * (speeds.length - 1))], 1e-9);
  const kinds = [[field.conditional, fade(colour('ink'), 0.45), 1], [field.guided, ruleColour(index), 1.6]];
  for (const [list, ink, width] of kinds) {
    list.forEach(([vx, vy], k) => {
      const [x, y] = [((k % n) + 0.5) * cell, (Math.floor(k / n) + 0.5) * cell];
      arrow(ctx, x, y, vx * unit, -vy * unit, cell * 1.4, ink, width);
    });
  }
}

function arrow(ctx, x, y, dx, dy, longest, ink, width) {
  const length = Math.hypot(dx, dy);
  if (length < 0.8) return;
  const s = Math.min(1, longest / length);
  const [ex, ey, angle] = [x + dx * s, y + dy * s, Math.atan2(dy, dx)];
  const head = Math.min(5, 2 + length / 4);
  ctx.strokeStyle = ink; ctx.lineWidth = width;
  ctx.beginPath();
  ctx.moveTo(x, y); ctx.lineTo(ex, ey);
  ctx.moveTo(ex - head * Math.cos(angle - 0.5), ey - head * Math.sin(angle - 0.5));
  ctx.lineTo(ex, ey);
  ctx.lineTo(ex - head * Math.cos(angle + 0.5), ey - head * Math.sin(angle + 0.5));
  ctx.stroke();
}

function rgb(hex) { return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)); }

const fade = (hex, alpha) => `rgba(${rgb(hex).join(',')},${Math.max(0, alpha)})`;
