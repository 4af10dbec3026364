// The page's texts: words explained where they stand, the help dialog, and four stories that set the sliders.

import { fresh, h } from './elements.js';

export const WORDS = {
  λ: 'λ, the guidance scale: how many times the gap between the conditional and the unconditional guess is taken. '
    + '1 is the conditional model as it is; more pushes further towards the condition.',
  Γ: 'Γ, the cap: how many times longer than the conditional guess the guided guess may be. 1 forbids any growth, '
    + '1.1 allows 10 %. Each sample gets the largest push that fits, at every step.',
  TV: 'TV, total variation: the share of samples that would have to move to another component to meet the target. '
    + '0 is right, 1 is entirely wrong.',
  'mean error': 'Mean error: the distance between the mean of the samples and the true mean. 0 is right; it grows if the samples '
    + 'land beside the target.',
  KL: 'KL, Kullback–Leibler divergence from the sampled law to the truth, in nats: 0 only if both are the same. It sees '
    + 'what TV cannot: samples that are too crowded inside a component. ± is one standard error.',
};

// `shown` is a button that opens the explanation of `word`.
export function term(word, shown = word) {
  const id = fresh('word');
  return [
    h('button', { type: 'button', class: 'term', popovertarget: id, 'aria-label': `What is ${word}?` }, shown),
    h('span', { id, popover: 'auto', class: 'explained' }, WORDS[word]),
  ];
}

const PARTS = [
  ['Begin', 'In the mixture view press one of the four stories: it sets the sliders and explains what to look for. Then '
    + 'move λ and Γ yourself.'],
  ['Rules', 'Up to four texts such as CFG(λ) | Cap(Γ). λ and Γ stand for the sliders; you can also type '
    + 'fixed numbers. All rules start from the same noise, so every difference comes from the rule.'],
  ['Keys', 'Tab reaches every control. Arrow keys move a slider, a component of the scene, the point of the vector '
    + 'picture, and the chosen picture of a grid.'],
  ['Save and share', 'Copy link copies an address that restores this state on any machine with meancap. Save writes one HTML '
    + 'file that needs no server; its sliders have a few stops. Copy the table of numbers as TSV, JSON or a Python script.'],
];

const DOCS = 'More: docs/quickstart.md describes this page and docs/theory.md what the cap guarantees; the command meancap rules lists every '
  + 'method.';

export function helpButton(button) {
  const close = h('button', { type: 'button', onclick: () => dialog.close() }, 'Close');
  const entry = ([name, text]) => [h('dt', {}, name), h('dd', {}, text)];
  const dialog = h('dialog', { class: 'help', 'aria-labelledby': 'help-title' },
    h('h2', { id: 'help-title' }, 'How to use this page'), h('dl', {}, PARTS.map(entry)),
    h('h3', {}, 'Words'), h('dl', {}, Object.entries(WORDS).map(entry)), h('p', { class: 'about' }, DOCS), close);
  document.body.append(dialog);
  button.addEventListener('click', () => dialog.showModal());
}

const ANCHORED = ['CFG(1)', 'CFG(λ)', 'CFG(λ) | Cap(Γ)', "CFG(λ) | Cap(Γ, anchor='first')"];

const STORIES = [
  {
    name: 'overshoot', title: 'Overshoot', state: { scene: 'single', scale: 8, look: 1, t: 0.6 },
    text: 'One component is the condition, and CFG(8) draws every sample to it. Yet the samples land beyond its rings and '
      + 'far too close together: the guess that each step aims at was pushed past the data. Under the cap they come back '
      + 'to the rings. Try: lower λ to 1, or raise Γ to 2, and watch “mean error” and “variance”.',
  },
  {
    name: 'middle', title: 'The middle branch', state: { scene: 'triple', scale: 8, look: 1, t: 0.4 },
    text: 'Three neighbours should get a third each. Guidance pushes away from all that is not the condition, and the '
      + 'middle one is farthest from it: CFG(8) sends 95 % of the samples there. The cap keeps most of the balance. '
      + 'Try: move the time in “Paths over time” and see when the paths split; then lower λ until all three get samples.',
  },
  {
    name: 'off-centre', title: 'Off-centre data', state: { scene: 'off-centre', scale: 8, look: 2, t: 0.4, rule: ANCHORED },
    text: 'The same three, moved away from the origin. The cap measures lengths from the origin, so 10 % of a long mean is '
      + 'a long way, and Cap(1.1) protects less: 65 % of the samples end in the middle, where the centred scene had 43 %. '
      + 'The fourth rule measures from the first unconditional mean, which lies amid the data. Try: Γ = 1.01.',
  },
  {
    name: 'under', title: 'An under-conditioned model', state: { scene: 'under', scale: 2, look: 2, t: 0.5, n: 5000 },
    text: 'Here the model is wrong: its conditional mean lies half-way to the unconditional one, as if half of its labels '
      + 'were lost. Guidance is now a repair, and CFG(2) is exactly right. The cap forbids growth that this '
      + 'model needs, so it is the worse rule at λ = 2. Try: λ = 8, where the cap is better again.',
  },
];

// `change(patch)` sets the whole state of the view; `usual` is what a story does not name.
export function storyCard(usual, change) {
  const text = h('p', { class: 'about', 'aria-live': 'polite' });
  let told = '';
  const buttons = STORIES.map(({ name, title, state }) => h('button', {
    type: 'button', data: { story: name }, 'aria-pressed': 'false',
    onclick: () => change(told === name ? { story: '' } : { ...usual, ...state, story: name }),
  }, title));
  return {
    node: h('section', { class: 'card stories', 'aria-labelledby': 'stories-title' },
      h('div', { class: 'buttons' }, h('h2', { id: 'stories-title' }, 'Four stories to begin with'), buttons), text),
    show({ story }) {
      told = story;
      buttons.forEach((one) => one.setAttribute('aria-pressed', String(one.dataset.story === story)));
      text.textContent = STORIES.find((one) => one.name === story)?.text ?? '';
    },
  };
}
