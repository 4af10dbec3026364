// What is on the page and how it is worked, in a dialog that every view shares.

import { h } from './elements.js';
import { WORDS } from './words.js';

const PARTS = [
  ['Begin', 'In the mixture view press one of the four stories: it sets the sliders and says what to look for. Then '
    + 'move λ and Γ yourself.'],
  ['Rules', 'Up to four texts such as CFG(λ) | Cap(Γ). λ and Γ stand for the sliders; a fixed number may stand in their '
    + 'place. All rules begin with the same noise, so whatever differs, the rule did.'],
  ['Keys', 'Tab goes through everything. Arrow keys move a slider, a component of the scene, the point of the vector '
    + 'picture, and the chosen picture of a grid.'],
  ['Take along', 'Copy link brings this state back on any machine with meancap. Save writes it as one file that needs no '
    + 'server; its sliders keep a few stops. The tables can be copied as TSV, JSON, or a Python script.'],
];

const DOCS = 'More of it: docs/explorer.md for this page, docs/theory.md for what the cap guarantees, meancap rules for '
  + 'every method.';

export function helpButton(button) {
  const close = h('button', { type: 'button', onclick: () => dialog.close() }, 'Close');
  const entry = ([name, text]) => [h('dt', {}, name), h('dd', {}, text)];
  const dialog = h('dialog', { class: 'help', 'aria-labelledby': 'help-title' },
    h('h2', { id: 'help-title' }, 'How to use this page'), h('dl', {}, PARTS.map(entry)),
    h('h2', {}, 'Words'), h('dl', {}, Object.entries(WORDS).map(entry)), h('p', { class: 'about' }, DOCS), close);
  document.body.append(dialog);
  button.addEventListener('click', () => dialog.showModal());
}
