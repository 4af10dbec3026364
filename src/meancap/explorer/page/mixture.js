// The mixture view: a plane where everything is known, so that what guidance does can be seen and measured.
//
// Controls change the state; `changed` asks the server quickly while things move (one question at a time, the
// newest state next), and once they rest asks for everything, which a later change aborts.

import { armRows } from './arm_rows.js';
import { h, slider } from './elements.js';
import { panels } from './mixture_panels.js';
import { asJson, asTsv, spoken } from './numbers.js';
import { read, sceneEditor } from './scene_editor.js';

export const name = 'mixture';
export const title = 'Mixture';
export const defaults = {
  scene: 'triple',
  parts: '', // x,y,weight,inside;... of a scene of one's own
  std: 0.03,
  eta: 0,
  scale: 3,
  gamma: 1.1,
  steps: 50,
  solver: 'euler',
  n: 20000,
  seed: 0,
  arm: ['CFG(1)', 'CFG(λ)', 'CFG(λ) | Cap(Γ)'],
  look: 2, // the arm whose way is shown
  t: 0.5,
  zoom: 'close',
};

const REST = 250; // milliseconds without a change before everything is asked for

export function mount(root, { api, state, setState, announce, complain, copy }) {
  const gone = new AbortController();
  let handle = { show() {}, leave() {} };
  root.dataset.busy = 'true';
  api.call('mixture/about', {}, { signal: gone.signal }).then((about) => {
    handle = build(root, { api, state, setState, announce, complain, copy, about, gone });
  }).catch((error) => { if (error.name !== 'AbortError') complain(error.message); });
  return {
    show: (next) => handle.show(next),
    leave() { gone.abort(); handle.leave(); },
  };
}

