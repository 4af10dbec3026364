// What the mixture view shows: ends, ways, scales, shares and numbers, each with a sentence and a table.

import { bars, scaleChart, summary } from './charts.js';
import { arrows, axes, cloud, density, landscape, paths, Plane, points } from './draw.js';
import { alternative, fixed, h, percent, shorts, table, whole } from './elements.js';
import { numbersTable } from './numbers.js';

const DRAWN = 10; // paths that are drawn; more of them hide each other
const FULL = 32000;

const panel = (id, title, sentence, ...children) => h('section', { class: 'card panel', data: { panel: id }, 'aria-labelledby': `${id}-title` },
  h('h2', { id: `${id}-title` }, title), h('p', { class: 'about' }, sentence), ...children);

const picture = (label) => h('canvas', { role: 'img', 'aria-label': label });

export function panels({ api, question, state, setState, gone, failed, onlook, copyAs }) {
  let seen = null; // { run, meter, field }; the way comes after the run
  const planes = new Map();
  const still = matchMedia('(prefers-reduced-motion: reduce)');

  // Where the samples end: one square for each arm.
  const ends = h('div', { class: 'squares' });
  const zoom = ['close', 'whole'].map((value) => h('label', { class: 'chip' },
    h('input', { type: 'radio', name: 'zoom', value, onchange: () => { state.zoom = value; setState({ zoom: value }); repaint(); } }),
    h('span', {}, value === 'whole' ? 'Whole plane' : 'Close-up of the condition')));
  const endsTable = alternative('Where the samples end, in words');
  const shownNote = h('p', { class: 'note', 'aria-live': 'off' });

  // On the way: one arm, two squares and a clock.
  const lookers = h('fieldset', { class: 'chips lookers' });
  const clock = h('input', { type: 'range', min: 0, max: 1, step: 0.01, name: 't', 'aria-label': 'Time, from noise at 0 to data at 1', oninput: () => move(Number(clock.value)) });
  const time = h('output', { class: 'time' });
  const play = h('button', { type: 'button', class: 'play', onclick: () => toggle() }, '▶ Play');
  const way = picture('Paths');
  const hill = picture('Landscape');
  const wayTable = alternative('Paths at this time, as a table');
  const fieldNote = h('p', { class: 'note' });
  const scaleBox = h('div', { class: 'figure' });
  const scaleNote = h('p', { class: 'note' });
  const scaleTable = alternative('Effective scale, as a table');
  const legends = [0, 1].map(() => h('p', { class: 'legend' }));
  const barBox = h('div', { class: 'figure' });
  const barTable = alternative('Occupancy, as a table');
  const numberBox = h('div');
  const copied = (kind) => h('button', { type: 'button', onclick: async ({ target }) => {
    await copyAs(kind);
    target.textContent = 'Copied';
    setTimeout(() => { target.textContent = `Copy as ${kind}`; }, 1500);
  } }, `Copy as ${kind}`);

  const first = panel('ends', 'Where the samples end', 'Grey rings are the target; every dot is a sample, and dot for dot all squares began with the same noise. A good arm fills each filled component evenly.',
      h('fieldset', { class: 'chips' }, h('legend', { class: 'unseen' }, 'How much of the plane'), zoom), ends, shownNote, endsTable.node);
  const rest = h('div', { class: 'panels' },
    panel('way', 'On the way', 'Every step moves a sample (disc) towards a guess of where it will end, its guided posterior mean (diamond). Guidance moves the guess; a cap keeps it from running away.',
      lookers,
      h('div', { class: 'clock' }, play, clock, time),
      h('div', { class: 'squares two' },
        h('figure', {}, way, h('figcaption', {}, 'Paths so far, and where each is aimed')),
        h('figure', {}, hill, h('figcaption', {}, 'Blue: how likely the condition is at x and t, with lines at 10, 50, 90 %. Arrows: velocity, grey without guidance. Amber stripes: the cap acts. Dots: samples'))),
      fieldNote, wayTable.node),
    h('div', { class: 'pair' },
      panel('scale', 'Effective scale over time', 'How much of the scale λ is really applied. The shaded part is what the cap took from the chosen arm; the band holds 80 % of its samples.', scaleBox, legends[0], scaleNote, scaleTable.node),
      panel('bars', 'Who got how much', 'Share of the samples at each component of the condition; the dashed line is the target, error bars are two standard errors.', barBox, legends[1], barTable.node)),
    panel('numbers', 'Numbers', 'What a paper would report. For TV, mean error and KL less is better; for variances 1 is right.', numberBox,
      h('div', { class: 'buttons' }, copied('TSV'), copied('JSON'))));

  const room = (box) => Math.max(box.clientWidth, 260);
  const widths = new ResizeObserver(() => {
    if (!seen?.meter || !seen.run) return;
    scaleBox.replaceChildren(scaleChart(seen.meter.arms, look(), state.t, state.scale, room(scaleBox)));
    barBox.replaceChildren(bars(seen.run, seen.run.arms, room(barBox)));
  });
  widths.observe(scaleBox);
  const plane = (canvas, paint) => planes.set(canvas, new Plane(canvas, paint));
  plane(way, (ctx, size) => {
    if (!seen?.meter) return;
    axes(ctx, seen.meter.box, size);
    if (seen.run) density(ctx, seen.meter.box, size, seen.run);
    const arm = seen.meter.arms[look()];
    if (arm && !arm.error) paths(ctx, size, arm, look(), frameAt(arm), DRAWN);
  });
  plane(hill, (ctx, size) => {
    if (!seen?.field || !seen.meter) return;
    landscape(ctx, size, seen.field);
    axes(ctx, seen.field.box, size);
    arrows(ctx, size, seen.field, look());
    const arm = seen.meter.arms[look()];
    if (arm && !arm.error) cloud(ctx, size, arm, frameAt(arm));
  });

  const look = () => Math.min(state.look, state.arm.length - 1);
  const frameAt = (arm) => arm.times.reduce((best, t, i) => (Math.abs(t - state.t) < Math.abs(arm.times[best] - state.t) ? i : best), 0);
  const named = (arm, i) => h('span', { class: 'named', css: { '--own': `var(--arm-${i})` } }, arm.rule ?? arm.text);

  function repaint() { for (const one of planes.values()) one.draw(); }

  function squares(arms) {
    while (ends.children.length > arms.length) {
      const canvas = ends.lastChild.querySelector('canvas');
      planes.get(canvas).leave();
      planes.delete(canvas);
      ends.lastChild.remove();
    }
    while (ends.children.length < arms.length) {
      const index = ends.children.length;
      const canvas = picture('Samples');
      ends.append(h('figure', {}, h('figcaption', {}), canvas, h('p', { class: 'read' })));
      plane(canvas, (ctx, size) => {
        const arm = seen?.run?.arms[index];
        if (!arm) return;
        const close = state.zoom === 'close';
        const box = close ? seen.run.close : seen.run.box;
        axes(ctx, box, size);
        density(ctx, box, size, seen.run);
        if (arm.points) points(ctx, size, close ? arm.close : arm.points, index);
      });
    }
    arms.forEach((arm, i) => {
      const figure = ends.children[i];
      figure.firstChild.replaceChildren(named(arm, i), arm.error ? h('span', { class: 'bad' }, ' cannot be shown') : '');
      const [, canvas, read] = figure.children;
      read.textContent = arm.numbers ? `${arm.numbers.occupancy.map((v) => fixed(100 * v, 0)).join(' / ')} % · TV ${fixed(arm.numbers.tv, 3)}` : '';
      canvas.setAttribute('aria-label', arm.numbers
        ? `Samples of ${arm.rule}: ${seen.run.members.map((k, j) => `${percent(arm.numbers.occupancy[j])} at component ${k}`).join(', ')}` : `No samples of ${arm.text}`);
    });
    ends.dataset.count = arms.length;
  }

  function lookersFor(arms) {
    const focused = document.activeElement?.name === 'look';
    lookers.replaceChildren(h('legend', { class: 'unseen' }, 'Arm to look at'), ...arms.map((arm, i) => h('label', { class: 'chip', css: { '--own': `var(--arm-${i})` } },
      h('input', { type: 'radio', name: 'look', value: i, onchange: () => onlook(i), checked: i === look() }), h('span', {}, arm.rule ?? arm.text))));
    if (focused) lookers.querySelector('input:checked')?.focus();
  }

  // Draws whatever depends on the time alone.
  function atTime() {
    time.textContent = `t = ${state.t.toFixed(2)}`;
    const arm = seen?.meter?.arms[look()];
    if (!arm) return;
    scaleBox.replaceChildren(scaleChart(seen.meter.arms, look(), state.t, state.scale, room(scaleBox)));
    const capped = seen.field?.capped_share ?? 0;
    fieldNote.textContent = seen.field ? `At t = ${seen.field.t.toFixed(2)} the condition's posterior lies between ${fixed(seen.field.range[0], 3)} and ${fixed(seen.field.range[1], 3)} on this square; `
      + `${capped ? `a cap acts on ${percent(capped, 0)} of it` : 'no cap acts'}.${seen.field.remembers ? ' This rule remembers earlier steps; the arrows show its first one.' : ''}` : '';
    way.setAttribute('aria-label', `Paths of ${DRAWN} samples under ${state.arm[look()]} up to time ${state.t.toFixed(2)}; a table follows.`);
    hill.setAttribute('aria-label', `Landscape. ${fieldNote.textContent}`);
    wayTable.set(() => (arm.error ? h('p', {}, arm.error) : pathTable(arm)));
    planes.get(way).draw();
    planes.get(hill).draw();
  }

  function pathTable(arm) {
    const [cx, cy, half] = seen.meter.box;
    const [states, means, row, now] = [shorts(arm.states), shorts(arm.means), 2 * arm.paths, frameAt(arm)];
    const at = (list, j) => `${fixed(cx + (list[now * row + 2 * j] / FULL) * half, 2)}, ${fixed(cy + (list[now * row + 2 * j + 1] / FULL) * half, 2)}`;
    return table(`The first ${DRAWN} samples at t = ${arm.times[now].toFixed(2)}`, [['sample', 'where it is', 'where it is aimed'],
      ...Array.from({ length: Math.min(DRAWN, arm.paths) }, (_, j) => [String(j), at(states, j), at(means, j)])]);
  }

  // One question about the field at a time; the newest time next.
  let asking = false;
  let asked = null;
  async function move(t) {
    state.t = t;
    setState({ t });
    clock.value = t;
    atTime();
    asked = t;
    if (asking) return;
    asking = true;
    try {
      while (asked !== null) {
        const next = asked;
        asked = null;
        const field = await api.call('mixture/field', { ...question(), t: next, arm: look() }, { signal: gone.signal });
        if (seen) { seen.field = field.error ? null : field; atTime(); }
      }
    } catch (error) {
      failed(error);
    } finally {
      asking = false;
    }
  }

  let playing = 0;
  function toggle(on = !playing) {
    clearTimeout(playing);
    playing = 0;
    play.textContent = on ? '❚❚ Pause' : '▶ Play';
    play.setAttribute('aria-pressed', String(on));
    if (!on) return;
    if (state.t >= 1) move(0);
    const tick = () => {
      const t = Math.min(1, Number((state.t + (still.matches ? 0.1 : 0.02)).toFixed(2)));
      move(t);
      if (t >= 1) toggle(false); else playing = setTimeout(tick, still.matches ? 800 : 60);
    };
    playing = setTimeout(tick, 60);
  }

  function show(run, seconds) {
    seen = { ...seen, run };
    squares(run.arms);
    lookersFor(run.arms);
    repaint();
    const fewer = run.arms.some((arm) => arm.n && arm.n < run.n);
    shownNote.textContent = `${[...new Set(run.arms.filter((arm) => arm.n).map((arm) => whole(arm.n)))].join(' or ')} samples${fewer ? ` of ${whole(run.n)} while you move; the rest follows` : ' in each arm'}, in ${seconds.toFixed(2)} s.`
      + `${run.compiling ? ' The fast engine is being compiled; until it is ready answers take a little longer.' : ''}`;
    endsTable.set(() => table('Share of the samples at each component', [['arm', ...run.members.map((k) => `component ${k}`)],
      ...run.arms.map((arm, i) => [named(arm, i), ...run.members.map((_, j) => percent(arm.numbers?.occupancy[j] ?? null))])]));
    for (const legend of legends) legend.replaceChildren(...run.arms.map(named));
    barBox.replaceChildren(bars(run, run.arms, room(barBox)));
    barTable.set(() => table('Occupancy with its standard error', [['arm', ...run.members.map((k) => `component ${k}`)], ['target', ...run.target.map((v) => percent(v))],
      ...run.arms.map((one, i) => [named(one, i), ...run.members.map((_, j) => (one.numbers ? `${percent(one.numbers.occupancy[j])} ± ${percent(one.numbers.occupancy_error[j])}` : '–'))])]));
    numberBox.replaceChildren(numbersTable(run));
  }

  function showWay(meter, field) {
    seen = { ...seen, meter, field: field.error ? null : field };
    atTime();
    const rules = meter.arms.map((one, i) => ({ text: state.arm[i], rule: one.rule }));
    const arm = meter.arms[look()];
    scaleNote.textContent = arm.error ?? `${arm.rule} ${summary(arm)} (${meter.metered} samples; largest |m| / |m_c| ${fixed(arm.largest_ratio, 3)}).`;
    scaleTable.set(() => {
      const known = meter.arms.map((one, i) => [one, i]).filter(([one]) => !one.error);
      const times = known[0]?.[0].t ?? [];
      const rows = times.map((_, i) => i).filter((i) => i % Math.ceil(times.length / 10) === 0);
      return table('Median effective scale, and the share of samples that a cap holds', [['t', ...known.map(([, i]) => named(rules[i], i))],
        ...rows.map((i) => [times[i].toFixed(2), ...known.map(([one]) => `${fixed(one.middle[i], 2)} (${percent(one.capped[i], 0)} capped)`)])]);
    });
  }

  return {
    first,
    rest,
    show,
    way: showWay,
    reflect() {
      clock.value = state.t;
      time.textContent = `t = ${state.t.toFixed(2)}`;
      for (const label of zoom) label.firstChild.checked = label.firstChild.value === state.zoom;
    },
    leave() {
      toggle(false);
      widths.disconnect();
      for (const one of planes.values()) one.leave();
    },
  };
}
