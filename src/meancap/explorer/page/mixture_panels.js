// What the mixture view shows: where samples end, their paths, the share of each component, and the numbers.

import { bars } from './charts.js';
import { axes, density, Plane, points } from './draw.js';
import { alternative, fixed, h, panel, percent, table, whole } from './elements.js';
import { named, numbersTable } from './numbers.js';
import { vectorPanel } from './vector_panel.js';
import { wayPanels } from './way_panel.js';
import { term } from './words.js';

export function panels(shared) {
  const { state, setState, copyAs } = shared;
  const ends = endsPanel(state, setState);
  const vectors = vectorPanel(state, setState, (t) => way.move(t));
  const way = wayPanels({ ...shared, moved: vectors.draw });
  const shares = sharesPanel();
  const table_ = h('div');
  const copied = (kind) => h('button', {
    type: 'button',
    onclick: async ({ target }) => {
      await copyAs(kind);
      target.textContent = 'Copied';
      setTimeout(() => { target.textContent = `Copy as ${kind}`; }, 1500);
    },
  }, `Copy as ${kind}`);
  const numbers = panel('numbers', 'Numbers',
    'What a paper would report. For TV, mean error and KL less is better; for variances 1 is right.',
    table_, h('div', { class: 'buttons' }, copied('TSV'), copied('JSON'), copied('Python')));
  return {
    first: ends.node,
    rest: h('div', { class: 'panels' }, way.ways, vectors.node, h('div', { class: 'pair' }, way.scales, shares.node), numbers),
    show(run, seconds) {
      ends.show(run, seconds);
      way.show(run);
      shares.show(run);
      table_.replaceChildren(numbersTable(run));
    },
    turn: way.turn,
    way: way.way,
    reflect(scene) {
      ends.reflect();
      way.reflect();
      vectors.show(scene);
    },
    leave() {
      ends.leave();
      way.leave();
      shares.leave();
    },
  };
}

// One square for each rule.
function endsPanel(state, setState) {
  let run = null;
  const planes = [];
  const squares = h('div', { class: 'squares' });
  const note = h('p', { class: 'note', 'aria-live': 'off' });
  const words = alternative('Where the samples end, in words');
  const choose = (value) => {
    state.zoom = value;
    setState({ zoom: value });
    for (const one of planes) one.draw();
  };
  const zoom = [['close', 'Close-up of the condition'], ['whole', 'Whole plane']].map(([value, text]) => h('label',
    { class: 'chip' }, h('input', { type: 'radio', name: 'zoom', value, onchange: () => choose(value) }),
    h('span', {}, text)));
  const node = panel('ends', 'Where the samples end',
    'Grey rings are the target; every dot is a sample, and all squares start from the same noise. '
    + 'A good rule fills each filled component evenly.',
    h('fieldset', { class: 'chips' }, h('legend', { class: 'unseen' }, 'How much of the plane'), zoom),
    squares, note, words.node);

  function add(index) {
    const canvas = h('canvas', { role: 'img', 'aria-label': 'Samples' });
    squares.append(h('figure', {}, h('figcaption', {}), canvas, h('p', { class: 'read' })));
    planes.push(new Plane(canvas, (ctx, size) => {
      const entry = run?.rules[index];
      if (!entry) return;
      const close = state.zoom === 'close';
      const box = close ? run.close : run.box;
      axes(ctx, box, size);
      density(ctx, box, size, run);
      if (entry.points) points(ctx, size, close ? entry.close : entry.points, index);
    }));
  }

  function describe(entry, i) {
    const [title, canvas, read] = squares.children[i].children;
    const shares = entry.numbers?.occupancy;
    title.replaceChildren(named(entry, i), entry.error ? h('span', { class: 'bad' }, ' cannot be shown') : '');
    read.replaceChildren(...(shares
      ? [`${shares.map((v) => fixed(100 * v, 0)).join(' / ')} % · `, ...term('TV'), ` ${fixed(entry.numbers.tv, 3)}`] : []));
    canvas.setAttribute('aria-label', shares
      ? `Samples of ${entry.rule}: ${run.members.map((k, j) => `${percent(shares[j])} at component ${k}`).join(', ')}`
      : `No samples of ${entry.text}`);
  }

  function counted(seconds) {
    const known = run.rules.filter((entry) => entry.n);
    const counts = [...new Set(known.map((entry) => whole(entry.n)))].join(' or ');
    const fewer = known.some((entry) => entry.n < run.n);
    const took = document.documentElement.dataset.saved === undefined ? `, in ${seconds.toFixed(2)} s` : '';
    return `${counts} samples${fewer ? ` of ${whole(run.n)} while you move; the rest follows` : ' for each rule'}${took}.`
      + `${run.compiling ? ' The fast engine is being compiled; until it is ready answers take a little longer.' : ''}`;
  }

  return {
    node,
    show(next, seconds) {
      run = next;
      while (planes.length > run.rules.length) {
        planes.pop().leave();
        squares.lastChild.remove();
      }
      while (planes.length < run.rules.length) add(planes.length);
      squares.dataset.count = run.rules.length;
      run.rules.forEach(describe);
      for (const one of planes) one.draw();
      note.textContent = counted(seconds);
      words.set(() => shareTable('Share of the samples at each component', run, (n, j) => percent(n.occupancy[j])));
    },
    reflect() {
      for (const label of zoom) label.firstChild.checked = label.firstChild.value === state.zoom;
    },
    leave() { for (const one of planes) one.leave(); },
  };
}

// Bars against the target.
function sharesPanel() {
  let run = null;
  const chart = h('div', { class: 'figure' });
  const legend = h('p', { class: 'legend' });
  const words = alternative('Occupancy, as a table');
  const draw = () => run && chart.replaceChildren(bars(run, run.rules, Math.max(chart.clientWidth, 260)));
  const widths = new ResizeObserver(draw);
  widths.observe(chart);
  return {
    node: panel('bars', 'Who got how much',
      'Share of the samples at each component of the condition; the dashed line is the target, error bars are two '
      + 'standard errors.', chart, legend, words.node),
    show(next) {
      run = next;
      draw();
      legend.replaceChildren(...run.rules.map(named));
      words.set(() => shareTable('Occupancy with its standard error', run,
        (n, j) => `${percent(n.occupancy[j])} ± ${percent(n.occupancy_error[j])}`));
    },
    leave() { widths.disconnect(); },
  };
}

function shareTable(caption, run, cell) {
  return table(caption, [
    ['rule', ...run.members.map((k) => `component ${k}`)],
    ['target', ...run.target.map((v) => percent(v))],
    ...run.rules.map((entry, i) => [named(entry, i), ...run.members.map((_, j) => (entry.numbers ? cell(entry.numbers, j) : '–'))]),
  ]);
}
