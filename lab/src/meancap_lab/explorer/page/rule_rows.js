// The rules: up to four rules as text, each checked while it is typed, with its sentence underneath.

import { fresh, h, percent } from './elements.js';

const PAPER = [['Conditional', 'CFG(1)'], ['Fixed CFG', 'CFG(λ)'], ['PMC-CFG, capped', 'CFG(λ) | Cap(Γ)']];
const WAIT = 120; // milliseconds after a key before the text is read

const code = (text) => h('code', {}, text);

// `change(rules)` is called with texts that can be read; `check(text)` resolves or throws a sentence.
export function ruleRows(about, check, change) {
  const list = h('ol', { class: 'rules' });
  const add = h('button', { type: 'button' }, 'Add a rule');
  add.addEventListener('click', () => {
    rows.push(row('CFG(λ) | Cap(Γ)'));
    lay();
    send();
    rows.at(-1).input.focus();
  });
  const node = h('section', { class: 'card', 'aria-labelledby': 'rules-title' },
    h('h2', { id: 'rules-title' }, 'Rules'),
    h('p', { class: 'about' }, 'Up to four guidance rules, all from the same noise. In a rule, ', code('λ'), ' and ',
      code('Γ'), ' (or ', code('scale'), ', ', code('gamma'), ') stand for the two sliders; ', code('|'), ' chains rules.'),
    list, add);
  let rows = [];

  function row(text) {
    const id = fresh('rule');
    const input = h('input', {
      type: 'text', value: text, name: 'rule', spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off',
      maxlength: 600, 'aria-describedby': `${id}-said`,
    });
    const said = h('p', { id: `${id}-said`, class: 'said', 'aria-live': 'polite' });
    const option = (value, label, title) => h('option', { value, title }, label);
    const pick = h('select', {}, option('', 'Pick…'),
      h('optgroup', { label: 'The paper' }, PAPER.map(([name, rule]) => option(rule, `${name}: ${rule}`))),
      h('optgroup', { label: 'The catalogue' },
        about.rules.map((rule) => option(rule.text, `${rule.name}: ${rule.title}`, rule.title))));
    pick.addEventListener('change', () => {
      if (!pick.value) return;
      input.value = pick.value;
      read();
    });
    pick.addEventListener('blur', () => { pick.value = ''; }); // not before: arrow keys go on from what was picked
    const remove = h('button', { type: 'button', class: 'quiet' }, '×');
    remove.addEventListener('click', () => {
      rows = rows.filter((one) => one !== self);
      lay();
      send();
      add.focus();
    });
    let timer = 0;
    let version = 0;
    const self = { input, pick, said, remove, text, good: true, node: null, complain(sentence) {
      input.setAttribute('aria-invalid', String(Boolean(sentence)));
      said.classList.toggle('bad', Boolean(sentence));
      if (sentence) said.textContent = sentence;
    } };
    async function read() {
      const mine = (version += 1);
      const typed = input.value;
      try {
        const { rule } = await check(typed);
        if (mine !== version) return;
        self.good = true;
        self.complain('');
        said.textContent = rule === typed.trim() ? '' : `= ${rule}`;
        if (typed !== self.text) { self.text = typed; send(); }
      } catch (error) {
        if (mine !== version || error.name === 'AbortError') return;
        self.good = false;
        self.complain(error.message);
      }
    }
    self.read = read;
    input.addEventListener('input', () => { clearTimeout(timer); timer = setTimeout(read, WAIT); });
    const swatch = h('span', { class: 'swatch', 'aria-hidden': 'true' });
    self.node = h('li', {}, h('div', { class: 'rule' }, swatch, input, pick, remove), said);
    return self;
  }

  function lay() {
    rows.forEach((one, i) => {
      one.node.style.setProperty('--own', `var(--rule-${i})`);
      one.input.setAttribute('aria-label', `Rule ${i + 1}`);
      one.pick.setAttribute('aria-label', `Pick rule ${i + 1}`);
      one.remove.setAttribute('aria-label', `Remove rule ${i + 1}`);
      one.remove.disabled = rows.length === 1;
    });
    add.disabled = rows.length >= about.limits.rules;
    list.replaceChildren(...rows.map((one) => one.node));
  }

  const send = () => change(rows.map((one) => one.text));

  return {
    node,
    show(texts) {
      if (JSON.stringify(texts) !== JSON.stringify(rows.map((one) => one.text))) {
        rows = texts.slice(0, about.limits.rules).map(row);
        lay();
        rows.forEach((one) => one.read());
      }
    },
    // What only running it could tell.
    results(rules) {
      rules.forEach((entry, i) => {
        if (!rows[i]?.good || rows[i].text !== entry.text) return;
        const away = entry.lost ? `${percent(entry.lost)} of the samples diverged; lower λ or add a cap` : '';
        rows[i].complain(entry.error ?? away);
        if (!entry.error && !entry.lost) rows[i].said.textContent = entry.rule === entry.text.trim() ? '' : `= ${entry.rule}`;
      });
    },
  };
}
