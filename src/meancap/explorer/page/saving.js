// The comparison on the page as one HTML file that needs no server: a button in the header, for every view.

import { api, link } from './app.js';
import { h } from './elements.js';
import { save } from './image_parts.js';

// Resolves when the file is handed to the browser; throws a sentence.
export async function savePage() {
  const state = link();
  const { html } = await api.job('export', { link: state });
  save(new Blob([html], { type: 'text/html' }), `meancap-${state.match(/\w+/)[0]}.html`);
}

async function pressed({ target }) {
  const complaint = document.getElementById('error');
  target.disabled = true;
  target.textContent = 'Saving…';
  try {
    await savePage();
    complaint.hidden = true;
  } catch (error) {
    complaint.textContent = error.message;
    complaint.hidden = false;
  }
  target.disabled = false;
  target.textContent = 'Save';
}

export function saveButton() {
  if (document.documentElement.dataset.saved !== undefined) return; // it is one already
  document.querySelector('.tools').prepend(h('button', {
    type: 'button', id: 'save-page', 'aria-label': 'Save page', title: 'This comparison as one HTML file that works anywhere', onclick: pressed,
  }, 'Save'));
}
