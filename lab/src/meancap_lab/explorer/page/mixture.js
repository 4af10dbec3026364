// The mixture view: a plane where everything is known, so that what guidance does can be seen and measured.
//
// Controls change the state; `changed` asks the server quickly while things move (one question at a time, the
// newest state next), and once they rest asks for everything, which a later change aborts.

import { h } from './elements.js';
import { paperCard, readComponents, samplingCard, scaleCard, sceneEditor } from './mixture_controls.js';
import { asJson, asPython, asTsv, panels, spoken } from './mixture_panels.js';
import { ruleRows } from './rule_rows.js';
import { storyCard } from './words.js';

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
  rule: ['CFG(1)', 'CFG(λ)', 'CFG(λ) | Cap(Γ)'],
  look: 2, // the rule whose way is shown
  t: 0.5,
  zoom: 'close',
  px: -0.15, // the sample of the vector picture
  py: 0.35,
  story: '',
};

const REST = 120; // milliseconds without a change before everything is asked for

export function mount(root, { api, state, setState, announce, complain, copy }) {
  const gone = new AbortController();
  let handle = { show() {}, leave() {} };
  root.dataset.busy = 'true';
  api.call('mixture/about', {}, { signal: gone.signal }).then((about) => {
    handle = build(root, { api, state, setState, announce, complain, copy, about, gone });
  }).catch((error) => { if (error.name !== 'AbortError') complain(error.message); });
  return {
    show(next) { Object.assign(state, next); handle.show(next); },
    leave() { gone.abort(); handle.leave(); },
  };
}

function build(root, { api, state, setState, announce, complain, copy, about, gone }) {
  let version = 0; // of the state
  let shown = { version: -1, full: false };
  let asking = false; // about the samples
  let following = false; // about their way
  let resting = 0;
  let full = null; // AbortController of the question about everything
  let result = null;
  let known = { key: '', answer: null }; // the newest question about the way

  const question = () => {
    const { scene, std, eta, scale, gamma, steps, solver, n, seed, rule } = state;
    const own = scene === 'own' ? { components: readComponents(state.parts), std, eta } : {};
    return { scene, ...own, scale, gamma, steps, solver, n, seed, rules: rule };
  };
  const failed = (error) => { if (error.name !== 'AbortError') complain(error.message); };

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
    const request = question();
    // What is wrong with an earlier state may be right by now.
    const wrong = (error) => { if (mine === version) failed(error); };
    await run(mine, request, true, gone.signal).then(() => {
      // The next samples do not wait for the way of these, and no way is asked for where a newer one is.
      if (following || full || mine < shown.version) return;
      following = true;
      way(mine, request, gone.signal).catch(wrong).finally(() => { following = false; });
    }).catch(wrong);
    asking = false;
    if (!gone.signal.aborted && mine < version && !full) ask();
  }

  async function everything() {
    full = new AbortController();
    const mine = full;
    gone.signal.addEventListener('abort', () => mine.abort(), { once: true });
    try {
      const request = question();
      await Promise.all([run(version, request, false, mine.signal), way(version, request, mine.signal)]);
      announce(spoken(result));
    } catch (error) {
      failed(error);
    } finally {
      if (full === mine) full = null;
      if (!mine.signal.aborted) root.dataset.busy = 'false';
    }
  }

  // Where the samples end; `asked` is the version of the state it belongs to.
  async function run(asked, request, quick, signal) {
    const began = performance.now();
    const found = await api.call('mixture/run', { ...request, quick }, { signal });
    // A quick answer may come after the full one to the same question.
    if (asked < shown.version || (asked === shown.version && shown.full)) return;
    shown = { version: asked, full: !quick };
    complain('');
    result = found;
    view.show(found, (performance.now() - began) / 1000);
    rules.results(found.rules);
  }

  // The way of the samples does not depend on how many are counted: if it was just asked for, it is known.
  function way(asked, request, signal) {
    const key = `${asked} ${state.t}`;
    if (known.key === key) return known.answer;
    const look = Math.min(state.look, request.rules.length - 1);
    const turn = view.turn();
    const answer = Promise.all([
      api.call('mixture/meter', request, { signal }),
      api.call('mixture/field', { ...request, t: state.t, index: look }, { signal }),
    ]).then(([meter, field]) => view.way(turn, meter, field));
    known = { key, answer };
    answer.catch(() => { if (known.answer === answer) known.key = ''; }); // to be asked again
    return answer;
  }

  const check = async (text) => {
    const asked = { text, scale: state.scale, gamma: state.gamma };
    const found = await api.call('mixture/check', asked, { signal: gone.signal });
    if (found.error) throw new Error(found.error);
    return found;
  };
  const copyAs = (kind) => {
    const text = { TSV: asTsv, JSON: asJson, Python: asPython }[kind](result, state, location.href);
    return copy(text, `The numbers are copied as ${kind}.`);
  };
  const stories = storyCard(defaults, changed);
  const scales = scaleCard(about, changed);
  const sampling = samplingCard(about, changed);
  const editor = sceneEditor(about, changed);
  const rules = ruleRows(about, check, (rule) => changed({ rule }));
  const view = panels({
    api, question, state, setState, gone, failed, copyAs, onlook: (look) => changed({ look }),
  });
  root.append(
    h('p', { class: 'lede' }, 'Guidance pushes samples towards a condition, here the filled components of a known '
      + 'mixture. Push too hard (λ) and samples crowd and overshoot; the cap (Γ) bounds how far each step may push. '
      + 'Move the sliders and compare.'),
    stories.node,
    h('div', { class: 'layout' }, scales.node, view.first,
      h('div', { class: 'side' }, editor.node, rules.node, sampling.node, paperCard(about, state, changed)),
      view.rest));

  // Shows the state in the controls.
  function reflect() {
    stories.show(state);
    scales.show(state);
    sampling.show(state);
    rules.show(state.rule);
    const preset = about.presets.find((one) => one.name === state.scene);
    const own = readComponents(state.parts);
    const components = own.length ? own : about.presets[0].components; // a link may name nothing we have
    const { std, eta } = state;
    const scene = preset ?? { name: state.scene, components, std, eta, box: boxOf(components, std) };
    editor.show(scene);
    view.reflect(scene);
  }

  changed({});
  return {
    show(next) { changed(next); },
    leave() { clearTimeout(resting); view.leave(); },
  };
}

// The square round a scene of one's own, as the server draws it.
function boxOf(components, std) {
  const xs = [0, ...components.map((c) => c[0])];
  const ys = [0, ...components.map((c) => c[1])];
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  return [(x0 + x1) / 2, (y0 + y1) / 2, Math.max(x1 - x0, y1 - y0) / 2 + Math.max(3.5 * std, 0.45)];
}
