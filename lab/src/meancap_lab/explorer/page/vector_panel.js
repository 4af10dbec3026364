// One sample under the microscope: its two means, the requested mean, the cap's ball, and the mean that is applied.
// The point can be dragged or moved by keys; all of it is computed here, so that it follows without delay.

import { alternative, fixed, h, panel, percent, s, table } from './elements.js';

const SIDE = 420;
const round = (value) => Number(value.toFixed(2));

export function vectorPanel(state, setState, move) {
  let scene = null; // { components, std, eta }
  let box = [0, 0, 1];
  const drawing = s('svg', { viewBox: `0 0 ${SIDE} ${SIDE}`, class: 'vectors', role: 'group', 'aria-label': 'The cap at one sample' });
  const clock = h('input', {
    type: 'range', name: 'vector-t', min: 0, max: 1, step: 0.01, 'aria-label': 'Time of the vector picture',
    oninput: () => move(Number(clock.value)),
  });
  const time = h('output', { class: 'time' });
  const note = h('p', { class: 'note', 'aria-live': 'off' });
  const words = alternative('The vectors, as a table');
  const mark = (kind, text) => h('span', { class: 'key' }, h('span', { class: `dot ${kind}` }), text);
  const node = panel('vectors', 'The cap at one sample',
    'Drag the sample x, or focus it and use the arrow keys. The model predicts where it will end, with the condition (m_c) '
    + 'and without (m_u). Guidance continues along the line from m_u through m_c, to λ times the gap (m_λ); the cap stops '
    + 'at the ball of radius Γ |m_c| round the origin.',
    h('div', { class: 'clock' }, h('span', { class: 'time' }, 'Time'), clock, time),
    h('div', { class: 'beside' }, drawing, h('div', {}, h('p', { class: 'legend' },
      mark('at', 'x, the sample'), mark('uncond', 'm_u, without the condition'), mark('cond', 'm_c, with it'),
      mark('asked', 'm_λ, requested'), mark('granted', 'm, applied under the cap'), mark('ball', 'the ball: |m| ≤ Γ |m_c|')),
    note, words.node)));

  const px = (v) => ((v - box[0]) / box[2] + 1) * SIDE / 2;
  const py = (v) => ((box[1] - v) / box[2] + 1) * SIDE / 2;

  function go(x, y) {
    const bound = (v, middle) => round(Math.min(Math.max(v, middle - box[2]), middle + box[2]));
    Object.assign(state, { px: bound(x, box[0]), py: bound(y, box[1]) });
    setState({ px: state.px, py: state.py });
    draw();
  }

  function drag(event) {
    if (event.button) return;
    const to = (e) => {
      const at = new DOMPoint(e.clientX, e.clientY).matrixTransform(drawing.getScreenCTM().inverse());
      go(box[0] + (at.x / SIDE * 2 - 1) * box[2], box[1] - (at.y / SIDE * 2 - 1) * box[2]);
    };
    const end = () => {
      for (const [kind, act] of [['pointermove', to], ['pointerup', end], ['pointercancel', end]]) removeEventListener(kind, act);
    };
    for (const [kind, act] of [['pointermove', to], ['pointerup', end], ['pointercancel', end]]) addEventListener(kind, act);
    to(event);
    drawing.querySelector('.sample').focus({ preventScroll: true });
  }
  drawing.addEventListener('pointerdown', drag);

  function keys(event) {
    const step = event.shiftKey ? 0.25 : 0.05;
    const shift = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }[event.key];
    if (!shift) return;
    event.preventDefault();
    go(state.px + shift[0], state.py + shift[1]);
  }

  const centre = (at) => [px(at[0]), py(at[1])];

  // The point, or where the line to it leaves the frame.
  function within(from, at) {
    const [a, b] = [centre(from), centre(at)];
    const reach = (i) => (b[i] > SIDE ? (SIDE - a[i]) / (b[i] - a[i]) : b[i] < 0 ? a[i] / (a[i] - b[i]) : 1);
    return between(a, b, Math.max(0, Math.min(reach(0), reach(1))));
  }

  // A name beside a point of the drawing: the first place round it inside the frame that touches nothing in `taken`.
  function label([cx, cy], taken, letter, below = '') {
    const [w, h_] = [below ? 24 : 15, 18];
    const inside = (v, size) => Math.min(Math.max(v, size / 2 + 2), SIDE - size / 2 - 2);
    let best = null;
    for (const away of [17, 23, 30, 40, 52]) {
      for (let turn = 0; turn < 12; turn += 1) {
        const angle = (turn * Math.PI) / 6 - Math.PI / 4;
        const [x, y] = [cx + away * Math.cos(angle), cy + away * Math.sin(angle)];
        const free = !taken.some(([a, b, tw, th]) => Math.abs(a - x) < (tw + w) / 2 && Math.abs(b - y) < (th + h_) / 2);
        if (free && inside(x, w) === x && inside(y, h_) === y) best ??= [x, y];
      }
    }
    const [x, y] = best ?? [inside(cx, w), inside(cy, h_)];
    taken.push([x, y, w, h_]);
    return s('text', { x: x - w / 2, y: y + 5 }, letter, below && s('tspan', { class: 'below', dy: 4 }, below));
  }

  const line = (kind, a, b) => s('line', { class: kind, x1: px(a[0]), y1: py(a[1]), x2: px(b[0]), y2: py(b[1]) });
  const dot = (kind, at) => s('circle', { class: kind, cx: px(at[0]), cy: py(at[1]), r: 5 });

  function draw() {
    if (!scene) return;
    clock.value = state.t;
    time.textContent = `t = ${state.t.toFixed(2)}`;
    const x = [state.px, state.py];
    const seen = atSample(scene, x, state.t, state.scale, state.gamma);
    const { m_u, m_c, asked, m, share, radius, scale, ratio } = seen;
    const focused = document.activeElement === drawing.querySelector('.sample');
    const unit = SIDE / (2 * box[2]);
    const capped = share < 1;
    // What names must not cover: the dots, the sample, the origin and the lines.
    const taken = [...[m_u, m_c, asked, m, [0, 0]].map((at) => [...centre(at), 12, 12]), [...centre(x), 24, 24]];
    for (const [from, to] of [[m_u, m_c], [m_c, asked], [x, m]]) {
      for (let k = 1; k < 40; k += 1) taken.push([...between(centre(from), within(from, to), k / 40), 3, 3]);
    }
    drawing.replaceChildren(
      s('path', { class: 'grid', d: `M${px(0)} 0V${SIDE}M0 ${py(0)}H${SIDE}` }),
      ...scene.components.map(([cx, cy, , isIn]) => s('circle', {
        class: isIn ? 'goal in' : 'goal', cx: px(cx), cy: py(cy), r: Math.max(2 * scene.std * unit, 5) })),
      s('circle', { class: 'ball', cx: px(0), cy: py(0), r: radius * unit }),
      s('path', { class: 'origin', d: `M${px(0) - 6} ${py(0)}h12M${px(0)} ${py(0) - 6}v12` }),
      line('gap', m_u, m_c), line('wish', m_c, asked), line('given', m_c, m), line('aim', x, m),
      dot('uncond', m_u), dot('cond', m_c), dot('asked', asked), dot('granted', m),
      label(centre(x), taken, 'x'), label(centre(m_u), taken, 'm', 'u'), label(centre(m_c), taken, 'm', 'c'),
      ...(capped ? [label(centre(m), taken, 'm')] : []), label(within(m_c, asked), taken, 'm', 'λ'),
      s('g', {
        class: 'sample', tabindex: 0, role: 'button', onkeydown: keys, transform: `translate(${px(x[0])} ${py(x[1])})`,
        'aria-label': `Sample at ${fixed(x[0], 2)}, ${fixed(x[1], 2)}; arrow keys move it`,
      }, s('circle', { r: 16, class: 'grip' }), s('circle', { r: 7 })));
    if (focused) drawing.querySelector('.sample').focus({ preventScroll: true });
    const outside = Math.abs(asked[0] - box[0]) > box[2] || Math.abs(asked[1] - box[1]) > box[2];
    note.textContent = `Requested: λ = ${fixed(state.scale, 2)}, a mean ${fixed(ratio, 2)} times as long as m_c${outside ? ', outside the picture' : ''}. `
      + (capped ? `The cap keeps ${percent(share, 0)} of the push: an effective scale of ${fixed(scale, 2)}.`
        : 'That is inside the ball, so all of it is applied.');
    const place = ([a, b]) => [fixed(a, 3), fixed(b, 3), fixed(Math.hypot(a, b), 3)];
    words.set(() => table('Where each mean lies', [['', 'first', 'second', 'length'],
      ...[['x', x], ['m_u', m_u], ['m_c', m_c], ['m_λ, requested', asked], ['m, applied', m]].map(([name, at]) => [name, ...place(at)])]));
  }

  return {
    node,
    draw,
    show(next) {
      scene = next;
      const far = Math.max(...scene.components.flatMap(([a, b]) => [Math.abs(a), Math.abs(b)]));
      const [xs, ys] = [0, 1].map((i) => [0, ...scene.components.map((one) => one[i])]);
      const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
      box = [(x0 + x1) / 2, (y0 + y1) / 2, Math.max(x1 - x0, y1 - y0) / 2 + Math.max(0.7, 0.1 * far)];
      draw();
    },
  };
}

