// Small parts of the image view: a number that is told when the reader lets go, and the bar of a job.

import { h, slider } from './elements.js';

// A slider that says its number once the reader lets go of it: pictures take longer than a drag.
export function knob({ change, ...options }) {
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

export function save(blob, name) {
  const link = h('a', { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
