// What the image view makes: garments or a sentence, seeds, steps, the two sliders and the rules; and the progress bar.

import { h, savedStops, slider } from './elements.js';
import { ruleRows } from './rule_rows.js';
import { term } from './words.js';

// change(patch): the reader decided on something
export function controls({ api, about, state, gone, change }) {
  const { limits } = about;
  const scale = knob({
    label: 'λ scale', hint: 'The requested guidance: 1 is the conditional model, more pushes further', name: 'scale',
    low: 0, high: 15, most: limits.scale, step: 0.1, value: state.scale, note: term('λ', '?'), stops: savedStops().scale, change: (v) => change({ scale: v }),
  });
  const gamma = knob({
    label: 'Γ cap', hint: 'How much longer the guided mean may be than the conditional one: 1 forbids any growth', name: 'gamma',
    low: 1, high: 2, most: limits.gamma, step: 0.01, value: state.gamma, note: term('Γ', '?'), change: (v) => change({ gamma: v }),
  });
  const steps = knob({
    label: 'steps', hint: 'Euler steps from noise to data, one evaluation of the network for each', name: 'steps',
    low: 1, high: 50, most: limits.steps, step: 1, value: state.steps, change: (v) => change({ steps: Math.round(v) }),
  });
  const garments = h('div', { class: 'chips', role: 'group', 'aria-label': 'Garments' }, about.classes.map((word, k) => (
    h('label', { class: 'chip' }, h('input', { type: 'checkbox', name: 'class', value: k, onchange: chosen }), h('span', {}, word)))));
  const models = h('fieldset', { class: 'chips' }, h('legend', { class: 'unseen' }, 'Model'),
    [['fashion', 'Garments'], ['scenes', 'Scenes by sentence']].map(([value, word]) => h('label', { class: 'chip' },
      h('input', { type: 'radio', name: 'model', value, onchange: () => { change({ model: value }); show(); } }), h('span', {}, word))));
  const prompt = sentence(api, gone, 'prompt', 'Prompt', (text) => change({ prompt: text }));
  const negative = sentence(api, gone, 'negative', 'Negative prompt (optional)', (text) => change({ negative: text }));
  const words = h('div', { class: 'sentences' }, prompt.node, negative.node, h('p', { class: 'about' },
    'Two objects: disc, square or triangle, in red, yellow, green, cyan, blue or magenta; left of, right of, above or below; dark or light background. You may leave out any part.'));
  const seeds = h('input', {
    type: 'text', name: 'seeds', spellcheck: 'false', autocomplete: 'off', maxlength: 400,
    onchange: () => change({ seeds: seeds.value.trim() }),
  });
  const rules = ruleRows(about, check, (rule) => change({ rule }));
  const side = h('div', { class: 'side' },
    h('section', { class: 'card', 'aria-labelledby': 'what-title' }, h('h2', { id: 'what-title' }, 'Pictures'), models, garments, words,
      h('div', { class: 'fields' },
        h('label', { class: 'small seeds' }, 'seeds', seeds),
        h('button', { type: 'button', title: 'The next seeds, as many as now', onclick: moved }, 'New noise')),
      h('p', { class: 'about' }, 'One picture for each seed.'),
      steps.node),
    rules.node);
  const sliders = h('section', { class: 'card sliders', 'aria-labelledby': 'sliders-title' },
    h('h2', { id: 'sliders-title', class: 'unseen' }, 'Scale and cap'), scale.node, gamma.node);

  async function check(text) {
    const asked = { text, scale: state.scale, gamma: state.gamma, model: state.model };
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
    prompt.set(state.prompt);
    negative.set(state.negative);
    garments.hidden = state.model === 'scenes';
    words.hidden = !garments.hidden;
    for (const box of models.querySelectorAll('input')) box.checked = box.value === state.model;
    for (const box of garments.querySelectorAll('input')) box.checked = state.classes.includes(box.value);
    rules.show(state.rule);
  }

  show();
  return { side, sliders, show, told: (result) => rules.results(result.rules) };
}

// A field for a sentence of the scenes: what they understand, or do not, stands below it while one types.
function sentence(api, gone, name, label, tell) {
  const said = h('p', { class: 'said', id: `${name}-said`, 'aria-live': 'polite' });
  const field = h('input', { type: 'text', name, maxlength: 200, autocomplete: 'off', 'aria-describedby': `${name}-said` });
  let waiting = 0;
  async function check() {
    const typed = field.value;
    try {
      const { reads, error } = await api.call('images/prompt', { prompt: typed }, { signal: gone.signal });
      if (typed !== field.value) return;
      field.setAttribute('aria-invalid', String(Boolean(error)));
      said.classList.toggle('bad', Boolean(error));
      said.textContent = error ?? (reads === typed.trim() ? '' : `= ${reads || 'anything'}`);
    } catch (error) {
      if (error.name !== 'AbortError') said.textContent = error.message;
    }
  }
  field.addEventListener('input', () => { clearTimeout(waiting); waiting = setTimeout(check, 150); });
  field.addEventListener('change', () => { check(); tell(field.value.trim()); });
  const node = h('label', { class: 'small' }, label, field);
  return { node: h('div', {}, node, said), set(text) { if (field.value !== text || !said.isConnected) { field.value = text; check(); } } };
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

// A slider that says its number once the reader lets go of it: pictures take longer than a drag.
function knob({ change, ...options }) {
  const made = slider({ ...options, oninput() {} });
  const tell = () => change(Number(made.field.value));
  made.range.addEventListener('change', tell);
  made.field.addEventListener('change', tell);
  return made;
}

// How far the work is and a way to stop it; at rest, what it took, or a way to begin again.
export function bar(cancel, again) {
  const filled = h('span', { class: 'filled' });
  const track = h('div', { class: 'track', role: 'progressbar', 'aria-label': 'Making pictures', 'aria-valuemin': 0, 'aria-valuemax': 100 }, filled);
  const words = h('span', { class: 'words' });
  const stop = h('button', { type: 'button', onclick: cancel }, 'Cancel');
  const go = h('button', { type: 'button', class: 'go', onclick: again }, 'Make pictures');
  const node = h('div', { class: 'progress' }, track, words, stop, go);
  let patience = 0;
  let began = 0;
  function tell(share, said) {
    filled.style.width = `${100 * share}%`;
    track.setAttribute('aria-valuenow', Math.round(100 * share));
    words.textContent = said;
  }
  function rest(said, done) {
    clearTimeout(patience);
    words.textContent = said;
    [track.hidden, stop.hidden, go.hidden] = [true, true, done];
  }
  return {
    node,
    tell,
    begin() {
      began = performance.now();
      clearTimeout(patience);
      patience = setTimeout(() => { // pictures from memory need no bar
        tell(0, 'starting');
        [track.hidden, stop.hidden, go.hidden] = [false, false, true];
      }, 120);
    },
    done(said) {
      const seconds = (performance.now() - began) / 1000;
      rest(document.documentElement.dataset.saved === undefined ? `${said} in ${seconds.toFixed(1)} s.` : `${said}.`, true);
    },
    stopped(said) { rest(said, false); },
  };
}
