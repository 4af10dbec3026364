// The numbers: a table on the page, and the same as text, as JSON and as a script, with all their digits.

import { fixed, h, percent, table, whole } from './elements.js';
import { term, WORDS } from './words.js';

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

export const named = (entry, i) => h('span', { class: 'named', css: { '--own': `var(--rule-${i})` } }, entry.rule ?? entry.text);

// Measures down, rules across; where a rule is a setting of the paper, its own number stands underneath.
export function numbersTable(result) {
  const truth = h('span', {
    class: 'named exact', title: 'As many exact samples: what a perfect sampler would give',
  }, 'the truth itself');
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
    ? `Rule ${i + 1}: total variation ${fixed(numbers.tv, 3)}, occupancy ${numbers.occupancy.map((v) => percent(v, 0)).join(', ')}.`
    : `Rule ${i + 1} has no numbers.`)).join(' ');
}
