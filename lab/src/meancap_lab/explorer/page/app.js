// The shell: which view is open, its state in the link, the theme, and errors. Views do the rest.
//
// A view is a module that exports
//   name       its word in the link, e.g. 'mixture'
//   title      what its tab says
//   defaults   its whole state: a flat object of numbers, booleans, strings and lists of strings
//   mount(root, shell) -> { show(state), leave() }
// `mount` fills `root` for shell.state; `show` is called when the link changed by other hands (back button,
// pasted link); `leave` when another view opens. The shell gives a view
//   state            the state it starts with: defaults, overridden by the link; types are those of defaults
//   setState(patch)  changes the link; what equals its default is left out of it
//   announce(text)   says it to screen readers
//   copy(text, said) puts text on the clipboard and announces `said`
//   complain(text)   shows a sentence at the foot of the window; '' takes it away
//   api.call(name, request, { signal }) -> result         POST /api/NAME; throws Error(sentence)
//   api.job(name, request, { signal, progress }) -> result   the same for long work, with progress({ share, said,
//                                         partial }); aborting the signal stops it on the server too
// A link reads  #mixture?scene=pair&scale=3&rule=CFG(1)&rule=CFG(λ)|Cap(Γ) : a list is its key several times.
// The document gets a 'themechange' event when colours change, for whatever is painted on a canvas.

import { h, saveFile } from './elements.js';
import * as images from './images.js';
import * as mixture from './mixture.js';
import { helpButton } from './words.js';

const VIEWS = [mixture, images];

async function post(name, request, signal, kind) {
  const gone = new Error(`The server does not answer; start it again with: meancap explore --port ${location.port}`);
  const orGone = (error) => { throw error.name === 'AbortError' ? error : gone; };
  const answer = await fetch(`/api/${name}`, {
    method: 'POST', headers: { 'Content-Type': 'application/json', Accept: kind }, body: JSON.stringify(request), signal,
  }).catch(orGone);
  if (!answer.ok) throw new Error((await answer.json().catch(orGone)).error);
  return { answer, orGone };
}

const api = {
  async call(name, request, { signal } = {}) {
    const { answer, orGone } = await post(name, request, signal, 'application/json');
    return answer.json().catch(orGone);
  },
  // Lines of progress, then one with the result; closing the connection stops the work.
  async job(name, request, { signal, progress = () => {} } = {}) {
    const { answer, orGone } = await post(name, request, signal, 'application/x-ndjson');
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read().catch(orGone);
      const lines = (rest + (value ?? '')).split('\n');
      rest = lines.pop();
      for (const line of lines.map((one) => JSON.parse(one))) {
        if ('error' in line) throw new Error(line.error);
        if ('result' in line) return line.result;
        progress(line);
      }
      if (done) orGone(new Error('cut'));
    }
  },
};

// Readable links: only what would break the link itself is escaped.
const escape = (text) => encodeURIComponent(text)
  .replace(/%(20|28|29|2C|3B|3A|7C|CE%BB|CE%93|2F|40)/g, decodeURIComponent)
  .replace(/ /g, '+');
const unescape = (text) => decodeURIComponent(text.replace(/\+/g, ' '));

function toLink(view, state) {
  const pairs = [];
  for (const [key, usual] of Object.entries(view.defaults)) {
    const value = state[key];
    if (JSON.stringify(value) === JSON.stringify(usual)) continue;
    for (const one of Array.isArray(value) ? (value.length ? value : ['']) : [value]) {
      pairs.push(`${key}=${escape(String(one))}`);
    }
  }
  return `#${view.name}${pairs.length ? `?${pairs.join('&')}` : ''}`;
}

