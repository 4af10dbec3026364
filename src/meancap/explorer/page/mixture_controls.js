// Controls of the mixture view beside scene and rules: the two sliders, the sampler, the paper's settings.

import { h, savedStops, slider, whole } from './elements.js';
import { term } from './words.js';

const USUAL = [1000, 5000, 20000, 50000];
const LARGEST_SEED = 2147483647;

export function scaleCard({ limits }, change) {
  const scale = slider({
    label: 'λ scale', hint: 'What guidance asks for: 1 is the conditional model, more pushes further',
    name: 'scale', low: 0, high: 12, most: limits.scale, step: 0.1, value: 1,
    note: term('λ', '?'), stops: savedStops().scale, oninput: (value) => change({ scale: value }),
  });
  const gamma = slider({
    label: 'Γ cap', hint: 'How much longer the guided mean may be than the conditional one: 1 forbids any growth',
    name: 'gamma', low: 1, high: 2, most: limits.gamma, step: 0.01, value: 1,
    note: term('Γ', '?'), stops: savedStops().gamma, oninput: (value) => change({ gamma: value }),
  });
  return {
    node: h('section', { class: 'card sliders', 'aria-label': 'Scale and cap' }, scale.node, gamma.node),
    show(state) {
      scale.set(state.scale);
      gamma.set(state.gamma);
    },
  };
}

export function samplingCard({ limits, solvers }, change) {
  const steps = slider({
    label: 'steps', hint: 'Steps of the solver from noise to data', name: 'steps', low: 1, high: 200,
    most: limits.steps, step: 1, value: 1, oninput: (value) => change({ steps: Math.round(value) }),
  });
  const option = (value, text) => h('option', { value }, text);
  const solver = h('select', { name: 'solver', onchange: () => change({ solver: solver.value }) },
    solvers.map((one) => option(one, one)));
  const n = h('select', { name: 'n', onchange: () => change({ n: Number(n.value) }) },
    [...USUAL, limits.samples].map((one) => option(one, whole(one))));
  const seed = h('input', { type: 'number', name: 'seed', min: 0, max: LARGEST_SEED, step: 1 });
  seed.addEventListener('change', () => {
    const typed = Math.round(Number(seed.value)) || 0;
    change({ seed: Math.min(Math.max(typed, 0), LARGEST_SEED) });
  });
  const small = (text, control) => h('label', { class: 'small' }, text, control);
  return {
    node: h('section', { class: 'card', 'aria-labelledby': 'solver-title' },
      h('h2', { id: 'solver-title' }, 'Sampling'), steps.node,
      h('div', { class: 'fields' }, small('solver', solver), small('samples', n), small('seed', seed))),
    show(state) {
      steps.set(state.steps);
      solver.value = state.solver;
      n.value = state.n;
      if (n.value !== String(state.n)) { // a link may ask for another number
        n.append(option(state.n, whole(state.n)));
        n.value = state.n;
      }
      seed.value = state.seed;
    },
  };
}

// Nine buttons, and one for each condition that puts its three side by side.
export function paperCard({ paper }, state, change) {
  const { settings, source, samples, steps } = paper;
  const use = (list) => {
    const guided = list.find((one) => one.scale > 1);
    const capped = list.find((one) => one.gamma > 1);
    change({
      scene: list[0].scene, parts: '', std: 0.03, eta: 0, steps, solver: 'euler', n: samples,
      scale: guided?.scale ?? state.scale, gamma: capped?.gamma ?? state.gamma,
      rule: list.map((one) => one.template), look: list.length - 1,
    });
  };
  const short = (guidance) => guidance.replace('Fixed ', '').replace('-CFG', '');
  const row = (members) => {
    const own = settings.filter((one) => one.members === members);
    return [
      h('button', { type: 'button', class: 'quiet', 'aria-label': `${members}, all three`, onclick: () => use(own) }, members),
      ...own.map((one) => h('button', {
        type: 'button', data: { paper: `${members} ${one.guidance}` }, 'aria-label': `${members} ${one.guidance}`,
        onclick: () => use([one]),
      }, short(one.guidance))),
    ];
  };
  return h('section', { class: 'card', 'aria-labelledby': 'paper-title' },
    h('h2', { id: 'paper-title' }, 'The paper’s nine settings'),
    h('p', { class: 'about', title: source },
      `As in the table of Peng & Ma, ${whole(samples)} samples; their numbers then stand beside ours.`),
    h('div', { class: 'nine' }, [...new Set(settings.map((one) => one.members))].map(row)));
}
