// What was made: a grid for each rule, a slider between two of them, one picture's meter, and the numbers.

import { chart } from './charts.js';
import { bytes, fixed, h, named, percent, saveFile, table } from './elements.js';

// change(patch): the reader looks at something else
export function results({ state, change, complain }) {
  let made = null; // { result, request, frames: [rule][image] bytes or null }
  let cells = []; // [rule][image] canvas
  let now = 0; // which frame is shown
  let opened = false; // the commands
  const grids = h('div', { class: 'grids' });
  const stage = h('div', { class: 'stage' });
  const reading = h('section', { class: 'card panel reading', 'aria-labelledby': 'reading-title' });
  const numbers = h('section', { class: 'card panel', 'aria-labelledby': 'numbers-title' },
    h('h2', { id: 'numbers-title' }, 'Numbers'));
  const time = stepper((frame) => { now = frame; repaint(); read(); });
  const wiper = slider();
  const compare = h('section', { class: 'card panel compare', 'aria-labelledby': 'compare-title' },
    h('div', { class: 'title' }, h('h2', { id: 'compare-title' }, 'Between two rules'), wiper.zoom),
    h('p', { class: 'about' }, 'Left of the line one rule, right of it the other. Drag on a picture or move the slider.'), wiper.head, stage, wiper.foot);
  const rest = h('div', { class: 'rest', hidden: true }, time.node, h('div', { class: 'pair' }, compare, reading), numbers, downloads());
  const watch = new ResizeObserver(() => read());
  watch.observe(reading);

  const stale = (on) => { for (const one of [grids, rest]) one.classList.toggle('stale', on); };

  // Cards with empty pictures, where the shape of the comparison is not the one on the page.
  function lay(rules, count) {
    if (cells.length === rules && cells[0]?.length === count) return;
    cells = Array.from({ length: rules }, () => Array.from({ length: count }, () => h('canvas', { width: 28, height: 28 })));
    grids.replaceChildren(...cells.map((row, a) => h('figure', { class: 'card rule-card', data: count > 16 ? { many: '' } : {} },
      h('figcaption', {}, named(state.rule[a] ?? '', a)),
      h('div', { class: 'grid' }, row.map((canvas, i) => h('button', {
        type: 'button', class: 'cell', tabindex: i === state.pick ? 0 : -1, onclick: () => pick(i), onkeydown: (event) => walk(event, a, i),
      }, canvas))),
      h('p', { class: 'said' }))));
  }

  function walk(event, a, i) {
    const across = getComputedStyle(grids.children[a].querySelector('.grid')).gridTemplateColumns.split(' ').length;
    const to = { ArrowRight: i + 1, ArrowLeft: i - 1, ArrowDown: i + across, ArrowUp: i - across, Home: 0, End: cells[a].length - 1 }[event.key];
    if (to === undefined || !cells[a][to]) return;
    event.preventDefault();
    pick(to);
    cells[a][to].parentNode.focus();
  }

  function pick(i) {
    change({ pick: i });
    mark();
    repaint();
    read();
  }

  function mark() {
    cells.forEach((row) => row.forEach((canvas, i) => {
      canvas.parentNode.setAttribute('aria-pressed', i === state.pick);
      canvas.parentNode.tabIndex = i === state.pick ? 0 : -1;
    }));
  }

  const KINDS = { fashion: { size: 28, channels: 1 }, scenes: { size: 32, channels: 3 } };

  function preview(frames, model) {
    lay(frames.length, frames[0].length);
    frames.forEach((row, a) => row.forEach((text, i) => { if (text) paint(cells[a][i], bytes(text), KINDS[model]); }));
    mark();
  }

  function show(result, request) {
    cells = [];
    lay(result.rules.length, result.images.length);
    if (!result.images[state.pick]) change({ pick: 0 }); // a link may say anything
    made = { result, request, frames: result.rules.map((entry) => entry.pictures?.map((one) => bytes(one.frames)) ?? null) };
    now = result.frame_steps.length - 1;
    result.rules.forEach((entry, a) => {
      const card = grids.children[a];
      card.querySelector('.named').textContent = entry.rule ?? entry.text;
      card.classList.toggle('wrong', Boolean(entry.error));
      card.querySelector('.said').textContent = entry.error ?? line(entry.numbers);
      cells[a].forEach((canvas, i) => canvas.parentNode.setAttribute('aria-label', label(a, i)));
    });
    time.set(result, now);
    wiper.set();
    rest.hidden = !result.rules.some((entry) => entry.pictures);
    stale(false);
    mark();
    repaint();
    read();
  }

  const known = () => made.result.rules.map((entry, a) => [entry, a]).filter(([entry]) => entry.pictures);

  const word = (i) => {
    const { label: k, seed } = made.result.images[i];
    return `${made.result.classes[k]}, seed ${seed}`;
  };

  const label = (a, i) => `${word(i)}, rule ${a + 1}${made.result.rules[a].pictures ? `: ${verdict(a, i)}` : ''}`;

  function verdict(a, i) {
    const { sees, sure, hit, finite } = made.result.rules[a].pictures[i];
    if (!finite) return 'nothing: the samples diverged';
    if (sure === null) return `${hit ? 'right' : 'wrong'}: ${sees}`;
    const said = made.result.classes[made.result.images[i].label];
    return hit ? `${said} (${percent(sure, 0)})` : `${sees} (${said} ${percent(sure, 0)})`;
  }

  function repaint() {
    if (!made) return;
    made.frames.forEach((row, a) => row?.forEach((all, i) => paint(cells[a][i], all, made.result, now)));
    for (const pair of stage.querySelectorAll('.wiped')) {
      const [under, over] = pair.querySelectorAll('canvas');
      for (const [canvas, a] of [[under, state.right], [over, state.left]]) {
        const all = made.frames[a]?.[Number(pair.dataset.image)];
        if (all) paint(canvas, all, made.result, now);
      }
    }
  }

  // The slider: every picture of the stage shows its left part from one rule and the rest from another.
  function slider() {
    const range = h('input', { type: 'range', min: 0, max: 100, step: 1, value: state.wipe, class: 'wipe' });
    const [left, right] = ['left', 'right'].map((side) => h('select', { 'aria-label': `Rule on the ${side}`, onchange: ({ target }) => { change({ [side]: Number(target.value) }); set(); repaint(); } }));
    const zoom = h('button', { type: 'button', 'aria-pressed': false, onclick: () => { change({ one: !state.one }); set(); repaint(); } }, 'One picture');
    range.addEventListener('input', () => { change({ wipe: Number(range.value) }); move(); });
    function move() {
      range.value = state.wipe;
      state.wipe = Number(range.value); // within its bounds
      stage.style.setProperty('--wipe', `${state.wipe}%`);
      range.setAttribute('aria-label', `Between rule ${state.left + 1} and rule ${state.right + 1}`);
      range.setAttribute('aria-valuetext', `${state.wipe} per cent rule ${state.left + 1}, ${100 - state.wipe} per cent rule ${state.right + 1}`);
    }
    function drag(event, box, i) {
      if (event.type === 'pointerdown') { box.setPointerCapture(event.pointerId); if (i !== state.pick) pick(i); }
      if (!event.buttons) return;
      const { left: from, width } = box.getBoundingClientRect();
      change({ wipe: Math.round(Math.min(Math.max((100 * (event.clientX - from)) / width, 0), 100)) });
      move();
    }
    function set() {
      const { result } = made;
      const rules = known();
      for (const side of ['left', 'right']) if (!result.rules[state[side]]?.pictures) change({ [side]: (side === 'left' ? rules[0] : rules.at(-1))?.[1] ?? 0 });
      [[left, state.left], [right, state.right]].forEach(([select, value]) => {
        select.replaceChildren(...rules.map(([entry, a]) => h('option', { value: a }, `${a + 1}: ${entry.rule}`)));
        select.value = value;
        select.style.setProperty('--own', `var(--rule-${value})`);
      });
      zoom.setAttribute('aria-pressed', Boolean(state.one));
      stage.classList.toggle('one', Boolean(state.one));
      stage.classList.toggle('many', result.images.length > 16);
      stage.replaceChildren(...result.images.map((_, i) => {
        const box = h('div', { class: 'wiped', role: 'img', 'aria-label': word(i), data: { image: i } }, h('canvas', { class: 'under' }), h('canvas', { class: 'over' }), h('i'));
        for (const kind of ['pointerdown', 'pointermove']) box.addEventListener(kind, (event) => drag(event, box, Number(box.dataset.image)));
        return box;
      }));
      if (state.one) stage.replaceChildren(stage.children[state.pick]);
      move();
    }
    return { zoom, head: h('div', { class: 'ends' }, left, right), foot: range, set };
  }

  function read() {
    if (!made || rest.hidden) return;
    if (state.one && stage.firstChild && Number(stage.firstChild.dataset.image) !== state.pick) { wiper.set(); repaint(); }
    const { result } = made;
    const i = state.pick;
    const done = now === result.frame_steps.length - 1;
    const at = result.times[result.frame_steps[now]];
    const width = Math.max(reading.clientWidth, 240);
    const lines = (field) => known().map(([entry, a]) => ({
      name: `Rule ${a + 1}`, index: a, values: entry.pictures[i].meter[field],
      asked: field === 'scale' ? entry.pictures[i].meter.asked : [], active: entry.pictures[i].meter.active,
    }));
    reading.replaceChildren(
      h('h2', { id: 'reading-title' }, 'Guidance meter: ', word(i)),
      h('h3', {}, 'Effective scale ', h('span', {}, 'dashed: requested; strip below: capped')),
      chart(width, { title: 'Effective scale over time', t: result.times, lines: lines('scale'), now: done ? null : at }),
      h('h3', {}, 'Ratio |m| / |m_c| ', h('span', {}, 'guided over conditional mean, what Γ bounds')),
      chart(width, { title: 'Ratio of lengths over time', t: result.times, lines: lines('ratio').map((one) => ({ ...one, active: [] })), now: done ? null : at, log: true, floor: 1 }),
      h('p', { class: 'legend' }, known().map(([entry, a]) => named(entry.rule, a))),
      h('h3', {}, 'Squared gap over that of real examples ', h('span', {}, `all ${result.images.length} pictures; 1: the path of the data`)),
      chart(width, { title: 'Squared gap over that of real examples', t: result.times, lines: known().map(([{ gap }, a]) => ({ name: `Rule ${a + 1}`, index: a, values: gap.ratios, asked: [], active: [] })), now: done ? null : at, log: true, floor: 1 }),
      h('p', { class: 'legend path' }, known().map(([{ gap }, a]) => named(gap.sentence, a))),
    );
    tell();
    for (const box of stage.children) box.toggleAttribute('aria-current', Number(box.dataset.image) === i && !state.one);
  }

  const colours = (n) => (n.saturation === null ? `brightness ${fixed(n.brightness, 3)}` : `saturation ${fixed(n.saturation, 3)}`);
  const line = (n) => `${percent(n.accuracy, 0)} ${n.sure === null ? 'fully correct' : 'recognised'} · ${colours(n)}${n.diversity === null ? '' : ` · diversity ${fixed(n.diversity, 2)}`}`;

  function tell() {
    const { result } = made;
    const i = state.pick;
    numbers.replaceChildren(numbers.firstChild,
      table(`This picture: ${word(i)}`, [
        ['rule', 'requested scale', 'applied, first → last', 'steps capped', 'largest ratio', result.channels === 3 ? 'a detector sees' : 'a classifier sees'],
        ...known().map(([entry, a]) => {
          const { asked: [low, high], first, last, capped, ratio } = entry.pictures[i].numbers;
          return [named(entry.rule, a), high - low < 0.005 ? fixed(high, 2) : `${fixed(low, 2)} to ${fixed(high, 2)}`,
            `${fixed(first, 2)} → ${fixed(last, 2)}`, percent(capped, 0), fixed(ratio, 3), verdict(a, i)];
        })], { class: 'own' }),
      table(`All ${result.images.length} pictures of each rule`, [
        ['rule', ...(result.channels === 3 ? ['fully correct', 'saturation'] : ['recognised', 'confidence']), 'diversity', 'brightness', 'scale', 'capped', 'ratio'],
        ...known().map(([{ rule, numbers: n }, a]) => [named(rule, a), percent(n.accuracy, 0), n.sure === null ? fixed(n.saturation, 3) : percent(n.sure), fixed(n.diversity, 2),
          fixed(n.brightness, 3), `${fixed(n.first, 2)} → ${fixed(n.last, 2)}`, percent(n.capped, 0), fixed(n.ratio, 3)])], { class: 'all' }),
      h('p', { class: 'note' }, result.channels === 3 ? 'Fully correct: every word of the prompt, according to the bundled detector.' : 'Recognised and confidence: according to the bundled classifier.', ' Diversity: mean distance of two pictures of one condition in its features. Scale: applied at the first and at the last step. Ratio: the largest |m| / |m_c|. Squared gap: mean of |m_c − m_u|², over that of noised real pictures of the same ', result.channels === 3 ? 'sentence' : 'classes', '. So few pictures only illustrate a difference; ', h('code', {}, result.channels === 3 ? 'python -m studies.axes' : 'meancap reproduce fashion'), ' measures it.'),
      ...(known().some(([entry]) => entry.command) ? [h('details', { open: opened, ontoggle: ({ target }) => { opened = target.open; } }, h('summary', {}, 'The same pictures as files'),
        known().map(([entry, a]) => h('p', { class: 'command' }, named(entry.command, a))))] : []),
    );
  }

  function downloads() {
    const button = (text, work) => h('button', { type: 'button', onclick: () => work().catch((error) => complain(error.message)) }, text);
    const file = (kind) => `meancap-images.${kind}`;
    return h('div', { class: 'downloads', role: 'group', 'aria-label': 'Downloads' },
      button('Pictures (PNG)', async () => {
        const canvas = sheet(known().map(([entry, a]) => ({ rule: entry.rule, pictures: made.frames[a] })), made.result);
        saveFile(await new Promise((done) => { canvas.toBlob(done, 'image/png'); }), file('png'));
      }),
      button('Numbers (JSON)', async () => {
        const plain = (entry) => ({ ...entry, pictures: entry.pictures?.map(({ frames, ...one }) => one) });
        const all = { settings: made.request, link: location.hash, ...made.result, rules: made.result.rules.map(plain) };
        saveFile(new Blob([JSON.stringify(all, null, 1)], { type: 'application/json' }), file('json'));
      }));
  }

  return {
    first: grids,
    rest,
    preview,
    show,
    begin(count) {
      stale(true);
      if (!made) lay(state.rule.length, count);
    },
    stop() { stale(false); if (made) show(made.result, made.request); },
    leave() { watch.disconnect(); time.leave(); },
  };
}

