// Four short stories: each sets the scene and the sliders, and says what to see and what to try.

import { h } from './elements.js';

const ANCHORED = ['CFG(1)', 'CFG(λ)', 'CFG(λ) | Cap(Γ)', "CFG(λ) | Cap(Γ, anchor='first')"];

export const STORIES = [
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
      + 'Try: move the time in “On the way” and see when the paths decide; then lower λ until all three are served.',
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
      + 'were lost. Guidance is now a repair, and CFG(2) is exactly right. The cap cannot know that: it forbids growth '
      + 'that this model needs, and is the worse rule at λ = 2. Try: λ = 8, where the cap is the better one again.',
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
    node: h('section', { class: 'card stories', 'aria-label': 'Stories' },
      h('div', { class: 'buttons' }, h('span', {}, 'Four stories to begin with'), buttons), text),
    show({ story }) {
      told = story;
      buttons.forEach((one) => one.setAttribute('aria-pressed', String(one.dataset.story === story)));
      text.textContent = STORIES.find((one) => one.name === story)?.text ?? '';
    },
  };
}
