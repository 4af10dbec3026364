// The words that a reader may not know, and a button that explains one where it stands.

import { fresh, h } from './elements.js';

export const WORDS = {
  λ: 'λ, the guidance scale: how many times the gap between the conditional and the unconditional guess is taken. '
    + '1 is the conditional model as it is; more pushes further towards the condition.',
  Γ: 'Γ, the cap: how many times longer than the conditional guess the guided guess may be. 1 forbids any growth, '
    + '1.1 allows 10 %. Each sample gets the largest push that fits, at every step.',
  TV: 'TV, total variation: the share of samples that would have to move to another component to meet the target. '
    + '0 is right, 1 is entirely wrong.',
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
