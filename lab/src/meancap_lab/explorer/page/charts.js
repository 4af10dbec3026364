// Charts as SVG: data and a width in pixels in, a drawing out.

import { fixed, percent, s } from './elements.js';

const H = 250;
const PAD = { left: 46, right: 12, top: 14, bottom: 34 };

function steps(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= raw);
  const found = [];
  for (let v = Math.ceil(low / unit) * unit; v <= high + 1e-9; v += unit) found.push(Number(v.toFixed(6)));
  return found;
}

function path(xs, ys, px, py) {
  let text = '';
  let down = false;
  xs.forEach((x, i) => {
    if (ys[i] === null) { down = false; return; }
    text += `${down ? 'L' : 'M'}${px(x).toFixed(1)} ${py(ys[i]).toFixed(1)}`;
    down = true;
  });
  return text;
}

// Between two curves, where both exist.
function band(xs, low, high, px, py) {
  const known = xs.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null);
  if (known.length < 2) return '';
  const up = known.map((i) => `${px(xs[i]).toFixed(1)} ${py(high[i]).toFixed(1)}`);
  const back = known.reverse().map((i) => `${px(xs[i]).toFixed(1)} ${py(low[i]).toFixed(1)}`);
  return `M${up.join('L')}L${back.join('L')}Z`;
}

// Median effective scale of every rule; for the rule looked at, 10 to 90 % of the samples and what the cap took.
export function scaleChart(rules, look, now, scale, W) {
  const known = rules.filter((entry) => !entry.error);
  const seen = known.flatMap((entry) => [...entry.middle, ...entry.asked])
    .filter((v) => v !== null && Math.abs(v) < 4 * (scale + 2));
  const high = Math.max(1.5, ...seen) * 1.06;
  const low = Math.min(0, ...seen);
  const px = (t) => PAD.left + t * (W - PAD.left - PAD.right);
  const part = (v) => (Math.min(Math.max(v, low), high) - low) / (high - low);
  const py = (v) => H - PAD.bottom - part(v) * (H - PAD.top - PAD.bottom);
  const chart = s('svg', { viewBox: `0 0 ${W} ${H}`, role: 'img', class: 'chart' });
  const said = rules.map((entry, i) => (entry.error ? '' : `Rule ${i + 1}: ${summary(entry)}.`)).join(' ');
  chart.setAttribute('aria-label', `Effective scale over time. ${said}`);
  for (const v of steps(low, high, 5)) {
    const kind = v === 1 ? 'unit' : 'grid';
    chart.append(s('line', { x1: PAD.left, x2: W - PAD.right, y1: py(v), y2: py(v), class: kind }),
      s('text', { x: PAD.left - 6, y: py(v) + 4, class: 'tick end' }, String(v)));
  }
  for (const t of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
    chart.append(s('text', { x: px(t), y: H - PAD.bottom + 16, class: 'tick middle' }, String(t)));
  }
  chart.append(s('text', { x: px(0.5), y: H - 3, class: 'tick middle' }, 'time t: noise at 0, data at 1'));
  const entry = rules[look];
  if (entry && !entry.error) {
    if (entry.capped.some((share) => share > 0)) {
      chart.append(s('path', { d: band(entry.t, entry.middle, entry.asked, px, py), class: 'taken' }));
      chart.append(s('path', { d: path(entry.t, entry.asked, px, py), class: 'asked' }));
    }
    chart.append(s('path', { d: band(entry.t, entry.low, entry.high, px, py), class: `spread rule-${look}` }));
  }
  rules.forEach((one, i) => {
    if (one.error) return;
    const kind = `curve rule-${i}${i === look ? ' looked' : ''}`;
    chart.append(s('path', { d: path(one.t, one.middle, px, py), class: kind }));
  });
  chart.append(s('line', { x1: px(now), x2: px(now), y1: PAD.top, y2: H - PAD.bottom, class: 'now' }));
  return chart;
}

// One sentence about the scale that a rule requested and applied.
export function summary(entry) {
  const at = (list, i) => fixed(list.at(i), 2);
  const share = entry.capped.reduce((sum, v) => sum + v, 0) / entry.capped.length;
  const capped = share > 0 ? `capped on ${percent(share, 0)} of steps` : 'never capped';
  const applied = `applied ${at(entry.middle, 0)} at the start and ${at(entry.middle, -1)} at the end`;
  return `requested ${at(entry.asked, 0)}, ${applied}; ${capped}`;
}

