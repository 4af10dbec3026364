// The guidance meter of one picture as a drawing: a line for each rule over time, and below it, in a strip of
// the rule's colour, the steps on which a cap acted.
//
//   chart(width, { title, t, lines: [{ name, index, values, asked, active }], now, log, floor }) -> svg
//     asked   what the rule asked for, dashed, where it differs from `values`
//     now     the time that a cursor marks, or null
//     log     the axis counts in powers of two
//     floor   the smallest value that the axis shows

import { fixed, s } from './elements.js';

const HEIGHT = 150;
const EDGE = { left: 38, right: 10, top: 10, bottom: 24 };
const STRIP = 5;

// Few round numbers from low to high.
function ticks(low, high, log) {
  const found = [];
  if (log) {
    const step = Math.max(1, Math.round(Math.log2(high / low) / 4));
    for (let power = Math.floor(Math.log2(low)); 2 ** power <= high * 1.001; power += step) {
      if (2 ** power >= low * 0.999) found.push(2 ** power);
    }
    return found;
  }
  const raw = (high - low) / 5;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((k) => k * unit >= raw);
  for (let v = Math.ceil(low / step) * step; v <= high + 1e-9; v += step) found.push(Number(v.toPrecision(12)));
  return found;
}

export function chart(width, { title, t, lines, now = null, log = false, floor = 0 }) {
  const strips = lines.filter((line) => line.active.some(Boolean));
  const bottom = EDGE.bottom + strips.length * (STRIP + 2) + (strips.length ? 4 : 0);
  const seen = lines.flatMap((line) => [...line.values, ...line.asked]).filter((v) => v !== null && (!log || v > 0));
  const low = Math.min(floor, ...seen);
  const high = Math.max(low + (log ? low : 1), ...seen) * (log ? 1.1 : 1.03);
  const along = (v) => (log ? Math.log(Math.max(v, low) / low) / Math.log(high / low) : (v - low) / (high - low));
  const x = (time) => EDGE.left + time * (width - EDGE.left - EDGE.right);
  const y = (value) => HEIGHT - along(value) * (HEIGHT - EDGE.top);
  const path = (values) => values
    .map((v, i) => (v === null ? '' : `${i && values[i - 1] !== null ? 'L' : 'M'}${x(t[i]).toFixed(1)} ${y(v).toFixed(1)}`))
    .join('');
  const foot = HEIGHT + bottom;
  return s('svg', {
    viewBox: `0 0 ${width} ${foot}`, role: 'img', class: 'chart meter',
    'aria-label': `${title}. ${lines.map(sentence).join(' ')}`,
  },
  ticks(low, high, log).map((v) => [
    s('line', { class: v === 1 ? 'unit' : 'grid', x1: EDGE.left, x2: width - EDGE.right, y1: y(v), y2: y(v) }),
    s('text', { class: 'tick end', x: EDGE.left - 6, y: y(v) + 4 }, String(v)),
  ]),
  [['start', 0, '0 noise'], ['middle', 0.5, 'time t'], ['end', 1, 'data 1']].map(([side, time, words]) => (
    s('text', { class: `tick ${side}`, x: x(time), y: foot - 6 }, words))),
  now === null ? null : s('line', { class: 'now', x1: x(now), x2: x(now), y1: EDGE.top, y2: foot - EDGE.bottom + 4 }),
  lines.filter(denied).map((line) => s('path', { class: `asked rule-${line.index}`, d: path(line.asked) })),
  lines.map((line) => s('path', { class: `curve rule-${line.index}`, d: path(line.values) })),
  strips.map((line, k) => line.active.map((on, i) => (on ? s('rect', {
    class: `bar rule-${line.index}`, x: x(t[i]), y: HEIGHT + 7 + k * (STRIP + 2), width: x(t[i + 1] ?? 1) - x(t[i]) + 0.4, height: STRIP,
  }) : null))));
}

const denied = ({ asked, values }) => asked.some((v, i) => Math.abs(v - values[i]) > 1e-6 * Math.abs(v));

const sentence = ({ name, values }) => `${name} goes from ${fixed(values[0], 2)} to ${fixed(values.at(-1), 2)}.`;