function build(root, { api, state, setState, announce, complain, copy, about, gone }) {
  let version = 0; // of the state
  let shown = { version: -1, full: false };
  let asking = false;
  let resting = 0;
  let full = null; // AbortController of the question about everything
  let result = null;
  let known = { key: '', answer: null }; // the newest question about the way

  const question = () => {
    const { scene, std, eta, scale, gamma, steps, solver, n, seed, arm } = state;
    const own = scene === 'own' ? { components: read(state.parts), std, eta } : {};
    return { scene, ...own, scale, gamma, steps, solver, n, seed, arms: arm };
  };
  const failed = (error) => {
    if (error.name === 'AbortError') return;
    complain(error.message);
    root.dataset.busy = 'false';
  };

  function changed(patch) {
    Object.assign(state, patch);
    setState(patch);
    version += 1;
    root.dataset.busy = 'true';
    full?.abort();
    clearTimeout(resting);
    resting = setTimeout(everything, REST);
    reflect();
    ask();
  }

  async function ask() {
    if (asking || shown.version === version) return;
    asking = true;
    const mine = version;
    await answers(mine, true, gone.signal).catch((error) => { known.key = ''; failed(error); });
    asking = false;
    if (!gone.signal.aborted && mine < version && !full) ask();
  }

  async function everything() {
    full = new AbortController();
    const mine = full;
    gone.signal.addEventListener('abort', () => mine.abort(), { once: true });
    try {
      await answers(version, false, mine.signal);
      root.dataset.busy = 'false';
      announce(spoken(result));
    } catch (error) {
      known.key = '';
      failed(error);
    } finally {
      if (full === mine) full = null;
    }
  }

  // Each part is shown as soon as it is there; `asked` is the version of the state it belongs to.
  async function answers(asked, quick, signal) {
    const request = question();
    const began = performance.now();
    const run = api.call('mixture/run', { ...request, quick }, { signal }).then((found) => {
      // A quick answer may come after the full one to the same question.
      if (asked < shown.version || (asked === shown.version && shown.full)) return;
      shown = { version: asked, full: !quick };
      complain('');
      result = found;
      view.show(found, (performance.now() - began) / 1000);
      arms.results(found.arms);
    });
    await Promise.all([run, way(asked, request, signal)]);
  }

  // The way of the samples does not depend on how many are counted: if it was just asked for, it is known.
  function way(asked, request, signal) {
    const key = `${asked} ${state.t}`;
    if (known.key === key) return known.answer;
    const look = Math.min(state.look, state.arm.length - 1);
    const answer = Promise.all([
      api.call('mixture/meter', request, { signal }),
      api.call('mixture/field', { ...request, t: state.t, arm: look }, { signal }),
    ]).then(([meter, field]) => { if (known.key === key || !known.key) view.way(meter, field); });
    known = { key, answer };
    return answer;
  }

  const sampler = (event) => changed({ [event.target.name]: event.target.type === 'number' ? Number(event.target.value) : event.target.value });
  const scale = slider({ label: 'λ scale', hint: 'What guidance asks for: 1 is the conditional model, more pushes further', name: 'scale', low: 0, high: 12, most: about.limits.scale, step: 0.1, value: state.scale, oninput: (v) => changed({ scale: v }) });
  const gamma = slider({ label: 'Γ cap', hint: 'How much longer the guided mean may be than the conditional one: 1 forbids any growth', name: 'gamma', low: 1, high: 2, most: about.limits.gamma, step: 0.01, value: state.gamma, oninput: (v) => changed({ gamma: v }) });
  const steps = slider({ label: 'steps', hint: 'Steps of the solver from noise to data', name: 'steps', low: 1, high: 200, most: about.limits.steps, step: 1, value: state.steps, oninput: (v) => changed({ steps: Math.round(v) }) });
  const solver = h('select', { name: 'solver', onchange: sampler }, about.solvers.map((one) => h('option', { value: one }, one)));
  const sizes = [...new Set([1000, 5000, 20000, 50000, about.limits.samples])];
  const n = h('select', { name: 'n', onchange: () => changed({ n: Number(n.value) }) }, sizes.map((one) => h('option', { value: one }, one.toLocaleString('en-GB'))));
  const seed = h('input', { type: 'number', name: 'seed', min: 0, max: 2147483647, step: 1, onchange: () => changed({ seed: Math.max(0, Math.round(Number(seed.value)) || 0) }) });
  const editor = sceneEditor(about, changed);
  const check = async (text) => {
    const found = await api.call('mixture/check', { text, scale: state.scale, gamma: state.gamma }, { signal: gone.signal });
    if (found.error) throw new Error(found.error);
    return found;
  };
  const arms = armRows(about, check, (arm) => changed({ arm }));
  const view = panels({ api, question, state, setState, gone, failed, onlook: (look) => changed({ look }), copyAs: (kind) => {
    const text = kind === 'TSV' ? asTsv(result, state) : asJson(result, state, location.href);
    return copy(text, `The numbers are copied as ${kind}.`);
  } });
  const sliders = h('section', { class: 'card sliders', 'aria-label': 'Scale and cap' }, scale.node, gamma.node);

  root.append(
    h('p', { class: 'lede' }, 'Guidance pushes samples towards a condition, here the filled components of a known mixture. Push too hard (λ) and samples crowd and overshoot; the cap (Γ) bounds how far each step may push. Move the sliders and compare.'),
    h('div', { class: 'layout' }, sliders, view.first,
      h('div', { class: 'side' }, editor.node, arms.node,
        h('section', { class: 'card', 'aria-labelledby': 'solver-title' }, h('h2', { id: 'solver-title' }, 'Sampling'), steps.node,
          h('div', { class: 'fields' }, h('label', { class: 'small' }, 'solver', solver), h('label', { class: 'small' }, 'samples', n), h('label', { class: 'small' }, 'seed', seed))),
        paper()),
      view.rest));

  function paper() {
    const { settings, source, samples } = about.paper;
    const rows = [...new Set(settings.map((one) => one.members))];
    const columns = [...new Set(settings.map((one) => one.guidance))];
    const use = (list) => changed({ scene: list[0].scene, parts: '', std: 0.03, eta: 0, steps: about.paper.steps, solver: 'euler', n: samples, scale: Math.max(...list.map((s) => s.scale)), gamma: list.find((s) => s.gamma > 1)?.gamma ?? state.gamma, arm: list.map((s) => s.rule), look: list.length - 1 });
    return h('section', { class: 'card', 'aria-labelledby': 'paper-title' }, h('h2', { id: 'paper-title' }, 'The paper’s nine settings'),
      h('p', { class: 'about', title: source }, 'As in the table of Peng & Ma, 200,000 samples; their numbers then stand beside ours.'),
      h('div', { class: 'nine' }, rows.map((members) => {
        const own = settings.filter((one) => one.members === members);
        return [h('button', { type: 'button', class: 'quiet', onclick: () => use(own), 'aria-label': `${members}, all three` }, members),
          ...columns.map((guidance) => h('button', { type: 'button', data: { paper: `${members} ${guidance}` }, 'aria-label': `${members} ${guidance}`, onclick: () => use(own.filter((one) => one.guidance === guidance)) }, guidance.replace('Fixed ', '').replace('-CFG', '')))];
      })));
  }

  // Shows the state in the controls.
  function reflect() {
    scale.set(state.scale);
    gamma.set(state.gamma);
    steps.set(state.steps);
    solver.value = state.solver;
    if (!sizes.includes(state.n)) { sizes.push(state.n); n.append(h('option', { value: state.n }, state.n.toLocaleString('en-GB'))); }
    n.value = state.n;
    seed.value = state.seed;
    arms.show(state.arm);
    const preset = about.presets.find((one) => one.name === state.scene);
    const own = preset ? preset.components : read(state.parts);
    const components = own.length ? own : about.presets[0].components; // a link may name nothing we have
    editor.show({ name: state.scene, components, std: preset?.std ?? state.std, eta: preset?.eta ?? state.eta, box: preset?.box ?? boxOf(components, state.std) });
    view.reflect();
  }

  changed({});
  return {
    show(next) { changed(next); },
    leave() { clearTimeout(resting); view.leave(); },
  };
}

// The square that the server would draw, for the moments before it has answered.
function boxOf(components, std) {
  const xs = [0, ...components.map((c) => c[0])];
  const ys = [0, ...components.map((c) => c[1])];
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  return [(x0 + x1) / 2, (y0 + y1) / 2, Math.max(x1 - x0, y1 - y0) / 2 + Math.max(3.5 * std, 0.55)];
}