// A group of bars for each member of the condition: the target as an outline, each rule with its error bar.
export function bars(scene, rules, W) {
  const members = scene.members;
  const known = rules.map((entry, i) => [entry, i]).filter(([entry]) => entry.numbers);
  const shares = [...scene.target, ...known.flatMap(([entry]) => entry.numbers.occupancy)];
  const high = Math.min(1, Math.max(...shares) * 1.12);
  const group = (W - PAD.left - PAD.right) / members.length;
  const py = (v) => H - PAD.bottom - (v / high) * (H - PAD.top - PAD.bottom);
  const chart = s('svg', { viewBox: `0 0 ${W} ${H}`, role: 'img', class: 'chart' });
  const said = known.map(([entry, i]) => `Rule ${i + 1}: ${members.map((k, j) => `component ${k} has `
    + `${percent(entry.numbers.occupancy[j])} of a target ${percent(scene.target[j])}`).join(', ')}.`);
  chart.setAttribute('aria-label', `Share of the samples at each component. ${said.join(' ')}`);
  for (const v of steps(0, high, 5)) {
    chart.append(s('line', { x1: PAD.left, x2: W - PAD.right, y1: py(v), y2: py(v), class: 'grid' }),
      s('text', { x: PAD.left - 6, y: py(v) + 4, class: 'tick end' }, `${Math.round(100 * v)} %`));
  }
  members.forEach((k, j) => {
    const left = PAD.left + j * group;
    const inner = Math.min(group * 0.8, 240);
    const start = left + (group - inner) / 2;
    const width = inner / Math.max(known.length, 1);
    known.forEach(([entry, i], place) => {
      const { occupancy: [...share], occupancy_error: error } = entry.numbers;
      const x = start + place * width;
      const middle = x + width / 2;
      const y = py(share[j]);
      const size = { x: x + 2, y, width: Math.max(width - 4, 1), height: Math.max(H - PAD.bottom - y, 0) };
      chart.append(s('rect', { ...size, class: `bar rule-${i}` }));
      // Two standard errors either way.
      const [low, top] = [Math.max(0, share[j] - 2 * error[j]), Math.min(high, share[j] + 2 * error[j])];
      const d = `M${middle} ${py(low)}V${py(top)}M${middle - 4} ${py(low)}h8M${middle - 4} ${py(top)}h8`;
      chart.append(s('path', { d, class: 'error' }));
    });
    const y = py(scene.target[j]);
    chart.append(s('line', { x1: start - 6, x2: start + inner + 6, y1: y, y2: y, class: 'due' }));
    const wide = group > 90;
    const label = (y_, text) => chart.append(s('text', { x: left + group / 2, y: y_, class: 'tick middle' }, text));
    label(H - PAD.bottom + 16, wide ? `component ${k}` : String(k));
    label(H - 3, wide ? `target ${percent(scene.target[j])}` : percent(scene.target[j], 0));
  });
  return chart;
}

// The guidance meter of one picture as a drawing: a line for each rule over time, and below it, in a strip of
// the rule's colour, the steps on which a cap acted.
//
//   chart(width, { title, t, lines: [{ name, index, values, asked, active }], now, log, floor }) -> svg
//     asked   what the rule asked for, dashed, where it differs from `values`
//     now     the time that a cursor marks, or null
//     log     the axis counts in powers of two
//     floor   the smallest value that the axis shows
const HEIGHT = 150;
const EDGE = { left: 38, right: 10, top: 10, bottom: 24 };
const STRIP = 5;

// Few round numbers from low to high.
function ticks(low, high, log) {
  if (!log) return steps(low, high, 5);
  const found = [];
  const step = Math.max(1, Math.round(Math.log2(high / low) / 4));
  for (let power = Math.floor(Math.log2(low)); 2 ** power <= high * 1.001; power += step) {
    if (2 ** power >= low * 0.999) found.push(2 ** power);
  }
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
    s('text', { class: 'tick end', x: EDGE.left - 6, y: y(v) + 4 }, String(Number(v.toPrecision(2)))),
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
