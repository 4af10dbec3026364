// The numbers: a table on the page, the same as tab-separated text and as JSON with all their digits.

import { fixed, h, percent, table, whole } from './elements.js';

const per = (list, digits) => (list ? list.map((v) => fixed(v, digits)).join(' / ') : '–');

// name, heading, what it means, how it is written, and the paper's column
const COLUMNS = [
  ['occupancy', 'occupancy', 'share of samples at each member of the condition', (n) => `${n.occupancy.map((v) => fixed(100 * v, 1)).join(' / ')} %`, 'occupancy_percent'],
  ['tv', 'TV', 'total variation between occupancy and target: 0 is right', (n) => fixed(n.tv, 4), 'tv'],
  ['mean_error', 'mean error', 'distance between the mean of the samples and the true one', (n) => fixed(n.mean_error, 4), 'mean_error'],
  ['variance_ratio', 'variance', 'spread within a member over the true one: 1 is right', (n) => per(n.variance_ratio, 2), 'variance_ratio'],
  ['radial_ratio', 'radial', 'the same along the direction from the origin', (n) => per(n.radial_ratio, 2)],
  ['tangential_ratio', 'tangential', 'the same across it', (n) => per(n.tangential_ratio, 2)],
  ['kl', 'KL', 'divergence from the sampled law to the truth, with its standard error: 0 is right', (n) => (n.kl === undefined ? '…' : `${fixed(n.kl, 3)} ± ${fixed(n.kl_error, 3)}`)],
];

const flat = (value) => (Array.isArray(value) ? value.map((v) => v ?? 'nan').join('/') : (value ?? ''));

// Measures down, arms across; where an arm is a setting of the paper, its own number stands underneath.
export function numbersTable(result) {
  const head = ['', ...result.arms.map((arm, i) => h('span', { class: 'named', css: { '--own': `var(--arm-${i})` } }, arm.rule ?? arm.text)),
    h('span', { class: 'named exact', title: 'The same number of samples drawn from the truth: what cannot be told from perfect' }, 'the truth itself')];
  const rows = COLUMNS.map(([name, title, hint, write, column]) => [
    [title, h('small', {}, hint)],
    ...result.arms.map((arm, i) => h('td', { data: { arm: i, number: name, value: JSON.stringify(arm.numbers?.[name] ?? null) } }, arm.numbers ? write(arm.numbers) : '–',
      arm.paper && column ? h('small', {}, `paper ${arm.paper[column].replaceAll('/', ' / ')}`) : null)),
    name === 'kl' ? '0' : write(result.exact),
  ]);
  rows.push(['samples', ...result.arms.map((arm) => (arm.n ? whole(arm.n) : '–')), whole(result.exact.n)]);
  return table('Where a cell has several numbers, there is one for each component of the condition', [head, ...rows], { class: 'numbers' });
}

function records(result, settings) {
  return result.arms.filter((arm) => arm.numbers).map((arm) => ({ scene: settings.scene, rule: arm.rule, steps: settings.steps, solver: settings.solver, seed: settings.seed, eta: result.eta, std: result.std, target: result.target, ...arm.numbers }));
}

export function asTsv(result, settings) {
  const rows = records(result, settings);
  const keys = [...new Set(rows.flatMap(Object.keys))];
  return [keys, ...rows.map((row) => keys.map((key) => flat(row[key])))].map((row) => row.join('\t')).join('\n') + '\n';
}

export const asJson = (result, settings, link) => `${JSON.stringify({ link, components: result.components, arms: records(result, settings) }, null, 1)}\n`;

// One sentence for those who cannot see the table change.
export function spoken(result) {
  return result.arms.map((arm, i) => (arm.numbers ? `Arm ${i + 1}: total variation ${fixed(arm.numbers.tv, 3)}, occupancy ${arm.numbers.occupancy.map((v) => percent(v, 0)).join(', ')}.` : `Arm ${i + 1} has no numbers.`)).join(' ');
}
