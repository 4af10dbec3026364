// Controls of the mixture view beside its rules: the two sliders, the sampler, the paper's settings, the scene.

import { fixed, h, percent, s, savedStops, slider, whole } from './elements.js';
import { term } from './words.js';

const USUAL = [1000, 5000, 20000, 50000];
const LARGEST_SEED = 2147483647;

export function scaleCard({ limits }, change) {
  const scale = slider({
    label: 'λ scale', hint: 'The requested guidance: 1 is the conditional model, more pushes further',
    name: 'scale', low: 0, high: 12, most: limits.scale, step: 0.1, value: 1,
    note: term('λ', '?'), stops: savedStops().scale, oninput: (value) => change({ scale: value }),
  });
  const gamma = slider({
    label: 'Γ cap', hint: 'How much longer the guided mean may be than the conditional one: 1 forbids any growth',
    name: 'gamma', low: 1, high: 2, most: limits.gamma, step: 0.01, value: 1,
    note: term('Γ', '?'), stops: savedStops().gamma, oninput: (value) => change({ gamma: value }),
  });
  return {
    node: h('section', { class: 'card sliders', 'aria-labelledby': 'sliders-title' },
      h('h2', { id: 'sliders-title', class: 'unseen' }, 'Scale and cap'), scale.node, gamma.node),
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
      `As in the table of Peng & Ma, ${whole(samples)} samples; the table of numbers then shows theirs below ours.`),
    h('div', { class: 'nine' }, [...new Set(settings.map((one) => one.members))].map(row)));
}

// The scene: presets as buttons, and a drawing whose components can be dragged, weighed and put into the
// condition, by pointer or by keys. Every change turns a preset into a scene of one's own.

const SIDE = 300;
const round = (value, digits = 3) => Number(value.toFixed(digits));

// A scene as text for the link: x,y,weight,inside;...
const write = (components) => components
  .map(([x, y, w, inside]) => [round(x), round(y), round(w, 4), inside ? 1 : 0].join(',')).join(';');

export function readComponents(text) {
  const found = text.split(';').filter(Boolean).map((one) => one.split(',').map(Number));
  if (!found.every((one) => one.length === 4 && one.every(Number.isFinite))) return [];
  return found.map(([x, y, w, inside]) => [x, y, w, inside === 1]);
}

