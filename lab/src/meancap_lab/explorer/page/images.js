// The image view: matched pictures of the shipped model under up to four rules.
//
// This module owns the state and the running job; image_controls.js asks, image_results.js shows.

import { h } from './elements.js';
import { bar, controls, seedCount } from './image_controls.js';
import { results } from './image_results.js';

export const name = 'images';
export const title = 'Images';
export const defaults = {
  model: 'fashion', // or scenes
  classes: ['8', '3'],
  prompt: 'a red disc left of a blue square', // for the scenes
  negative: '',
  seeds: '0-7',
  steps: 20,
  scale: 8,
  gamma: 1.1,
  rule: ['CFG(1)', 'CFG(λ)', 'CFG(λ) | Cap(Γ)'],
  left: 1, // the rules between which the slider wipes
  right: 2,
  wipe: 50, // per cent of each picture that shows the left one
  one: false, // one picture under the slider, not all
  pick: 0, // the picture whose meter is read
};

const PAUSE = 60; // milliseconds for several changes at once to become one question

export function mount(root, { api, state, setState, announce, complain }) {
  const gone = new AbortController();
  let handle = { show() {}, leave() {} };
  root.dataset.busy = 'true';
  api.call('images/about', {}, { signal: gone.signal }).then((about) => {
    handle = build(root, { api, about, state, setState, announce, complain, gone });
  }).catch((error) => { if (error.name !== 'AbortError') complain(error.message); });
  return {
    show(next) { Object.assign(state, next); handle.show(); },
    leave() { gone.abort(); handle.leave(); },
  };
}

function build(root, { api, about, state, setState, announce, complain, gone }) {
  let job = null; // AbortController of the running one
  let waiting = 0;
  const progress = bar(() => job?.abort(), run);
  const note = (patch) => { Object.assign(state, patch); setState(patch); };
  const shown = results({ state, change: note, complain });
  const form = controls({ api, about, state, gone, change(patch) {
    note(patch);
    root.dataset.busy = 'true';
    clearTimeout(waiting);
    waiting = setTimeout(run, PAUSE);
  } });
  root.append(
    h('p', { class: 'lede' }, 'The same noise and the same request under several rules: every difference between two pictures comes from the rule. Two small bundled networks draw garments by class or scenes by sentence, in seconds.'),
    h('div', { class: 'layout' }, form.sliders, h('section', { class: 'first', 'aria-labelledby': 'made-title' },
      h('h2', { id: 'made-title', class: 'unseen' }, 'The same noise under each rule'), progress.node, shown.first), form.side, shown.rest));

  async function run() {
    clearTimeout(waiting);
    if (gone.signal.aborted) return;
    job?.abort();
    const mine = job = new AbortController();
    const { model, classes, prompt, negative, seeds, steps, scale, gamma, rule } = state;
    const request = { model, classes, prompt, negative, seeds, steps, scale, gamma, rules: rule };
    root.dataset.busy = 'true';
    complain('');
    progress.begin();
    shown.begin(seedCount(seeds));
    try {
      const result = await api.job('images/run', request, { signal: mine.signal, progress({ share, said, partial }) {
        if (job !== mine) return;
        progress.tell(share, said);
        if (partial) shown.preview(partial.frames, model);
      } });
      if (job !== mine) return;
      shown.show(result, request);
      form.told(result);
      progress.done(`${result.images.length * result.rules.filter((one) => one.pictures).length} pictures`);
      announce('The pictures are ready.');
    } catch (error) {
      if (job !== mine) return;
      const cancelled = error.name === 'AbortError';
      if (cancelled) announce('Cancelled.');
      else complain(error.message);
      progress.stopped(cancelled ? 'Cancelled.' : 'No pictures were made.');
      shown.stop();
    }
    job = null;
    root.dataset.busy = 'false';
  }

  run();
  return {
    show() {
      form.show();
      run();
    },
    leave() {
      clearTimeout(waiting);
      const last = job;
      job = null;
      last?.abort();
      shown.leave();
    },
  };
}