// The cap at one state of the plane, in closed form: what the library computes, for a picture that follows the
// pointer. A test compares every number with `meancap`.
//
//   x = (1 - t) noise + t data,   m_k = E[data | x, component k] = mu_k + (t std^2 / v) (x - t mu_k)
//   v = (1 - t)^2 + (t std)^2,    chance of k  ~  w_k exp(-|x - t mu_k|^2 / 2v)

const length = ([x, y]) => Math.hypot(x, y);
const between = (a, b, s) => a.map((v, i) => v + s * (b[i] - v));

function mean(x, t, components, std) {
  const v = (1 - t) ** 2 + (t * std) ** 2;
  const known = components.filter(([, , weight]) => weight > 0);
  const logs = known.map(([a, b, weight]) => Math.log(weight) - ((x[0] - t * a) ** 2 + (x[1] - t * b) ** 2) / (2 * v));
  const most = Math.max(...logs);
  const odds = logs.map((one) => Math.exp(one - most));
  const total = odds.reduce((sum, one) => sum + one, 0);
  return [0, 1].map((i) => known.reduce((sum, mu, k) => (
    sum + (odds[k] / total) * (mu[i] + ((t * std * std) / v) * (x[i] - t * mu[i]))), 0));
}

// The largest s in [0, 1] with |y + s g| <= gamma |y|, as in the library's cap.
function share(y, g, gamma) {
  const size = length(g);
  if (size === 0) return 1;
  const along = (y[0] * g[0] + y[1] * g[1]) / size;
  const room = length(y) * Math.sqrt((gamma - 1) * (gamma + 1));
  const reach = Math.hypot(along, room);
  return Math.min(1, along > 0 ? (room / size) * (room / (along + reach)) : (reach - along) / size);
}

// What guidance does with a sample that is at x at time t: the means, the share s that the cap keeps, and the
// scale that is left of lambda.
export function atSample({ components, std, eta }, x, t, lambda, gamma) {
  const m_u = mean(x, t, components, std);
  const m_c = between(mean(x, t, components.filter((one) => one[3]), std), m_u, eta);
  const asked = between(m_u, m_c, lambda);
  const s = share(m_c, asked.map((v, i) => v - m_c[i]), gamma);
  return {
    m_u, m_c, asked, m: between(m_c, asked, s), share: s, scale: 1 + s * (lambda - 1),
    radius: gamma * length(m_c), ratio: length(asked) / length(m_c),
  };
}
