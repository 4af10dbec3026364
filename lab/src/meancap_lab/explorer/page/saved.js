// Runs first in an exported page, where there is no server: answers the page's questions with what was saved.
//
// A question gets the saved answer to the same request. Two fields may differ: `quick`, since everything was
// saved in full, and `t`, where the nearest saved time answers. The two sliders go to the stops that were saved.
// Other questions get a sentence.

{
  const { link, command, answers, stops } = JSON.parse(document.getElementById('saved').textContent);
  const FREE = new Set(['quick', 't']);
  const other = new Error(`This is a saved page and cannot compute other settings; run: ${command}`);

  document.documentElement.dataset.saved = JSON.stringify(stops);
  if (!location.hash) history.replaceState(null, '', link);

  const same = (a, b) => [...new Set([...Object.keys(a), ...Object.keys(b)])]
    .every((key) => FREE.has(key) || JSON.stringify(a[key]) === JSON.stringify(b[key]));

  function find(name, request) {
    const found = answers.filter((one) => one.name === name && same(one.request, request));
    found.sort((a, b) => Math.abs((a.request.t ?? 0) - request.t) - Math.abs((b.request.t ?? 0) - request.t));
    if (!found.length) throw other;
    return found[0];
  }

  window.fetch = async (path, { body, headers }) => {
    let [answer, status] = [null, 200];
    try {
      const { result, error } = find(path.replace('/api/', ''), JSON.parse(body));
      if (error) throw new Error(error);
      answer = headers.Accept === 'application/json' ? result : { result };
    } catch (error) {
      [answer, status] = [{ error: error.message }, 400];
    }
    return new Response(`${JSON.stringify(answer)}\n`, { status });
  };

  // What only a server could answer is shown as it was, and cannot be moved.
  const still = () => {
    for (const one of document.querySelectorAll('#view :is(.side, .sliders, .stories) :is(input, select, textarea, button)')) {
      one.disabled = !one.matches('.term') && !(one.closest('.sliders') && stops[one.name.replace('-number', '')]?.length > 1);
    }
    for (const one of document.querySelectorAll('#view .side [tabindex="0"]')) one.removeAttribute('tabindex');
  };
  addEventListener('DOMContentLoaded', () => {
    new MutationObserver(still).observe(document.getElementById('view'), { childList: true, subtree: true });
  });
}