// Through the steps of the flow: what the guided mean looked like at each.
function stepper(look) {
  const range = h('input', { type: 'range', id: 'step', min: 0, max: 0, step: 1, value: 0 });
  const words = h('output', { for: 'step' });
  const play = h('button', { type: 'button', 'aria-label': 'Play the steps' }, '▶');
  let result = null;
  let ticking = 0;
  function tell() {
    const k = Number(range.value);
    const last = k === result.frame_steps.length - 1;
    const t = result.times[result.frame_steps[k]];
    words.textContent = last ? `step ${result.steps} of ${result.steps}: the picture` : `step ${result.frame_steps[k] + 1} of ${result.steps}, t = ${t.toFixed(2)}: the guided mean`;
    range.setAttribute('aria-valuetext', words.textContent);
    look(k);
  }
  function stop() { clearInterval(ticking); ticking = 0; play.textContent = '▶'; }
  range.addEventListener('input', () => { stop(); tell(); });
  play.addEventListener('click', () => {
    if (ticking) { stop(); return; }
    if (range.value === range.max) range.value = 0;
    play.textContent = '❚❚';
    tell();
    ticking = setInterval(() => {
      range.value = Number(range.value) + 1;
      tell();
      if (range.value === range.max) stop();
    }, 120);
  });
  return {
    node: h('div', { class: 'card stepper' }, h('label', { for: 'step' }, 'Step'), play, range, words),
    set(found, k) { stop(); result = found; range.max = k; range.value = k; tell(); },
    leave: stop,
  };
}

// Pictures as bytes, grey or RGB: on canvases of their own size, which the style sheet enlarges, and as one PNG.

// Paints frame `index` of some bytes; each frame is side * side * channels of them. So small a canvas stays off the
// graphics card, where every change would be a transfer.
function paint(canvas, bytes, { size: side, channels }, index = 0) {
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
function sheet(rules, kind, { zoom = 4, gap = 4, most = 16 } = {}) {
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
