// What the mixture view shows: where samples end, their paths, the share of each component, and the numbers.

import { bars } from './charts.js';
import { axes, density, Plane, points } from './draw.js';
import { alternative, fixed, h, named, panel, percent, table, whole } from './elements.js';
import { vectorPanel } from './vector_panel.js';
import { wayPanels } from './way_panel.js';
import { term, WORDS } from './words.js';

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
    'The measures of the paper. Lower is better for TV, mean error and KL; for variances 1 is right.',
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

// The word and the number that say whether samples are right: with one component every share is 100 % and TV is 0
// wherever the samples lie.
const verdict = ({ members }) => (members.length === 1 ? ['mean error', 'mean_error'] : ['TV', 'tv']);

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
  const zoom = [['close', 'Close-up'], ['whole', 'Whole plane']].map(([value, text]) => h('label',
    { class: 'chip' }, h('input', { type: 'radio', name: 'zoom', value, onchange: () => choose(value) }),
    h('span', {}, text)));
  const node = panel('ends', 'Where the samples end',
    'Grey rings are the target; every dot is a sample, and all squares start from the same noise. '
    + 'A good rule fills the rings of the condition and nothing else.',
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
    const [word, digits] = verdict(run);
    const number = entry.numbers && fixed(entry.numbers[digits], 3);
    const split = shares?.length > 1 ? `${shares.map((v) => fixed(100 * v, 0)).join(' / ')} % · ` : '';
    read.replaceChildren(...(shares ? [split, h('span', { class: 'together' }, ...term(word), ` ${number}`)] : []));
    canvas.setAttribute('aria-label', shares
      ? `Samples of ${entry.rule}: ${run.members.map((k, j) => `${percent(shares[j])} at component ${k}`).join(', ')}; ${word} ${number}`
      : `No samples of ${entry.text}`);
  }

  function counted(seconds) {
    const known = run.rules.filter((entry) => entry.n);
    const counts = [...new Set(known.map((entry) => whole(entry.n)))].join(' or ');
    const fewer = known.some((entry) => entry.n < run.n);
    const took = document.documentElement.dataset.saved === undefined ? `, in ${seconds.toFixed(2)} s` : '';
    return `${counts} samples${fewer ? ` of ${whole(run.n)} while the slider moves; the others follow` : ' for each rule'}${took}.`
      + `${run.compiling ? ' The fast engine is still compiling; until then answers take a little longer.' : ''}`;
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
  const node = panel('bars', 'Share of each component',
    'Share of the samples at each component of the condition; the dashed line is the target, error bars are two '
    + 'standard errors.', chart, legend, words.node);
  return {
    node,
    show(next) {
      run = next;
      node.hidden = run.members.length === 1; // one component has all samples, wherever they lie
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

// The numbers: a table on the page, and the same as text, as JSON and as a script, with all their digits.

const per = (list, digits) => (list ? list.map((v) => fixed(v, digits)).join(' / ') : '–');

// `write` is how the page shows it, `paper` the column of the paper's table.
const MEASURES = [
  {
    name: 'occupancy', title: 'occupancy', hint: 'share of samples at each member of the condition',
    write: (n) => `${n.occupancy.map((v) => fixed(100 * v, 1)).join(' / ')}\u00a0%`, paper: 'occupancy_percent',
  },
  {
    name: 'tv', title: 'TV', hint: 'total variation between occupancy and target: 0 is right',
    write: (n) => fixed(n.tv, 4), paper: 'tv',
  },
  {
    name: 'mean_error', title: 'mean error', hint: 'distance between the mean of the samples and the true one',
    write: (n) => fixed(n.mean_error, 4), paper: 'mean_error',
  },
  {
    name: 'variance_ratio', title: 'variance', hint: 'spread within a member over the true one: 1 is right',
    write: (n) => per(n.variance_ratio, 2), paper: 'variance_ratio',
  },
  {
    name: 'radial_ratio', title: 'radial', hint: 'the same along the direction from the origin',
    write: (n) => per(n.radial_ratio, 2),
  },
  {
    name: 'tangential_ratio', title: 'tangential', hint: 'the same across it',
    write: (n) => per(n.tangential_ratio, 2),
  },
  {
    name: 'kl', title: 'KL', hint: 'divergence from the sampled law to the truth, ± one error: 0 is right',
    write: (n) => (n.kl === undefined ? '…' : `${fixed(n.kl, 3)} ± ${fixed(n.kl_error, 3)}`),
  },
];

// Measures down, rules across; where a rule is a setting of the paper, its own number stands underneath.
function numbersTable(result) {
  const truth = h('span', {
    class: 'named exact', title: 'As many samples of the truth: what a perfect sampler would give',
  }, 'exact samples');
  const rows = MEASURES.map(({ name, title, hint, write, paper }) => {
    const cell = (entry, i) => h('td',
      { data: { rule: i, number: name, value: JSON.stringify(entry.numbers?.[name] ?? null) } },
      entry.numbers ? write(entry.numbers) : '–',
      entry.paper && paper ? h('small', {}, `paper ${entry.paper[paper].replaceAll('/', ' / ')}`) : null);
    return [[title in WORDS ? term(title) : title, h('small', {}, hint)], ...result.rules.map(cell), name === 'kl' ? '0' : write(result.exact)];
  });
  rows.push(['samples', ...result.rules.map((entry) => (entry.n ? whole(entry.n) : '–')), whole(result.exact.n)]);
  return table('Where a cell has several numbers, there is one for each component of the condition',
    [['', ...result.rules.map(named), truth], ...rows], { class: 'numbers' });
}

function records(result, { scene, steps, solver, seed }) {
  const { eta, std, target } = result;
  return result.rules.filter((entry) => entry.numbers)
    .map((entry) => ({ scene, rule: entry.rule, steps, solver, seed, eta, std, target, ...entry.numbers }));
}

const flat = (value) => (Array.isArray(value) ? value.map((v) => v ?? 'nan').join('/') : (value ?? ''));

export function asTsv(result, settings) {
  const rows = records(result, settings);
  const keys = [...new Set(rows.flatMap(Object.keys))];
  const lines = [keys, ...rows.map((row) => keys.map((key) => flat(row[key])))];
  return `${lines.map((line) => line.join('\t')).join('\n')}\n`;
}

export function asJson(result, settings, link) {
  return `${JSON.stringify({ link, components: result.components, rules: records(result, settings) }, null, 1)}\n`;
}

// A script that gives the same numbers.
export function asPython(result, { steps, solver, seed }) {
  const rules = result.rules.filter((entry) => entry.numbers);
  const slow = rules.some((entry) => entry.engine === 'library');
  const means = result.components.map(([x, y]) => `[${x}, ${y}]`).join(', ');
  const members = result.members.map((k) => `${k},`).join(' ');
  const rest = `uniform(${steps}), ${solver})`;
  const lines = [
    'import torch',
    `from meancap import parse, ${slow ? 'sample, ' : ''}uniform`,
    'from meancap.lab import Condition, Mixture, flow',
    'from meancap.lab.branches import branches',
    ...(slow ? ['from meancap.lab.problems import Model'] : []),
    `from meancap.sampling import ${solver}`,
    '',
    `means = torch.tensor([${means}], dtype=torch.float64)`,
    `weights = [${result.components.map((c) => c[2]).join(', ')}]`,
    `condition = Condition(Mixture(means, weights, std=${result.std}), (${members}))`,
    ...(slow ? [`model = Model(condition, eta=${result.eta})`] : []),
    `noise = torch.randn(${result.n}, 2, generator=torch.Generator().manual_seed(${seed}))`,
    ...rules.flatMap(({ rule, engine }) => [
      engine === 'library'
        ? `x = sample(model.predict, parse(${JSON.stringify(rule)}), noise.double(), ${rest}`
        : `x = flow(condition, parse(${JSON.stringify(rule)}), noise, ${rest}`,
      `print(${JSON.stringify(rule)}, branches(condition, x))`,
    ]),
  ];
  return `${lines.join('\n')}\n`;
}

// One sentence for those who cannot see the table change.
export function spoken(result) {
  return result.rules.map(({ numbers }, i) => (numbers
    ? `Rule ${i + 1}: ${verdict(result)[0].replace('TV', 'total variation')} ${fixed(numbers[verdict(result)[1]], 3)}, occupancy ${numbers.occupancy.map((v) => percent(v, 0)).join(', ')}.`
    : `Rule ${i + 1} has no numbers.`)).join(' ');
}