export function sceneEditor(about, change) {
  let scene = null; // { name, components, std, eta, box }
  let chosen = 0;
  let held = null; // the box while something is dragged
  const { limits } = about;

  const chip = (value, title, text, onchange) => h('label', { class: 'chip', title },
    h('input', { type: 'radio', name: 'scene', value, onchange }), h('span', {}, text));
  const presets = about.presets.map(({ name, title, about: hint }) => chip(name, hint, title,
    () => change({ scene: name, parts: '' })));
  presets.push(chip('own', 'Your own arrangement', 'My own', () => own({})));
  const said = h('p', { class: 'about' });
  const drawing = s('svg', {
    viewBox: `0 0 ${SIDE} ${SIDE}`, class: 'editor', role: 'group', 'aria-label': 'Components of the scene',
  });
  drawing.addEventListener('dblclick', (event) => add(...where(event)));

  const number = (label, name, props, set) => {
    const field = h('input', { type: 'number', step: 'any', name, ...props });
    field.addEventListener('change', () => {
      const typed = Number(field.value);
      if (field.value !== '' && Number.isFinite(typed)) set(typed); else refresh();
    });
    return { node: h('label', { class: 'small' }, label, field), field };
  };
  const far = { min: -limits.farthest, max: limits.farthest };
  const x = number('x', 'component-x', far, (v) => edit((c) => { c[0] = v; }));
  const y = number('y', 'component-y', far, (v) => edit((c) => { c[1] = v; }));
  const heavy = { min: 0, max: limits.heaviest };
  const w = number('weight', 'component-weight', heavy, (v) => edit((c) => { c[2] = v; }));
  const inside = h('input', {
    type: 'checkbox', name: 'component-inside', onchange: () => edit((c) => { c[3] = inside.checked; }),
  });
  const which = h('strong');
  const width = slider({
    label: 'width σ', hint: 'Standard deviation of every component', name: 'std', low: limits.std[0], high: 0.6,
    most: limits.std[1], step: 0.01, value: 0.03, oninput: (v) => own({ std: v }),
  });
  const eta = slider({
    label: 'model error η', hint: '0: exact; 0.5: the conditional mean lies half-way to the unconditional',
    name: 'eta', low: 0, high: limits.eta, step: 0.05, value: 0, oninput: (v) => own({ eta: v }),
  });
  const remove = h('button', { type: 'button', onclick: () => drop(chosen) }, 'Remove');
  const middle = () => [round(scene.box[0]), round(scene.box[1])];
  const more = h('button', { type: 'button', onclick: () => add(...middle()) }, 'Add one');
  const tools = h('details', { ontoggle: () => scene && paint() }, h('summary', {}, 'Change the scene'),
    h('p', { class: 'about' }, 'Drag a component, or focus it and use the arrow keys; + and − change its weight, '
      + 'Space adds it to the condition or removes it from there, Delete removes it.'),
    h('div', { class: 'fields' }, h('span', { class: 'which' }, which), x.node, y.node, w.node,
      h('label', { class: 'small tick' }, inside, 'in the condition')),
    h('div', { class: 'buttons' }, more, remove), width.node, eta.node);
  const node = h('section', { class: 'card', 'aria-labelledby': 'scene-title' },
    h('h2', { id: 'scene-title' }, 'Scene'),
    h('fieldset', { class: 'chips' }, h('legend', { class: 'unseen' }, 'Choose a scene'), presets),
    said, drawing,
    h('p', { class: 'key' }, h('span', { class: 'dot in' }), 'the condition', h('span', { class: 'dot out' }),
      'other data', h('span', { class: 'cross' }, '+'), 'origin'),
    tools);

  function own(patch) {
    const next = { components: scene.components, std: scene.std, eta: scene.eta, ...patch };
    change({ scene: 'own', parts: write(next.components), std: next.std, eta: next.eta });
  }

  function edit(set) {
    const components = structuredClone(scene.components);
    set(components[chosen]);
    const [cx, cy, weight] = components[chosen];
    const bound = (v, low, high) => Math.min(Math.max(v, low), high);
    components[chosen][0] = bound(cx, -limits.farthest, limits.farthest);
    components[chosen][1] = bound(cy, -limits.farthest, limits.farthest);
    components[chosen][2] = bound(weight, 0, limits.heaviest);
    own({ components });
  }

  function add(px, py) {
    if (scene.components.length >= limits.components) return;
    const mean = scene.components.reduce((sum, c) => sum + c[2], 0) / scene.components.length;
    const components = [...structuredClone(scene.components), [px, py, mean, false]];
    chosen = components.length - 1;
    own({ components });
  }

  function drop(k) {
    if (scene.components.length <= 2) return;
    const components = scene.components.filter((_, i) => i !== k);
    chosen = Math.max(0, Math.min(chosen, components.length - 1));
    own({ components });
    drawing.querySelector(`[data-k="${chosen}"]`)?.focus();
  }

  function where(event) {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
    const [cx, cy, half] = held ?? scene.box;
    return [round(cx + (at.x / SIDE * 2 - 1) * half), round(cy - (at.y / SIDE * 2 - 1) * half)];
  }

  function keys(event, k) {
    const step = event.shiftKey ? 0.25 : 0.05;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    const shift = moves[event.key];
    chosen = k;
    if (shift) edit((c) => { c[0] = round(c[0] + shift[0]); c[1] = round(c[1] + shift[1]); });
    else if (event.key === '+' || event.key === '=') edit((c) => { c[2] = round(Math.max(c[2] * 1.1, 0.005), 4); });
    else if (event.key === '-') edit((c) => { c[2] = round(c[2] / 1.1, 4); });
    else if (event.key === ' ' || event.key === 'Enter') edit((c) => { c[3] = !c[3]; });
    else if (event.key === 'Delete' || event.key === 'Backspace') drop(k);
    else return;
    event.preventDefault();
  }

  function grab(event, k) {
    if (event.button) return;
    chosen = k;
    held = scene.box;
    const from = where(event);
    const [ox, oy] = scene.components[k];
    const move = (e) => {
      const [nx, ny] = where(e);
      edit((c) => { c[0] = round(ox + nx - from[0]); c[1] = round(oy + ny - from[1]); });
    };
    const end = () => {
      held = null;
      removeEventListener('pointermove', move);
      removeEventListener('pointerup', end);
      removeEventListener('pointercancel', end);
      refresh();
    };
    addEventListener('pointermove', move);
    addEventListener('pointerup', end);
    addEventListener('pointercancel', end);
    refresh();
  }

  function paint() {
    const [cx, cy, half] = held ?? scene.box;
    const px = (v) => ((v - cx) / half + 1) * SIDE / 2;
    const py = (v) => ((cy - v) / half + 1) * SIDE / 2;
    const total = scene.components.reduce((sum, c) => sum + c[2], 0);
    const focused = document.activeElement?.dataset?.k;
    const component = ([vx, vy, weight, isIn], k) => {
      const share = total > 0 ? weight / total : 0;
      return s('g', {
        tabindex: 0, role: 'button', 'aria-pressed': String(Boolean(isIn)), data: { k },
        transform: `translate(${px(vx)} ${py(vy)})`,
        class: `component ${isIn ? 'in' : 'out'}${k === chosen && tools.open ? ' chosen' : ''}`,
        'aria-label': `Component ${k} at ${fixed(vx, 2)}, ${fixed(vy, 2)}, weight ${percent(share)}, `
          + `${isIn ? 'in' : 'not in'} the condition`,
        onpointerdown: (e) => grab(e, k),
        onkeydown: (e) => keys(e, k),
        onfocus: () => { if (chosen !== k) { chosen = k; refresh(); } },
        ondblclick: (e) => { e.stopPropagation(); edit((c) => { c[3] = !c[3]; }); },
      }, s('circle', { r: Math.max((scene.std / half) * SIDE, 2), class: 'width' }),
      s('circle', { r: 5 + 22 * Math.sqrt(share), class: 'weight' }), s('text', { y: 4 }, String(k)));
    };
    drawing.replaceChildren(
      s('path', { class: 'grid', d: `M${px(0)} 0V${SIDE}M0 ${py(0)}H${SIDE}` }),
      s('path', { class: 'origin', d: `M${px(0) - 6} ${py(0)}h12M${px(0)} ${py(0) - 6}v12` }),
      ...scene.components.map(component));
    if (focused !== undefined) drawing.querySelector(`[data-k="${focused}"]`)?.focus({ preventScroll: true });
  }

  function refresh() {
    chosen = Math.min(chosen, scene.components.length - 1);
    const [vx, vy, weight, isIn] = scene.components[chosen];
    which.textContent = `Component ${chosen}`;
    [x.field.value, y.field.value, w.field.value] = [round(vx), round(vy), round(weight, 4)];
    inside.checked = isIn;
    width.set(round(scene.std));
    eta.set(scene.eta);
    more.disabled = scene.components.length >= limits.components;
    remove.disabled = scene.components.length <= 2;
    said.textContent = scene.about ?? 'Your own arrangement.';
    for (const label of presets) label.firstChild.checked = label.firstChild.value === scene.name;
    paint();
  }

  return { node, show(next) { scene = next; refresh(); } };
}
