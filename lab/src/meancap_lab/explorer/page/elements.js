// Making elements, and numbers as people read them.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key === 'class') node.setAttribute('class', value);
    else if (key === 'data') Object.assign(node.dataset, value);
    else if (key === 'value' && 'value' in node) node.value = value;
    else if (key === 'css') for (const [name, one] of Object.entries(value)) node.style.setProperty(name, one);
    else node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.flat(3).filter((one) => one !== null && one !== undefined && one !== false));
  return node;
}

// An element: h('button', { class: 'chip', onclick: f }, 'text'); text is never read as markup.
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

// The same in a drawing.
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

let count = 0;
export const fresh = (prefix) => `${prefix}-${(count += 1)}`;

// A number with as many digits as make sense; a dash where there is none.
export function fixed(value, digits) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  const text = value.toFixed(digits);
  return (Number(text) === 0 ? (0).toFixed(digits) : text).replace('-', '−');
}

export const percent = (share, digits = 1) => (share === null ? '–' : `${fixed(100 * share, digits)} %`);

export const whole = (n) => n.toLocaleString('en-GB');

// Colours of rules and marks, as the style sheet has them now.
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const ruleColour = (index) => colour(`rule-${index}`);

export function bytes(text) {
  const raw = atob(text);
  const found = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) found[i] = raw.charCodeAt(i);
  return found;
}

export const shorts = (text) => new Int16Array(bytes(text).buffer);

// The values that a saved page has answers for: { scale: [...], gamma: [...] }; elsewhere there is no such bound.
export const savedStops = () => JSON.parse(document.documentElement.dataset.saved || '{}');

const nearest = (list, value) => list.reduce((best, one) => (Math.abs(one - value) < Math.abs(best - value) ? one : best));

// A slider with a number field beside it: the slider for the usual range, the field up to `most`. With `stops`,
// both go to the nearest of them.
export function slider({ label, hint, name, low, high, step, most = high, value, note = null, stops = null, oninput }) {
  const id = fresh(name);
  const range = h('input', { type: 'range', id, name, min: low, max: high, step, value });
  const field = h('input', {
    type: 'number', name: `${name}-number`, min: low, max: most, step: 'any', value, 'aria-label': `${label}, typed`,
  });
  let current = Number(value); // the range ends before `most`, so it cannot be asked for the value
  const set = (next) => {
    current = Number(next);
    range.value = next;
    field.value = next;
  };
  const near = (next) => (stops ? nearest(stops, next) : next);
  range.addEventListener('input', () => {
    const before = current;
    const next = near(Number(range.value));
    set(next);
    if (!stops || next !== before) oninput(current);
  });
  field.addEventListener('change', () => {
    const typed = Number(field.value);
    if (field.value.trim() === '' || !Number.isFinite(typed)) { set(current); return; }
    const next = near(Math.min(Math.max(typed, low), most));
    set(next);
    oninput(next);
  });
  const node = h('div', { class: 'slider' }, h('span', { class: 'called' }, h('label', { for: id, title: hint }, label), note), range, field);
  return { node, set, range, field };
}

// A table of rows of cells; the first row and the first column are headings.
export function table(caption, rows, props = {}) {
  const [head, ...body] = rows;
  const box = h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
    h('table', props, h('caption', {}, caption),
      h('thead', {}, h('tr', {}, head.map((cell) => h('th', { scope: 'col' }, cell)))),
      h('tbody', {}, body.map(([first, ...rest]) => h('tr', {}, h('th', { scope: 'row' }, first),
        rest.map((cell) => (cell instanceof Node && cell.nodeName === 'TD' ? cell : h('td', {}, cell))))))));
  const more = h('p', { class: 'more', 'aria-hidden': 'true', hidden: true }, 'Wider than the page: swipe or scroll the table sideways →');
  new ResizeObserver(() => { more.hidden = box.scrollWidth <= box.clientWidth + 1; }).observe(box);
  return h('div', {}, more, box);
}

// A card with a heading and a sentence that says what to see.
export const panel = (id, title, sentence, ...children) => h('section',
  { class: 'card panel', data: { panel: id }, 'aria-labelledby': `${id}-title` },
  h('h2', { id: `${id}-title` }, title), h('p', { class: 'about' }, sentence), ...children);

// The same content for those who do not see the picture, or want the figures.
export function alternative(summary) {
  const body = h('div');
  const node = h('details', { class: 'alternative' }, h('summary', {}, summary), body);
  let make = null;
  const refresh = () => { if (node.open && make) body.replaceChildren(make()); };
  node.addEventListener('toggle', refresh);
  return { node, set(next) { make = next; refresh(); } };
}

// A rule's text in the colour of that rule.
export const named = (entry, i) => h('span', { class: 'named', css: { '--own': `var(--rule-${i})` } }, entry.rule ?? entry.text ?? entry);

// Hands a file to the browser's downloads.
export function saveFile(blob, name) {
  const link = h('a', { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
