// On the way: the paths of a few samples, the landscape they cross at a time, and the effective scale.

import { scaleChart, summary } from './charts.js';
import { arrows, axes, cloud, density, landscape, paths, Plane } from './draw.js';
import { alternative, fixed, h, named, panel, percent, shorts, table } from './elements.js';

const DRAWN = 10; // paths that are drawn; more of them hide each other
const FULL = 32000;
const TICK = { usual: [0.02, 60], still: [0.1, 800] }; // time and milliseconds of one step of the play button

export function wayPanels({ api, question, state, setState, gone, failed, onlook, moved }) {
  let run = null;
  let meter = null;
  let field = null;
  const turns = { asked: 0, meter: 0, field: 0 }; // questions about the way, and those whose answers are shown
  const still = matchMedia('(prefers-reduced-motion: reduce)');
  const look = () => Math.min(state.look, state.rule.length - 1);
  const chosen = () => meter?.rules[look()];

  const lookers = h('fieldset', { class: 'chips lookers' });
  const clock = h('input', {
    type: 'range', name: 't', min: 0, max: 1, step: 0.01, 'aria-label': 'Time, from noise at 0 to data at 1',
    oninput: () => move(Number(clock.value)),
  });
  const time = h('output', { class: 'time' });
  const play = h('button', { type: 'button', class: 'play', onclick: () => toggle() }, '▶ Play');
  const way = h('canvas', { role: 'img', 'aria-label': 'Paths' });
  const hill = h('canvas', { role: 'img', 'aria-label': 'Landscape' });
  const note = h('p', { class: 'note' });
  const wayTable = alternative('Paths at this time, as a table');
  const chart = h('div', { class: 'figure' });
  const legend = h('p', { class: 'legend' });
  const scaleNote = h('p', { class: 'note' });
  const scaleTable = alternative('Effective scale, as a table');

  const ways = panel('way', 'Paths over time',
    'Every step moves a sample (disc) towards the predicted end of its path, the guided posterior mean (diamond). '
    + 'Guidance moves this mean; a cap limits how far.',
    lookers, h('div', { class: 'clock' }, play, clock, time),
    h('div', { class: 'squares two' },
      h('figure', {}, way, h('figcaption', {}, 'Paths so far, and the mean that each moves towards')),
      h('figure', {}, hill, h('figcaption', {}, 'Blue: how likely the condition is at x and t, with lines at 10, 50, '
        + '90 %. Arrows: velocity, grey without guidance. Amber stripes: the cap acts. Dots: samples'))),
    note, wayTable.node);
  const scales = panel('scale', 'Effective scale over time',
    'How much of the scale λ is applied. The shaded part is what the cap removes from the chosen rule; the band '
    + 'holds 80 % of its samples.', chart, legend, scaleNote, scaleTable.node);

  const planes = [
    new Plane(way, (ctx, size) => {
      if (!meter) return;
      axes(ctx, meter.box, size);
      if (run) density(ctx, meter.box, size, run);
      if (chosen() && !chosen().error) paths(ctx, size, chosen(), look(), frameAt(chosen()), DRAWN);
    }),
    new Plane(hill, (ctx, size) => {
      if (!field) return;
      landscape(ctx, size, field);
      axes(ctx, field.box, size);
      arrows(ctx, size, field, look());
      if (chosen() && !chosen().error) cloud(ctx, size, chosen(), frameAt(chosen()));
    }),
  ];
  const drawChart = () => meter && chart.replaceChildren(
    scaleChart(meter.rules, look(), state.t, state.scale, Math.max(chart.clientWidth, 260)));
  const widths = new ResizeObserver(drawChart);
  widths.observe(chart);

  // The frame nearest to the clock.
  function frameAt({ times }) {
    return times.reduce((best, t, i) => (Math.abs(t - state.t) < Math.abs(times[best] - state.t) ? i : best), 0);
  }

  // Draws whatever depends on the time.
  function draw() {
    time.textContent = `t = ${state.t.toFixed(2)}`;
    if (!chosen()) return;
    drawChart();
    note.textContent = field ? described(field) : '';
    way.setAttribute('aria-label',
      `Paths of ${DRAWN} samples under ${state.rule[look()]} up to time ${state.t.toFixed(2)}; a table follows.`);
    hill.setAttribute('aria-label', `Landscape. ${note.textContent}`);
    const mine = chosen();
    wayTable.set(() => (mine.error ? h('p', {}, mine.error) : pathTable(mine)));
    for (const one of planes) one.draw();
  }

  function pathTable(mine) {
    const [cx, cy, half] = meter.box;
    const [states, means, row, now] = [shorts(mine.states), shorts(mine.means), 2 * mine.paths, frameAt(mine)];
    const place = (value, middle) => fixed(middle + (value / FULL) * half, 2);
    const at = (list, j) => `${place(list[now * row + 2 * j], cx)}, ${place(list[now * row + 2 * j + 1], cy)}`;
    const rows = Array.from({ length: Math.min(DRAWN, mine.paths) }, (_, j) => [String(j), at(states, j), at(means, j)]);
    return table(`The first ${DRAWN} samples at t = ${mine.times[now].toFixed(2)}`,
      [['sample', 'where it is', 'where it is aimed'], ...rows]);
  }

  const turn = () => (turns.asked += 1);

  // An answer that was overtaken by one to a later question comes too late.
  function late(kind, asked) {
    if (asked < turns[kind]) return true;
    turns[kind] = asked;
    return false;
  }

  // One question about the field at a time; the newest time next.
  let asking = false;
  let wanted = null;
  async function move(t) {
    state.t = t;
    setState({ t });
    clock.value = t;
    draw();
    moved();
    wanted = t;
    if (asking) return;
    asking = true;
    try {
      while (wanted !== null) {
        const next = wanted;
        wanted = null;
        const asked = turn();
        const found = await api.call('mixture/field', { ...question(), t: next, index: look() }, { signal: gone.signal });
        if (late('field', asked)) continue;
        field = found.error ? null : found;
        draw();
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
    const [step, pause] = still.matches ? TICK.still : TICK.usual;
    const tick = () => {
      const t = Math.min(1, Number((state.t + step).toFixed(2)));
      move(t);
      if (t >= 1) toggle(false); else playing = setTimeout(tick, pause);
    };
    playing = setTimeout(tick, pause);
  }

  function choose(rules) {
    const focused = document.activeElement?.name === 'look';
    const chips = rules.map((one, i) => h('label', { class: 'chip', css: { '--own': `var(--rule-${i})` } },
      h('input', { type: 'radio', name: 'look', value: i, checked: i === look(), onchange: () => onlook(i) }),
      h('span', {}, one.rule ?? one.text)));
    lookers.replaceChildren(h('legend', { class: 'unseen' }, 'Rule to look at'), ...chips);
    if (focused) lookers.querySelector('input:checked')?.focus();
  }

  return {
    ways,
    scales,
    // The rules as they were sampled.
    show(next) {
      run = next;
      choose(run.rules);
      legend.replaceChildren(...run.rules.map(named));
      planes[0].draw();
    },
    move,
    turn,
    // How they came there, asked for at a turn.
    way(asked, nextMeter, nextField) {
      if (!late('field', asked)) field = nextField.error ? null : nextField;
      if (late('meter', asked)) return;
      meter = nextMeter;
      draw();
      const mine = chosen();
      if (!mine) return; // a rule was taken away meanwhile
      const largest = `largest |m| / |m_c| ${fixed(mine.largest_ratio, 3)}`;
      scaleNote.textContent = mine.error ?? `${mine.rule} ${summary(mine)} (${meter.metered} samples; ${largest}).`;
      scaleTable.set(() => scaleRows(meter));
    },
    reflect() {
      clock.value = state.t;
      time.textContent = `t = ${state.t.toFixed(2)}`;
    },
    leave() {
      toggle(false);
      widths.disconnect();
      for (const one of planes) one.leave();
    },
  };
}

function described({ t, range, capped_share: capped, remembers }) {
  const odds = `between ${fixed(range[0], 3)} and ${fixed(range[1], 3)}`;
  const acts = capped ? `a cap acts on ${percent(capped, 0)} of it` : 'no cap acts';
  return `At t = ${t.toFixed(2)} the condition's posterior lies ${odds} on this square; ${acts}.`
    + `${remembers ? ' This rule remembers earlier steps; the arrows show its first one.' : ''}`;
}

function scaleRows(meter) {
  const known = meter.rules.map((one, i) => [one, i]).filter(([one]) => !one.error);
  const times = known[0]?.[0].t ?? [];
  const some = times.map((_, i) => i).filter((i) => i % Math.ceil(times.length / 10) === 0);
  const cell = (one, i) => `${fixed(one.middle[i], 2)} (${percent(one.capped[i], 0)} capped)`;
  return table('Median effective scale, and the share of samples that a cap holds', [
    ['t', ...known.map(([one, i]) => named(one, i))],
    ...some.map((i) => [times[i].toFixed(2), ...known.map(([one]) => cell(one, i))]),
  ]);
}
