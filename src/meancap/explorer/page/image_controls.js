// What to make: garments, seeds, evaluations, the two knobs and the rules.

import { ruleRows } from './rule_rows.js';
import { h } from './elements.js';
import { knob } from './image_parts.js';

// change(patch): the reader decided on something
export function controls({ api, about, state, gone, change }) {
  const { limits } = about;
  const scale = knob({
    label: 'λ scale', hint: 'What guidance asks for: 1 is no guidance, more pushes further', name: 'scale',
    low: 0, high: 15, most: limits.scale, step: 0.1, value: state.scale, change: (v) => change({ scale: v }),
  });
  const gamma = knob({
    label: 'Γ cap', hint: 'How much longer the guided mean may be than the conditional one: 1 forbids any growth', name: 'gamma',
    low: 1, high: 2, most: limits.gamma, step: 0.01, value: state.gamma, change: (v) => change({ gamma: v }),
  });
  const steps = knob({
    label: 'steps', hint: 'Euler steps from noise to data, one evaluation of the network for each', name: 'steps',
    low: 1, high: 50, most: limits.steps, step: 1, value: state.steps, change: (v) => change({ steps: Math.round(v) }),
  });
  const garments = h('div', { class: 'chips', role: 'group', 'aria-label': 'Garments' }, about.classes.map((word, k) => (
    h('label', { class: 'chip' }, h('input', { type: 'checkbox', name: 'class', value: k, onchange: chosen }), h('span', {}, word)))));
  const seeds = h('input', {
    type: 'text', name: 'seeds', spellcheck: 'false', autocomplete: 'off', maxlength: 400,
    onchange: () => change({ seeds: seeds.value.trim() }),
  });
  const rules = ruleRows(about, check, (rule) => change({ rule }));
  const side = h('div', { class: 'side' },
    h('section', { class: 'card', 'aria-labelledby': 'what-title' }, h('h2', { id: 'what-title' }, 'Pictures'), garments,
      h('div', { class: 'fields' },
        h('label', { class: 'small seeds' }, 'seeds', seeds),
        h('button', { type: 'button', title: 'The next seeds, as many as now', onclick: moved }, 'New noise')),
      h('p', { class: 'about' }, 'One picture for each seed; the garments take turns.'),
      steps.node),
    rules.node);
  const sliders = h('section', { class: 'card sliders', 'aria-label': 'Scale and cap' }, scale.node, gamma.node);

  async function check(text) {
    const asked = { text, scale: state.scale, gamma: state.gamma };
    const found = await api.call('images/check', asked, { signal: gone.signal });
    if (found.error) throw new Error(found.error);
    return found;
  }

  function moved() {
    seeds.value = next(state.seeds);
    change({ seeds: seeds.value });
  }

  function chosen({ target }) {
    const rest = state.classes.filter((one) => one !== target.value);
    if (target.checked) change({ classes: [...rest, target.value] });
    else if (rest.length) change({ classes: rest });
    else target.checked = true; // there is always something to make
  }

  function show() {
    for (const [one, value] of [[scale, state.scale], [gamma, state.gamma], [steps, state.steps]]) one.set(value);
    seeds.value = state.seeds;
    for (const box of garments.querySelectorAll('input')) box.checked = state.classes.includes(box.value);
    rules.show(state.rule);
  }

  show();
  return { side, sliders, show, told: (result) => rules.results(result.rules) };
}

const spans = (text) => text.split(',').map((part) => part.match(/\d+/g)?.map(Number) ?? [0]);

// How many pictures a text of seeds stands for, as far as can be told before the server has read it.
export const seedCount = (text) => Math.min(spans(text).reduce((sum, [low, high = low]) => sum + Math.max(high - low + 1, 1), 0), 64);

// The same number of seeds, after the last one.
function next(text) {
  const count = seedCount(text);
  const from = (Math.max(...spans(text).flat()) + 1) % 2 ** 31;
  return count > 1 ? `${from}-${from + count - 1}` : String(from);
}