export function fromLink(hash) {
  const [name, query = ''] = hash.replace(/^#/, '').split(/\?(.*)/s);
  const view = VIEWS.find((one) => one.name === name) ?? VIEWS[0];
  const state = structuredClone(view.defaults);
  const lists = {};
  for (const pair of query.split('&').filter(Boolean)) {
    const [key, raw = ''] = pair.split(/=(.*)/s);
    const usual = view.defaults[key];
    let value;
    try { value = unescape(raw); } catch { continue; }
    if (Array.isArray(usual)) (lists[key] ??= []).push(value);
    else if (typeof usual === 'number') state[key] = value.trim() && Number.isFinite(Number(value)) ? Number(value) : usual;
    else if (typeof usual === 'boolean') state[key] = value === 'true';
    else if (typeof usual === 'string') state[key] = value;
  }
  for (const [key, list] of Object.entries(lists)) state[key] = list.length === 1 && list[0] === '' ? [] : list;
  return { view, state };
}

const $ = (id) => document.getElementById(id);
let open = null; // { view, handle, state }
let writing = 0;
let seen = location.hash; // the link as we last read or wrote it

// The state on the page, also where the address does not have it yet.
const link = () => toLink(open.view, open.state);

function announce(text) { $('status').textContent = text; }

function complain(text) {
  $('error').textContent = text;
  $('error').hidden = !text;
}

function write() {
  clearTimeout(writing);
  writing = 0;
  // A link that differs from what we saw was just set by somebody else, and `enter` is about to read it.
  if (location.hash === seen && link() !== seen) {
    history.replaceState(null, '', link());
    seen = location.hash;
  }
  document.querySelector(`#tabs [data-view="${open.view.name}"]`).href = link();
}

function setState(patch) {
  Object.assign(open.state, patch);
  if (!writing) writing = setTimeout(write, 150); // browsers refuse a link that changes too often
}

function enter() {
  const { view, state } = fromLink(location.hash);
  if (open?.view === view) {
    seen = location.hash;
    if (toLink(view, open.state) === toLink(view, state)) return;
    open.state = state;
    open.handle.show(structuredClone(state));
    return;
  }
  if (writing) write();
  seen = location.hash;
  open?.handle.leave();
  complain('');
  const root = document.createElement('div');
  root.className = `view ${view.name}`;
  $('view').replaceChildren(root);
  for (const tab of $('tabs').children) {
    if (tab.dataset.view === view.name) tab.setAttribute('aria-current', 'page');
    else tab.removeAttribute('aria-current');
  }
  document.title = `${view.title} · meancap explorer`;
  const mine = open = { view, state, handle: { show() {}, leave() {} } };
  // What a view says after it was left is not about the one that is open now.
  const here = (act) => (said) => { if (open === mine) act(said); };
  mine.handle = view.mount(root, {
    api, state: structuredClone(state), setState: here(setState), announce: here(announce), complain: here(complain), copy,
  });
}

function theme(wanted) {
  const dark = wanted ? wanted === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  $('theme').setAttribute('aria-pressed', String(dark));
  document.dispatchEvent(new Event('themechange'));
}

const kept = {
  get: () => { try { return localStorage.getItem('theme'); } catch { return null; } },
  set: (value) => { try { localStorage.setItem('theme', value); } catch { /* a private window */ } },
};

// The comparison on the page as one HTML file that needs no server.
async function savePage({ target }) {
  const state = link();
  target.disabled = true;
  target.textContent = 'Saving…';
  try {
    const { html } = await api.job('export', { link: state });
    saveFile(new Blob([html], { type: 'text/html' }), `meancap-${state.match(/\w+/)[0]}.html`);
    complain('');
  } catch (error) {
    complain(error.message);
  }
  target.disabled = false;
  target.textContent = 'Save';
}

async function copy(text, said) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = Object.assign(document.createElement('textarea'), { value: text, className: 'unseen' });
    document.body.append(field);
    field.select();
    document.execCommand('copy');
    field.remove();
  }
  announce(said);
}

function start() {
  for (const view of VIEWS) {
    const tab = Object.assign(document.createElement('a'), { href: `#${view.name}`, textContent: view.title });
    tab.dataset.view = view.name;
    $('tabs').append(tab);
  }
  document.querySelector('.skip').addEventListener('click', (event) => {
    event.preventDefault(); // as a link, #view would be another state
    $('view').focus();
  });
  $('copy-link').addEventListener('click', async ({ target }) => {
    write();
    await copy(location.href, 'The link to this state is copied.');
    target.textContent = 'Copied';
    setTimeout(() => { target.textContent = 'Copy link'; }, 1500);
  });
  helpButton($('help'));
  if (document.documentElement.dataset.saved === undefined) { // else it is saved already
    document.querySelector('.tools').prepend(h('button', {
      type: 'button', id: 'save-page', 'aria-label': 'Save page', title: 'This comparison as one HTML file that works anywhere', onclick: savePage,
    }, 'Save'));
  }
  $('theme').addEventListener('click', () => {
    const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    kept.set(next);
    theme(next);
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => theme(kept.get()));
  theme(kept.get());
  addEventListener('hashchange', enter);
  enter();
}

start();
